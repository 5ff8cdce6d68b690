"""The spectra of a model, now and over training, and their files and the command."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import fullrank
from fullrank.cli import main
from fullrank.errors import UserError
from fullrank.evaluation.spectrum import Spectra, effective_ranks, saturation_step
from fullrank.images import train_and_test
from fullrank.run import Run
from fullrank.spectrum import METRICS, Spectrum


def test_the_spectra_of_a_run_are_those_of_its_held_out_images(run):
    spectra, model = fullrank.measure_spectrum(run.path), fullrank.load(run.path)
    held_out = train_and_test("digits").test
    R = model.features([held_out.open(row) for row in range(len(held_out))])
    with torch.inference_mode():
        expected = {"backbone": R, "projector": model.projector(R)}
    assert list(spectra) == list(expected)
    for part, X in expected.items():
        assert spectra[part].n == len(held_out)
        values = Spectrum.from_embeddings(X).eigenvalues
        torch.testing.assert_close(spectra[part].eigenvalues, values, rtol=1e-3, atol=1e-5)


def test_the_command_prints_and_writes_metrics_eigenvalues_and_history(run, tmp_path, capsys):
    for name in ("a.npz", "a.json", "a.png"):
        assert main(["spectrum", str(run.path), "--out", str(tmp_path / name)]) == 0
    printed, history = capsys.readouterr().out, Run(run.path).spectra.comparable()
    assert all(metric.name in printed for metric in METRICS.values())
    assert "saturated at" in printed
    values = json.loads((tmp_path / "a.json").read_text())
    assert values["training"]["steps"] == history.steps.tolist()
    for part, ranks in values["training"]["effective_rank"].items():
        np.testing.assert_allclose(ranks, effective_ranks(history, part))
    with np.load(tmp_path / "a.npz") as arrays, Image.open(tmp_path / "a.png") as picture:
        assert min(picture.size) > 100
        np.testing.assert_array_equal(arrays["projector_over_training"], history.eigenvalues["projector"])
        for part in ("backbone", "projector"):
            np.testing.assert_allclose(arrays[part], values[part]["eigenvalues"])
            spectrum = Spectrum.from_eigenvalues(torch.from_numpy(arrays[part]), n=359)
            assert values[part]["effective_rank"] == pytest.approx(spectrum.effective_rank())
    assert main(["spectrum", str(run.path), "--out", str(tmp_path / "a.json")]) == 2


def test_two_models_are_measured_on_the_same_images(run, tmp_path):
    earlier = f"{run.path}@6"
    both, alone = fullrank.measure_spectrum(run.path, against=earlier), fullrank.measure_spectrum(earlier)
    assert list(both) == ["backbone", "projector", "against_backbone", "against_projector"]
    torch.testing.assert_close(both["against_projector"].eigenvalues, alone["projector"].eigenvalues)
    with pytest.raises(UserError, match="expected"):
        alone.save(tmp_path / "a.txt")


def test_an_infinite_metric_is_null_in_json_and_few_images_are_a_warning(tmp_path):
    found = Spectra(backbone=Spectrum.from_embeddings(torch.tensor([[1.0, 0.0], [-1.0, 0.0]])))
    found.save(tmp_path / "a.json")
    assert json.loads((tmp_path / "a.json").read_text())["backbone"]["condition_number"] is None
    assert "2 images are few for 2 dimensions" in found.warning


@pytest.mark.parametrize(
    ("curve", "step"),
    [([0.1, 1.9, 1.0], 20), ([0.1, 2.1, 1.0], None), ([0.96, 0.5, 1.0], None), ([0.94, 0.5, 1.0], 20), ([1.0], None)],
)
def test_only_a_curve_that_rose_has_a_saturation_step(curve, step):
    eigenvalues = {"backbone": np.array(curve)[:, None]}
    history = SimpleNamespace(steps=np.arange(len(curve)) * 10, eigenvalues=eigenvalues)
    assert saturation_step(history, "backbone", 1) == step
