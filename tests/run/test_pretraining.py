import errno
import inspect
import io
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from torch._subclasses.fake_tensor import FakeTensor

import fullrank
from fullrank.errors import UserError
from fullrank.images import train_and_test
from fullrank.recipes import DataConfig, ProbeConfig, Recipe, SpectrumConfig
from fullrank.run import Run
from fullrank.run import data as run_data
from fullrank.run import pretrain as pretraining
from fullrank.run.preview import preview
from fullrank.run.resume import with_absolute_source

ROOT = Path(__file__).parents[2]
QUIET = Console(quiet=True)


def test_a_run_directory_has_the_documented_files(run):
    text = (ROOT / "docs/run-directory.md").read_text()
    documented = re.findall(r"^\| `([\w.]+)/?[^`]*` \|", text, flags=re.M)
    assert {"recipe.json", "metrics.jsonl", "checkpoints", "spectrum.npz"} <= set(documented)
    later = {"evaluation.json", "neighbours.json", "report.html", "row.json", "initial.safetensors"}
    assert set(documented) - later <= {path.name for path in run.path.iterdir()}
    for checkpoint in run.checkpoints:
        assert {"model.safetensors", "meta.json"} <= {path.name for path in checkpoint.path.iterdir()}
    assert (run.checkpoint().path / "state.pt").exists()
    assert not list(run.path.rglob("*draft*"))


def test_the_log_has_a_row_for_every_step(run):
    metrics = run.metrics
    assert [row.step for row in metrics.train] == list(range(1, 23))
    for row in metrics.train:
        assert row.loss == pytest.approx(sum(row.terms.values()))
        assert row.terms.keys() == {"invariance", "variance"}
        assert None not in (row.probe_loss, row.probe_train_accuracy)
    with_spectrum = [row for row in metrics.train if row.leading_eigenvalues]
    assert [row.step for row in with_spectrum] == [5, 10, 15, 20]
    assert all(row.effective_rank <= row.max_rank + 1 for row in with_spectrum)
    for row in metrics.spectrum:
        assert (row.backbone.dimensions, row.projector.dimensions) == (16, 24)
        assert 0 <= row.probe_accuracy <= 1


def test_labels_logging_probing_and_evaluating_do_not_change_the_weights(run, small, train, monkeypatch):
    def remove_labels(*arguments, **keywords):
        splits = train_and_test(*arguments, **keywords)
        for images in (splits.train, splits.test):
            images.labels = np.full_like(images.labels, -1)
        return splits

    monkeypatch.setattr(run_data, "train_and_test", remove_labels)
    spectrum = SpectrumConfig(every=9, samples=30, train_batch_every=1)
    other = train(replace(small, log_every=4, checkpoints=1, probe=ProbeConfig(lr=0.5), spectrum=spectrum))
    assert not any("probe_loss" in row or "probe_accuracy" in row for row in other.metrics.to_dicts())
    assert run.spectra.comparable().steps.tolist() == list(range(23))
    assert other.spectra.comparable().steps.tolist() == [0, 9, 18, 22]
    one, other = run.checkpoint().weights(), other.checkpoint().weights()
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_double_precision_reaches_the_objective(small, train, monkeypatch):
    from fullrank.methods import JointEmbedding

    seen = set()
    terms = JointEmbedding.terms

    def record_dtype(self, embeddings):
        if not isinstance(embeddings["Z"], FakeTensor):  # of the dry run
            seen.add(embeddings["Z"].dtype)
        return terms(self, embeddings)

    monkeypatch.setattr(JointEmbedding, "terms", record_dtype)
    run = train(replace(small, epochs=1, batch_size=512, machine=replace(small.machine, precision="64-true")))
    assert seen == {torch.float64}
    assert run.checkpoint().weights()["backbone.conv1.weight"].dtype == torch.float64


def test_a_preview_does_not_replace_a_picture_of_the_user(small, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (9, 9)).save("views.png")
    mine = Path("views.png").read_bytes()
    with pytest.raises(UserError, match="exists already"):
        preview(small, console=QUIET)
    assert Path("views.png").read_bytes() == mine
    preview(small, overwrite=True, console=QUIET)
    assert Path("views.png").read_bytes() != mine


def test_a_disk_that_is_full_at_the_preview_is_one_line_and_the_run_goes_on(small, tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(pretraining, "write_preview", full)
        with pytest.raises(UserError, match=r"no space left for .*free some space"):
            fullrank.pretrain(replace(small, epochs=1, batch_size=512), out=tmp_path / "run", console=QUIET)
    fullrank.pretrain(resume=tmp_path / "run", console=QUIET)
    assert (tmp_path / "run" / "views.png").exists()


def test_an_overwritten_run_is_removed_at_the_first_checkpoint(small, copy):
    (copy / "evaluation.json").write_text("{}")
    fullrank.pretrain(replace(small, epochs=1, batch_size=512), out=copy, overwrite=True, console=QUIET)
    assert Run(copy).checkpoint().step == 2
    assert not (copy / "evaluation.json").exists()
    assert not copy.with_name("copy.old").exists()


def test_a_relative_source_is_stored_as_an_absolute_path(photos, monkeypatch):
    monkeypatch.chdir(photos.parent)
    for source, expected in (("photos", f"{photos}"), ("folder:photos", f"folder:{photos}"), ("hf:a/b", "hf:a/b")):
        assert with_absolute_source(Recipe(data=DataConfig(source=source))).data.source == expected


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"recipe": "digit"}, "did you mean 'digits'"),
        ({"resume": "somewhere", "data": "digits"}, "no run at somewhere"),
        ({"resume": "somewhere", "out": "elsewhere"}, "resume keeps its folder"),
        ({"recipe": "digits", "resume": True}, "need --out RUN"),
        ({"recipe": "digits", "resume": True, "out": "a", "overwrite": True}, "give one"),
        ({"recipe": "digits", "out": 3}, "out is 3, expected a path"),
        ({"recipe": "digits", "out": b"a".decode() + "\udcff"}, "not a name in UTF-8"),
    ],
)
def test_contradicting_arguments_are_an_error(keywords, message):
    with pytest.raises(UserError, match=message):
        inspect.unwrap(fullrank.pretrain)(**keywords)  # without the type checks of the tests


def test_a_batch_that_is_not_divisible_by_the_devices_is_an_error(small, tmp_path):
    with pytest.raises(UserError, match=r"batch of 127 .* by 2 devices"):
        fullrank.pretrain(replace(small, batch_size=127), out=tmp_path / "run", devices=2)
    assert not (tmp_path / "run").exists()


@pytest.fixture
def streaming_recipe(small, tmp_path, monkeypatch):
    """A recipe that streams images from local files."""
    import datasets

    # otherwise five seconds per stream; the oldest datasets has no such delay
    monkeypatch.setattr(datasets.config, "SLEEP_TIME_ON_THREADS_SHUTDOWN", 0, raising=False)
    rng = np.random.default_rng(0)
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    for split, n in (("train-0", 40), ("train-1", 30), ("test", 30)):
        pictures = [Image.fromarray(rng.integers(0, 256, (8, 8), dtype=np.uint8)) for _ in range(n)]
        table = datasets.Dataset.from_dict({"image": pictures, "label": [k % 3 for k in range(n)]}, features=features)
        table.to_parquet(tmp_path / "set" / f"{split}.parquet")
    data = replace(small.data, source=str(tmp_path / "set"), storage="streaming", num_images=64, workers=0)
    return replace(small, data=data, batch_size=16, epochs=3)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_streaming_run_trains_and_resumes(streaming_recipe, tmp_path, power_cut, workers):
    output = io.StringIO()
    console = Console(file=output, soft_wrap=True, markup=False)
    recipe = replace(streaming_recipe, data=replace(streaming_recipe.data, workers=workers))
    whole = fullrank.pretrain(recipe, out=tmp_path / "whole", console=console)
    with power_cut(after=8):
        fullrank.pretrain(recipe, out=tmp_path / "run", console=QUIET)
    assert f"training streams {tmp_path / 'set'} [train] (64 images per epoch)" in output.getvalue()
    assert Run(tmp_path / "run").checkpoint(6).meta()["pass_ends"] == [[70]]  # of 96 images; workers read ahead
    run = fullrank.pretrain(resume=tmp_path / "run", console=console)
    assert "a process first reads 26 images of the stream again" in output.getvalue()
    assert all(torch.equal(run.checkpoint().weights()[name], w) for name, w in whole.checkpoint().weights().items())
    assert [row.step for row in run.metrics.train] == list(range(1, 13))
    assert all(row.probe_loss is not None for row in run.metrics.train)
    assert run.checkpoint().step == 12


@pytest.mark.ddp
def test_a_stream_goes_on_in_each_process_and_another_number_of_them_begins_a_new_pass(streaming_recipe, tmp_path):
    recipe, output = replace(streaming_recipe, checkpoints=2, keep_checkpoints=-1), io.StringIO()
    whole = fullrank.pretrain(recipe, out=tmp_path / "whole", devices=2, console=QUIET)
    runs = {}
    for devices in (2, 1):
        path = shutil.copytree(whole.path, tmp_path / f"{devices}")
        shutil.rmtree(Run(path).checkpoint(12).path)
        console = Console(file=output, soft_wrap=True, markup=False)
        runs[devices] = fullrank.pretrain(resume=path, devices=devices, console=console).checkpoint().weights()
    expected = whole.checkpoint().weights()
    assert all(torch.equal(runs[2][name], w) for name, w in expected.items())
    assert not all(torch.equal(runs[1][name], w) for name, w in expected.items())
    assert "the processes, 1 instead of 2, divide the stream anew, so that a new pass begins" in output.getvalue()
    assert "up to rounding" not in output.getvalue()


COMPILED = """
import functools, sys, torch, fullrank
backend, recipe, folder = sys.argv[1:]
if backend != "none":
    torch.compile = functools.partial(torch.compile, backend=backend)
fullrank.pretrain(recipe, out=folder, **{"machine.compile": backend != "none", "machine.precision": "32-true"})
"""


def losses_with(backend, recipe, folder):
    """The losses of a run with a backend of torch.compile, in a new process without the shape checks of the tests."""
    subprocess.run([sys.executable, "-c", COMPILED, backend, recipe, folder], check=True, capture_output=True)
    return [row.loss for row in Run(folder).metrics.train]


@pytest.mark.slow
def test_a_compiled_run_equals_an_eager_run(recipe_json, tmp_path):
    eager = losses_with("none", recipe_json, tmp_path / "none")
    assert losses_with("eager", recipe_json, tmp_path / "eager") == eager  # traced, not compiled: bit for bit
    if shutil.which("g++") is None:
        pytest.skip("torch.compile needs a C++ compiler")
    assert losses_with("inductor", recipe_json, tmp_path / "inductor")[:3] == pytest.approx(eager[:3], rel=1e-3)
