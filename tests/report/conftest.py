"""Run directories with a simulated training run."""

import io
import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fullrank.evaluation.score import Comparison, Evaluation, Score
from fullrank.evaluation.verdict import verdict
from fullrank.report import RunSummary
from fullrank.run import SpectrumHistory
from fullrank.run.rows import AlarmRow, SpectrumMetrics, SpectrumRow, TrainRow, row_to_json
from fullrank.spectrum import Spectrum

RECIPE = {
    "name": "cifar10",
    "objective": "frossl",
    "hyper": {"invariance": 1.0, "log": True},
    "data": {"source": "hf:cifar10", "train": "train", "test": "test"},
    "backbone": {"name": "resnet18", "arguments": {"channels": [32, 64]}},
    "projector": {"kind": "mlp", "widths": [512, 512]},
    "views": [{"size": 32, "flip": 0.5}],
    "epochs": 40,
    "batch_size": 256,
    "seed": 0,
}
ENVIRONMENT = {"fullrank": "0.1.0", "torch": "2.11.0", "started": "2026-01-05T10:00:00Z", "duration_seconds": 7384.0}


def _train_row(step, loss=1.0, **fields):
    row = {"step": step, "epoch": step / 100, "loss": loss, "terms": {}, "lr": 0.1, "images_per_second": 1900.0}
    return TrainRow(**(row | fields))


def _spectrum_row(step=100, *, probe_accuracy=0.5, held_out_loss=None, agreement=None, of_probe=None, **metrics):
    """Return a row with the same metrics at both locations."""
    healthy = {"effective_rank": 45.25, "condition_number": 9.0, "entropy": 3.0, "collapsed_dimensions": 0}
    both = SpectrumMetrics(**({"samples": 10_000, "dimensions": 512} | healthy | metrics))
    images, majority = of_probe or (None, None)
    return SpectrumRow(
        step=step, epoch=step / 100, backbone=both, projector=both, probe_accuracy=probe_accuracy, probe_images=images,
        probe_majority=majority, held_out_loss=held_out_loss, intraclass_correlation=agreement,
    )  # fmt: skip


def _alarm_row(step=100, term="variance", **fields):
    """Return an alarm about the effective rank; the probable cause is a missing term."""
    message = f"dimensional collapse, backbone: effective rank 1.200 of 512 dimensions; the term '{term}' has no weight"
    row = {"step": step, "epoch": step / 100, "alarm": "dimensional collapse", "where": "backbone", "message": message}
    observed = {"metric": "effective_rank", "observed": 1.2, "threshold": 2.0, "cause": "missing term"}
    return AlarmRow(**(row | observed | {"remedy": f"raise --hyper.{term}"} | fields))


def _score(features="backbone", probe="linear-sgd", value=0.5, labels=None, **fields):
    settings = {"labels": labels} if labels else {}
    return Score(features=features, probe=probe, value=value, settings=settings, **fields)


def _evaluation(*scores, data="photos[test]", step=None, statement="", left_out=(), **ends):
    """Return an evaluation; `raw_pixels=(0.1, 0.2)` is the interval of the backbone minus the raw pixels."""
    comparisons = tuple(
        Comparison(
            probe="knn", against=name.replace("_", " "), value=0.8, reference=0.8 - (low + high) / 2,
            difference=(low + high) / 2, low=low, high=high, units=500,
        )
        for name, (low, high) in ends.items()
    )  # fmt: skip
    return Evaluation(
        model="run", data=data, step=step, chance=0.1, train_images=50, test_images=500, statement=statement,
        scores=scores, comparisons=comparisons, verdict=verdict(comparisons), left_out=left_out,
    )  # fmt: skip


def _made(make):
    """A fixture that is the function `make`."""
    return pytest.fixture(lambda: make)


train_row, spectrum_row, alarm_row = _made(_train_row), _made(_spectrum_row), _made(_alarm_row)
score, evaluation = _made(_score), _made(_evaluation)


def _picture(width=272, height=102, seed=0):
    """A PNG of noise, which does not compress."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def _spectra(steps, samples=100, **eigenvalues):
    return SpectrumHistory(steps=np.array(steps), samples=np.full(len(steps), samples), eigenvalues=eigenvalues)


make_picture, make_spectra = _made(_picture), _made(_spectra)
make_summary = _made(lambda **fields: RunSummary(**({"label": "run"} | fields)))


@pytest.fixture
def make_run(tmp_path):
    """`make_run("a", T=12, D_b=96, D=128, lines=200, without=("views.png",), recipe={…}, alarms=2)` → its directory."""

    def make(name="run", *, T=12, D_b=96, D=128, lines=200, without=(), recipe=None, alarms=0, seed=0) -> Path:
        path, rng = tmp_path / name, np.random.default_rng(seed)
        path.mkdir(parents=True)
        steps = np.linspace(0, 4000, T).round().astype(np.int64)
        tables = {"backbone": _power_laws(rng, T, D_b, 2.0), "projector": _power_laws(rng, T, D, 1.0)}
        log = [*_training_log(lines, rng), *_spectrum_log(steps, tables)]
        log = sorted([*log, *(_alarm_row(900 + 10 * k) for k in range(alarms))], key=lambda row: row.step)
        scores = [_score(name, "linear-sgd", 0.87, sd=0.004, n=3) for name in ("backbone", "raw pixels")]
        scores += [_score(value=0.513, probe="few-shot", labels=labels) for labels in (2, 5)]
        evaluation = _evaluation(*scores, statement="trained on train", left_out=("SVM: too slow",))
        files = {
            "recipe.json": json.dumps(RECIPE | (recipe or {})),
            "environment.json": json.dumps(ENVIRONMENT),
            "metrics.jsonl": "".join(json.dumps(row_to_json(row)) + "\n" for row in log),
            "evaluation.json": json.dumps({"evaluations": [asdict(evaluation)]}),
            "decode_errors.jsonl": '{"name": "a.jpg"}\n{"name": "b.jpg"}\n',
        }
        for file, text in files.items():
            (path / file).write_text(text, encoding="utf-8")
        (path / "views.png").write_bytes(_picture())
        np.savez(path / "spectrum.npz", steps=steps, samples=np.full(T, 2048), **tables)
        for file in without:
            (path / file).unlink()
        return path

    return make


def _power_laws(rng, T, D, slope):
    slopes = slope * (1 - 0.7 * np.linspace(0, 1, T)) + 0.3
    noise = np.exp(0.05 * rng.standard_normal((T, D)))
    return -np.sort(-(np.arange(1, D + 1)[None, :] ** -slopes[:, None]) * noise, axis=1)


def _training_log(lines, rng):
    for step in np.linspace(0, 4000, lines).astype(int).tolist():
        terms = {"invariance": 2.0 - step / 4000 + 0.03 * rng.random(), "entropy": -4.0 - step / 4000}
        yield _train_row(step, sum(terms.values()), terms=terms, probe_train_accuracy=0.5, effective_rank=20.0)


def _spectrum_log(steps, tables):
    for k, step in enumerate(steps.tolist()):
        spectra = {name: Spectrum.from_eigenvalues(torch.from_numpy(rows[k]), n=2048) for name, rows in tables.items()}
        metrics = {name: SpectrumMetrics.from_spectrum(spectrum) for name, spectrum in spectra.items()}
        yield SpectrumRow(step=step, epoch=step / 100, **metrics, probe_accuracy=0.1 + 0.8 * step / 4000)
