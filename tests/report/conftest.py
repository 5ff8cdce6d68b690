"""Run directories with a simulated training run."""

import io
import json
from dataclasses import asdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fullrank.evaluation.score import Evaluation, Score
from fullrank.report import RunSummary
from fullrank.run import SpectrumHistory
from fullrank.run.rows import AlarmRow, SpectrumMetrics, SpectrumRow, TrainRow, row_to_json
from fullrank.spectrum import Spectrum

RECIPE = {
    "name": "cifar10",
    "objective": "frossl",
    "hyper": {"invariance": 1.0, "log": True, "center": True, "normalize": "columns"},
    "data": {"source": "hf:cifar10", "train": "train", "test": "test"},
    "backbone": {"name": "resnet18", "arguments": {"channels": [32, 64, 96, 128]}, "stem": "3x3"},
    "projector": {"hidden": 1024, "out": 128, "layers": 3},
    "views": [{"size": 32, "flip": 0.5, "blur": 0.0}, {"size": 32, "flip": 0.5, "blur": 0.2}],
    "optimizer": {"name": "lars", "lr": 0.3, "weight_decay": 1e-4},
    "schedule": {"warmup": 10},
    "epochs": 40,
    "batch_size": 256,
    "seed": 0,
}


def spectra(rng: np.random.Generator, T: int, D: int, slope: float) -> np.ndarray:
    """Return power laws with a slope that flattens over training."""
    index = np.arange(1, D + 1)
    slopes = slope * (1 - 0.7 * np.linspace(0, 1, T)) + 0.3
    return -np.sort(-(index[None, :] ** -slopes[:, None]) * np.exp(0.05 * rng.standard_normal((T, D))), axis=1)


def picture(width: int = 34 * 8, height: int = 34 * 3, seed: int = 0) -> bytes:
    pixels = (
        np.random.default_rng(seed)
        .integers(0, 256, (height // 2, width // 2, 3), dtype=np.uint8)
        .repeat(2, 0)
        .repeat(2, 1)
    )
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def _train_row(step: int, loss: float = 1.0, **fields: Any) -> TrainRow:
    return TrainRow(
        **(
            {"step": step, "epoch": step / 100, "loss": loss, "terms": {}, "lr": 0.1, "images_per_second": 1900.0}
            | fields
        )
    )


def _spectrum_row(step: int = 100, *, probe_accuracy: float | None = 0.5, **metrics: Any) -> SpectrumRow:
    """Return a row with the same metrics at both locations."""
    healthy = {
        "effective_rank": 45.25,
        "condition_number": 9.0,
        "entropy": 3.0,
        "collapsed_dimensions": 0,
        "dimensions": 512,
    }
    both = SpectrumMetrics(**({"samples": 10_000} | healthy | metrics))
    return SpectrumRow(step=step, epoch=step / 100, backbone=both, projector=both, probe_accuracy=probe_accuracy)


def _alarm_row(step: int = 100, term: str = "variance", **fields: Any) -> AlarmRow:
    """Return an alarm about the effective rank; the probable cause is a missing term."""
    details = {"dimensions": 512, "samples": 2048, "terms": [term], "hyper": {term: 0.0}}
    observed = {
        "metric": "effective_rank",
        "observed": 1.2,
        "threshold": 2.0,
        "cause": "missing term",
        "details": details,
    }
    return AlarmRow(
        **(
            {"step": step, "epoch": step / 100, "alarm": "dimensional collapse", "where": "backbone"}
            | observed
            | fields
        )
    )


@pytest.fixture
def train_row() -> Callable[..., TrainRow]:
    """`train_row(step, loss, **fields)`."""
    return _train_row


@pytest.fixture
def spectrum_row() -> Callable[..., SpectrumRow]:
    """`spectrum_row(step, probe_accuracy=…, **metrics)`."""
    return _spectrum_row


@pytest.fixture
def alarm_row() -> Callable[..., AlarmRow]:
    """`alarm_row(step, term, **fields)`."""
    return _alarm_row


@pytest.fixture
def make_picture() -> Callable[..., bytes]:
    """`make_picture(width, height)`: a PNG of noise, which does not compress."""
    return picture


@pytest.fixture
def make_summary() -> Callable[..., RunSummary]:
    """`make_summary(**fields)`: a run with no other content."""
    return lambda **fields: RunSummary(**({"label": "run", "recipe": {}, "environment": {}} | fields))


@pytest.fixture
def make_spectra() -> Callable[..., SpectrumHistory]:
    """`make_spectra(steps, samples=100, backbone=table)`."""

    def make(steps: Any, samples: int = 100, **eigenvalues: np.ndarray) -> SpectrumHistory:
        return SpectrumHistory(steps=np.array(steps), samples=np.full(len(steps), samples), eigenvalues=eigenvalues)

    return make


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """`make_run("a", T=12, D_b=96, D=128, lines=200, slope=2.0, without=("views.png",), recipe={…}, alarms=2)` -> its
    directory."""

    def make(name: str = "run", **keywords: Any) -> Path:
        return write_run(tmp_path / name, **keywords)

    return make


def training_log(lines: int, speed: float, rng: np.random.Generator) -> list[TrainRow]:
    rows = []
    for step in np.linspace(0, 4000, lines).astype(int).tolist():
        t = (step / 4000) ** (1 / speed)
        terms = {
            "invariance": 0.2 + 1.5 * np.exp(-6 * t) + 0.03 * rng.random(),
            "entropy": -4.0 - 3 * t**0.5 + 0.05 * rng.random(),
        }
        accuracy = 0.1 + 0.75 * t**0.4 + 0.04 * rng.standard_normal()
        rows.append(
            _train_row(
                step, sum(terms.values()), terms=terms, probe_train_accuracy=accuracy, effective_rank=20 + 60 * t
            )
        )
    return rows


def spectrum_log(steps: np.ndarray, tables: dict[str, np.ndarray]) -> list[SpectrumRow]:
    rows = []
    for k, step in enumerate(steps.tolist()):
        measured = {
            location: Spectrum.from_eigenvalues(torch.from_numpy(table[k]), n=2048)
            for location, table in tables.items()
        }
        metrics = {location: SpectrumMetrics.from_spectrum(spectrum) for location, spectrum in measured.items()}
        rows.append(
            SpectrumRow(step=step, epoch=step / 100, **metrics, probe_accuracy=0.1 + 0.8 * (step / 4000) ** 0.3)
        )
    return rows


def write_run(
    path: Path,
    *,
    T: int = 12,
    D_b: int = 96,
    D: int = 128,
    slope: float = 2.0,
    lines: int = 200,
    without: tuple[str, ...] = (),
    recipe: dict[str, Any] | None = None,
    alarms: int = 0,
    seed: int = 0,
) -> Path:
    rng = np.random.default_rng(seed)
    path.mkdir(parents=True)
    steps = np.linspace(0, 4000, T).round().astype(np.int64)
    values = {"backbone": spectra(rng, T, D_b, slope), "projector": spectra(rng, T, D, slope / 2)}
    log = [*training_log(lines, 2 / slope, rng), *spectrum_log(steps, values)]
    log += [_alarm_row(900 + 10 * k) for k in range(alarms)]
    scores = [
        ("backbone", "linear (SGD)", 0.871, 0.004, 3),
        ("raw pixels", "linear (SGD)", 0.391, 0.002, 3),
        ("untrained backbone", "linear (SGD)", 0.448, 0.006, 3),
        ("backbone", "kNN", 0.842, None, 1),
        ("raw pixels", "kNN", 0.339, None, 1),
        ("backbone", "linear, 2 labels per class", 0.513, 0.031, 10),
    ]
    names = ("features", "probe", "value", "sd", "n")
    evaluation = Evaluation(
        model=path.name,
        data="photos[test]",
        chance=0.1,
        train_images=50000,
        test_images=10000,
        statement="trained on train, scored on test",
        scores=tuple(Score(**dict(zip(names, score, strict=True))) for score in scores),
        left_out=("SVM: too slow",),
    )
    files = {
        "recipe.json": json.dumps(RECIPE | (recipe or {}), indent=2),
        "environment.json": json.dumps(
            {
                "fullrank": "0.1.0",
                "python": "3.11.2",
                "torch": "2.11.0",
                "hardware": {"device": "cuda", "name": "NVIDIA H200"},
            }
            | {
                "command": "fullrank pretrain cifar10",
                "started": "2026-01-05T10:00:00Z",
                "duration_seconds": 7384.0,
                "commit": "0123abc",
            }
        ),
        "metrics.jsonl": "".join(json.dumps(row_to_json(row)) + "\n" for row in sorted(log, key=lambda row: row.step)),
        "evaluation.json": json.dumps({"evaluations": [asdict(evaluation)]}),
        "decode_errors.jsonl": '{"name": "a.jpg"}\n{"name": "b.jpg"}\n',
    }
    for name, text in files.items():
        if name not in without:
            (path / name).write_text(text, encoding="utf-8")
    if "views.png" not in without:
        (path / "views.png").write_bytes(picture())
    if "spectrum.npz" not in without:
        np.savez(path / "spectrum.npz", steps=steps, samples=np.full(T, 2048), **values)
    return path
