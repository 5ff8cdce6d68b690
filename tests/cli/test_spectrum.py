"""`fullrank spectrum` on a real run: now, over training, against another model, and without a run."""

import io
import json

import numpy as np
import pytest
import timm
import torch
from fullrank.cli.spectrum_output import ModelSpectra, write_json, write_png
from PIL import Image
from rich.console import Console

import fullrank as package
from fullrank.cli import spectrum_history
from fullrank.images import train_and_test
from fullrank.run import Run, SpectrumHistory
from fullrank.spectrum import METRICS, Spectrum


def test_writes_the_metrics_that_it_prints(fullrank, run, tmp_path):
    for file in ("spectrum.npz", "spectrum.json"):
        status, out, err = fullrank("spectrum", run.path, "--out", tmp_path / file)
        assert status == 0
    assert all(metric.name in out for metric in METRICS.values())
    assert "359 images of digits; eigenvalues of the centred covariance, divided by n" in err
    assert f"written: {tmp_path / 'spectrum.json'}" in err
    with np.load(tmp_path / "spectrum.npz") as arrays:
        eigenvalues = {name: arrays[name] for name in arrays.files}
    values = json.loads((tmp_path / "spectrum.json").read_text())
    for name, D in (("backbone", 16), ("projector", 24)):
        assert eigenvalues[name].shape == (D,)
        np.testing.assert_allclose(eigenvalues[name], values[name]["eigenvalues"])
        assert values[name]["dimensions"] == D
        assert values[name]["samples"] == 359
        spectrum = Spectrum.from_eigenvalues(torch.from_numpy(eigenvalues[name]), n=359)
        assert values[name]["effective_rank"] == pytest.approx(spectrum.effective_rank())
        assert (
            values[name]["conventions"]["rank_me"]
            == f"singular values of the uncentred embeddings; n = 359, D = {D}; ε = 10⁻⁷"
        )
    features = package.load(run.path).features  # the features of the backbone
    held_out = train_and_test("digits").test
    X = features([held_out.open(index) for index in range(len(held_out))]).double()
    covariance = (X - X.mean(0)).T @ (X - X.mean(0)) / len(X)
    np.testing.assert_allclose(
        eigenvalues["backbone"], torch.linalg.eigvalsh(covariance).flip(0).numpy(), rtol=1e-3, atol=1e-6
    )
    p = torch.linalg.svdvals(X) / torch.linalg.svdvals(X).sum()
    assert values["backbone"]["rank_me"] == pytest.approx(torch.special.entr(p).sum().exp().item(), rel=1e-4)


def test_shows_and_writes_the_spectra_over_training(fullrank, run, tmp_path):
    spectra = Run(run.path).spectra
    for file in ("spectrum.npz", "spectrum.json"):
        _, out, _ = fullrank("spectrum", run.path, "--out", tmp_path / file)
    with np.load(tmp_path / "spectrum.npz") as arrays:
        assert arrays["steps"].tolist() == spectra.steps.tolist()
        np.testing.assert_array_equal(arrays["projector_over_training"], spectra.eigenvalues["projector"])
    training = json.loads((tmp_path / "spectrum.json").read_text())["training"]
    assert training["steps"] == spectra.steps.tolist()
    last = Spectrum.from_eigenvalues(torch.from_numpy(spectra.eigenvalues["projector"][-1]), n=int(spectra.samples[-1]))
    assert training["projector"]["effective_rank"][-1] == pytest.approx(last.effective_rank())
    assert training["projector"]["collapsed_dimensions"][-1] == last.collapsed_dimensions()
    for part in ("backbone", "projector"):
        assert f"{run.path}: {part} over training" in " ".join(out.split()).replace("/ ", "/")
    rows = [
        line for line in out.splitlines() if "│" in line and line.split("│")[1].strip().replace(",", "").isdecimal()
    ]
    assert [int(line.split("│")[1]) for line in rows[:2]] == spectra.steps.tolist()[:2] or len(spectra.steps) > 8
    assert f"{last.effective_rank():.3g}" in rows[-1]
    assert "95 % at" in out


def test_other_arrays_in_the_file_of_spectra_are_ignored(copy, run):
    history = Run(run.path).spectra
    np.savez(
        copy / "spectrum.npz",
        steps=history.steps,
        samples=history.samples,
        **history.eigenvalues,
        backbone_extra=np.ones((2, 16)),
    )
    read, expected = Run(copy).spectra, Run(run.path).spectra
    assert list(read.eigenvalues) == ["backbone", "projector"]
    np.testing.assert_array_equal(read.eigenvalues["backbone"], expected.eigenvalues["backbone"])


def rising(D=128, T=20):
    """Return spectra whose eigenvalues rise one after the other."""
    steps, j = np.arange(T) * 10, np.arange(1, D + 1)
    return SpectrumHistory(
        steps=steps, samples=np.full(T, 4 * D), eigenvalues={"backbone": np.exp(-8 * j / (1 + steps[:, None])) / j}
    )


def printed(table, width):
    console = Console(width=width, file=io.StringIO())
    console.print(table)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize(("width", "shown"), [(60, [1, 14]), (80, [1, 4, 14, 64]), (200, [1, 2, 4, 8, 14, 32, 64])])
def test_a_narrow_table_shows_fewer_eigenvalues(width, shown):
    lines = printed(spectrum_history.table(rising(), "backbone", title="", width=width), width)
    (head,) = [line for line in lines if "eff. rank" in line]
    assert [int(name[1:]) for name in head.replace("┃", " ").split() if name.startswith("λ")] == shown


def test_the_table_shows_the_saturation_step_of_eigenvalues_only():
    spectra = rising()
    (line,) = [
        line for line in printed(spectrum_history.table(spectra, "backbone", title="", width=80), 80) if "95 %" in line
    ]
    curve = spectra.eigenvalues["backbone"][:, 13]
    first = next(t for t in range(20) if (curve[t:] >= 0.95 * curve[-1]).all())
    cells = [cell.strip() for cell in line.strip("│").split("│")]
    assert (cells[1], cells[2]) == ("", "")
    assert cells[5] == str(spectra.steps[first])


def now(eigenvalues):
    return {"backbone": Spectrum.from_eigenvalues(torch.from_numpy(eigenvalues), n=512)}


def test_a_model_has_the_same_colour_in_every_panel(tmp_path):
    spectra = rising()
    untrained = ("timm:resnet18", now(np.ones(128)), None)
    long = ("runs/" + "a/very/long/path/" * 9 + "seed0", now(spectra.eigenvalues["backbone"][-1]), spectra)
    over, rank, last = spectrum_history.draw([untrained, long]).axes
    assert over.get_title().endswith("/a/very/long/path/seed0\neigenvalues, backbone")
    (drawn,) = rank.lines
    assert [line.get_label() for line in last.lines] == ["timm:resnet18", drawn.get_label()]
    assert drawn.get_color() == last.lines[1].get_color() != last.lines[0].get_color()
    assert len(drawn.get_label()) == spectrum_history.NAME_LENGTH
    assert drawn.get_label().endswith("/a/very/long/path/seed0")
    assert last.get_xlabel() == "index of the eigenvalue (centred; 512 images)"
    write_png(
        tmp_path / "a.png", [ModelSpectra(*untrained), ModelSpectra(*long)]
    )  # no warning about the size of the axes


def exploded(D=128, T=20):
    """Return spectra that begin small, reach 10¹² at the third evaluation, and end at 15, 1.4 and so on; the last is
    zero."""
    spectra = rising(D, T)
    table = spectra.eigenvalues["backbone"] = np.tile(np.geomspace(15.0, 1e-7, D), (T, 1))
    table[0] *= 1e-3
    table[2] *= np.geomspace(1e11, 1.0, D)
    table[-1, -1] = 0.0
    return spectra


def test_eigenvalues_below_the_rounding_of_their_step_are_gaps():
    spectra = exploded()
    over, *_ = spectrum_history.draw([("a", now(spectra.eigenvalues["backbone"][-1]), spectra)]).axes
    for line in over.lines:
        j = int(np.argmin(abs(spectra.eigenvalues["backbone"][-2] - line.get_ydata()[-2]))) + 1
        values = spectra.eigenvalues["backbone"][:, j - 1]
        expected = [
            value if value > 1e-10 * row[0] else np.nan
            for value, row in zip(values, spectra.eigenvalues["backbone"], strict=True)
        ]
        np.testing.assert_array_equal(line.get_ydata(), expected)
        assert np.isfinite(line.get_ydata()[[0, -2]]).all()
    assert sum(np.isnan(line.get_ydata()[2]) for line in over.lines) > 0
    assert len(over.lines) > 12


def test_a_curve_that_fell_or_is_zero_has_no_saturation_step():
    spectra = exploded()
    assert [spectrum_history.saturation_step(spectra, "backbone", j) for j in (1, 64, 128)] == [None, None, None]
    (line,) = [
        line for line in printed(spectrum_history.table(spectra, "backbone", title="", width=60), 60) if "95 %" in line
    ]
    assert [cell.strip() for cell in line.strip("│").split("│")] == ["95 % at", "", "", "–", "–"]
    over, *_ = spectrum_history.draw([("a", now(spectra.eigenvalues["backbone"][-1]), spectra)]).axes
    assert over.get_xlabel() == "step"
    over, *_ = spectrum_history.draw([("a", now(rising().eigenvalues["backbone"][-1]), rising())]).axes
    assert over.get_xlabel() == "step (dotted: λ$_{14}$ saturates)"
    assert over.lines[-1].get_linestyle() == ":"
    assert over.lines[-1].get_xdata()[0] == spectrum_history.saturation_step(rising(), "backbone", 14)


@pytest.mark.parametrize(
    ("curve", "step"),
    [([0.1, 1.9, 1.0], 10), ([0.1, 2.1, 1.0], None), ([0.96, 0.5, 1.0], None), ([0.94, 0.5, 1.0], 20), ([1.0], None)],
)
def test_only_a_curve_that_rose_has_a_saturation_step(curve, step):
    eigenvalues = {"backbone": np.array(curve)[:, None]}
    spectra = SpectrumHistory(steps=np.arange(len(curve)) * 10, samples=np.full(len(curve), 9), eigenvalues=eigenvalues)
    assert spectrum_history.saturation_step(spectra, "backbone", 1) == step


def test_draws_a_complete_collapse(tmp_path):
    none = rising().eigenvalues["backbone"] * 0
    spectra = SpectrumHistory(steps=np.arange(20), samples=np.full(20, 512), eigenvalues={"backbone": none})
    write_png(tmp_path / "a.png", [ModelSpectra("a", now(none[-1]), spectra)])
    assert size(tmp_path / "a.png")[0] > 0
    first = next(
        line
        for line in printed(spectrum_history.table(spectra, "backbone", title="", width=80), 80)
        if line.startswith("│")
    )
    assert [cell.strip() for cell in first.strip("│").split("│")][:3] == ["0", "0", "128"]


def test_measures_a_timm_model_on_any_images(fullrank, photos, tmp_path, monkeypatch):
    requested, create = {}, timm.create_model

    def offline(name, *, pretrained=False, **keywords):
        requested[name] = pretrained
        torch.manual_seed(0)
        return create(name, pretrained=False, **keywords)

    monkeypatch.setattr("fullrank.models.loading.model_info", lambda *arguments, **keywords: None)
    monkeypatch.setattr(timm, "create_model", offline)
    status, out, err = fullrank("spectrum", "timm:test_resnet", "--data", photos, "--out", tmp_path / "a.json")
    assert status == 0
    assert requested == {"test_resnet": True}
    values = json.loads((tmp_path / "a.json").read_text())
    assert set(values) == {"model", "backbone"}
    images = train_and_test(str(photos)).test
    X = package.load("timm:test_resnet").features([images.open(index) for index in range(len(images))]).double()
    np.testing.assert_allclose(
        values["backbone"]["eigenvalues"], np.linalg.eigvalsh(np.cov(X.T, bias=True))[::-1], atol=1e-6
    )
    assert values["backbone"]["samples"] == len(images) < values["backbone"]["dimensions"] == X.shape[1]
    assert "over training" not in out
    assert "images are too few" in err


def size(picture):
    with Image.open(picture) as image:
        return image.size


def test_draws(fullrank, run, tmp_path):
    assert fullrank("spectrum", run.path, "--out", tmp_path / "over.png")[0] == 0
    assert fullrank("spectrum", f"{run.path}@6", "--out", tmp_path / "now.png")[0] == 0
    over, now = (size(tmp_path / f"{name}.png") for name in ("over", "now"))
    assert over[0] == now[0]  # one column for each location
    assert over[1] == 3 * now[1]  # a checkpoint has no history


def test_compares_two_models_on_the_same_images(fullrank, run, tmp_path):
    earlier = f"{run.path}@6"
    for file in ("two.json", "two.npz"):
        status, out, err = fullrank("spectrum", run.path, "--against", earlier, "--out", tmp_path / file)
        assert status == 0
    assert "359 images of digits" in err
    assert out.splitlines()[:2] == [f"A: {run.path}", f"B: {earlier}"]
    (head,) = [line for line in out.splitlines() if "┃" in line]
    assert [cell.strip() for cell in head.strip("┃").split("┃")] == [
        "",
        "A backbone",
        "A projector",
        "B backbone",
        "B projector",
        "better",
    ]
    assert {"higher", "lower", "–"} <= {
        line.split("│")[-2].strip() for line in out.splitlines() if line.count("│") == 7
    }
    assert "95 % at" not in out  # four more tables
    assert "over training: fullrank spectrum RUN, without --against" in out
    values = json.loads((tmp_path / "two.json").read_text())
    assert (values["model"], values["against"]["model"]) == (str(run.path), earlier)
    assert "training" in values
    assert "training" not in values["against"]
    alone = tmp_path / "alone.json"
    fullrank("spectrum", earlier, "--out", alone)
    assert json.loads(alone.read_text()) == values["against"]
    assert values["against"]["backbone"]["eigenvalues"] != values["backbone"]["eigenvalues"]
    with np.load(tmp_path / "two.npz") as arrays:
        np.testing.assert_allclose(arrays["against_backbone"], values["against"]["backbone"]["eigenvalues"])


def test_warns_of_few_images_and_names_the_metrics(fullrank, run, photos):
    status, _, err = fullrank("spectrum", run.path, "--data", photos)
    assert status == 0
    (line,) = [line for line in err.splitlines() if "images are too few" in line]
    few = "images are too few for 16 dimensions (expected 160) and 24 dimensions (expected 240): too low: "
    assert few in line
    assert line.count("effective rank") == 1
    assert "too high: condition number" in line


def test_a_damaged_file_of_spectra_is_a_warning(fullrank, copy):
    (copy / "spectrum.npz").write_bytes(b"half a file")
    status, out, err = fullrank("spectrum", copy)
    assert status == 0
    assert "effective rank" in out
    assert "over training" not in out
    assert f"the spectra over training are not shown: {copy / 'spectrum.npz'} cannot be read" in err


def test_a_second_model_that_does_not_exist_is_an_error(refused, run):
    assert "model 'nowhere' is no run directory; expected RUN" in refused("spectrum", run.path, "--against", "nowhere")


def test_an_infinite_metric_is_null_in_json(tmp_path):
    write_json(
        tmp_path / "a.json",
        [ModelSpectra("a", {"backbone": Spectrum.from_embeddings(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))})],
    )

    def refuse(constant):
        raise ValueError(f"{constant} is no JSON")

    values = json.loads((tmp_path / "a.json").read_text(), parse_constant=refuse)
    assert values["backbone"]["condition_number"] is None
