"""Run directories as a training run would write them, from a small model of training."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fullrank.report import Record

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
    "batch": 256,
    "seed": 0,
}


def spectra(rng: np.random.Generator, T: int, D: int, slope: float) -> np.ndarray:
    """Power laws whose slope flattens over training: dimensions fill up."""
    index = np.arange(1, D + 1)
    slopes = slope * (1 - 0.7 * np.linspace(0, 1, T)) + 0.3
    return -np.sort(-(index[None, :] ** -slopes[:, None]) * np.exp(0.05 * rng.standard_normal((T, D))), axis=1)


def effective_rank(eigenvalues: np.ndarray) -> float:
    p = np.sqrt(eigenvalues) / np.sqrt(eigenvalues).sum()
    return float(np.exp(-(p * np.log(p)).sum()))


def picture(width: int = 34 * 8, height: int = 34 * 3, seed: int = 0) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (height // 2, width // 2, 3), dtype=np.uint8).repeat(2, 0).repeat(2, 1)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def train_line(step: int, rng: np.random.Generator, *, speed: float) -> dict[str, Any]:
    t = (step / 4000) ** (1 / speed)
    terms = {"invariance": 0.2 + 1.5 * np.exp(-6 * t) + 0.03 * rng.random(), "entropy": -4.0 - 3 * t**0.5 + 0.05 * rng.random()}
    return {
        "step": step,
        "epoch": step / 100,
        "kind": "train",
        "loss": sum(terms.values()),
        "terms": terms,
        "lr": 0.3 * (1 - t),
        "images_per_second": 1900.0,
        "probe_loss": 2.3 - t,
        "probe_train_accuracy": 0.1 + 0.75 * t**0.4 + 0.04 * rng.standard_normal(),
        "effective_rank": 20 + 60 * t,
    }


def watch_line(step: int, values: dict[str, np.ndarray]) -> dict[str, Any]:
    measures = {
        part: {
            "effective_rank": effective_rank(eigenvalues),
            "condition_number": float(eigenvalues[0] / eigenvalues[-1]),
            "entropy": 3.0,
            "collapsed_dimensions": 0,
            "dimensions": len(eigenvalues),
            "samples": 2048,
        }
        for part, eigenvalues in values.items()
    }
    return {"step": step, "epoch": step / 100, "kind": "spectrum", **measures, "probe_accuracy": 0.1 + 0.8 * (step / 4000) ** 0.3}


@pytest.fixture
def make_picture() -> Callable[..., bytes]:
    """`make_picture(width, height)`: a PNG of noise, which does not compress."""
    return picture


@pytest.fixture
def make_record() -> Callable[..., Record]:
    """A record with nothing in it but what is given."""
    nothing = dict.fromkeys(("spectra", "evaluation", "views")) | dict.fromkeys(("train", "spectrum_rows", "warnings", "notes"), ())
    return lambda **given: Record(**({"label": "run", "recipe": {}, "environment": {}, "skipped": 0} | nothing | given))


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """`make_run("a", T=12, D_b=96, D=128, lines=200, slope=2.0, without=("views.png",), recipe={…}, warnings=2)` -> its directory."""

    def make(name: str = "run", **keywords: Any) -> Path:
        return write_run(tmp_path / name, **keywords)

    return make


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
    warnings: int = 0,
    seed: int = 0,
) -> Path:
    rng = np.random.default_rng(seed)
    path.mkdir(parents=True)
    steps = np.linspace(0, 4000, T).round().astype(np.int64)
    values = {"backbone": spectra(rng, T, D_b, slope), "projector": spectra(rng, T, D, slope / 2)}
    log = [train_line(int(step), rng, speed=2 / slope) for step in np.linspace(0, 4000, lines)]
    log += [watch_line(int(step), {part: table[k] for part, table in values.items()}) for k, step in enumerate(steps)]
    remedy = "lower the learning rate"
    log += [{"step": 900 + 10 * k, "kind": "alarm", "message": f"{k + 3} dimensions died", "remedy": remedy} for k in range(warnings)]
    scores = [
        ("backbone", "linear (SGD)", 0.871, 0.004, 3),
        ("raw pixels", "linear (SGD)", 0.391, 0.002, 3),
        ("untrained backbone", "linear (SGD)", 0.448, 0.006, 3),
        ("backbone", "kNN", 0.842, None, 1),
        ("raw pixels", "kNN", 0.339, None, 1),
        ("backbone", "linear, 2 labels a class", 0.513, 0.031, 10),
    ]
    files = {
        "recipe.json": json.dumps(RECIPE | (recipe or {}), indent=2),
        "environment.json": json.dumps(
            {"fullrank": "0.1.0", "python": "3.11.2", "torch": "2.11.0", "hardware": {"device": "cuda", "name": "NVIDIA H200"}}
            | {"command": "fullrank pretrain cifar10", "started": "2026-01-05T10:00:00Z", "duration_seconds": 7384.0, "commit": "0123abc"}
        ),
        "metrics.jsonl": "".join(json.dumps(line) + "\n" for line in sorted(log, key=lambda line: line["step"])),
        "evaluation.json": json.dumps(
            {"model": path.name, "train_images": 50000, "test_images": 10000, "statement": "trained on train, scored on test"}
            | {"scores": [dict(zip(("features", "probe", "accuracy", "sd", "n"), score, strict=True)) for score in scores]}
            | {"left_out": ["SVM: too slow"]}
        ),
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
