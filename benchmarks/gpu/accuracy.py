"""Time to accuracy: how long FroSSL trains a ResNet-18 on CIFAR-10 until a linear probe, or kNN, reaches 80, 85 and 90
%, and what other objectives reach in the same number of epochs, each with its published
hyperparameters at a batch of 1,024.

Each part is one run of `fullrank.pretrain` with the settings of a candidate and a seed. Half and the whole of a run are
judged, with its weights frozen. The time is that of the training loop with its log, its
spectra and its checkpoints; compilation and the other work before the first steady step are counted apart, and judging
is not part of it.

The runs are those of `PLAN`, in order of worth. The length decides the schedule, so the shortest run that reaches an
accuracy gives its time.
"""

import statistics
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from rich.console import Console

import fullrank
from benchmarks.gpu.parts import Options, Part, Result, Results
from benchmarks.gpu.training import on_device, tiny
from fullrank.evaluation import accuracy, extract_features, gradient_probe, knn, standardize
from fullrank.evaluation.protocol import SgdProtocol
from fullrank.images import Device, MemoryImages, load_images, train_and_test
from fullrank.models import load
from fullrank.recipes import Recipe, resolve
from fullrank.run import Run
from fullrank.run.rows import TrainRow
from fullrank.spectrum import Spectrum
from fullrank.spectrum.functional import effective_rank

LEVELS = (0.80, 0.85, 0.90)
PROBES = ("linear", "kNN")
SEEDS = (0, 1, 2)
CHECKPOINTS = 2
SETTINGS: dict[str, dict[str, Any]] = {"batch 1024": {"batch_size": 1024}, "batch 256": {}} | {
    name: {"objective": name, "batch_size": 1024} for name in ("simclr", "barlow_twins", "vicreg", "byol")
}
"""Name → what differs from the recipe `cifar10`; learning rate and invariance weight follow, as for any recipe."""
PLAN = (
    *((name, 20) for name in ("batch 1024", "simclr", "vicreg", "byol", "barlow_twins")),
    *(("batch 1024", 100), ("batch 256", 20), ("batch 1024", 200)),
)
"""Settings and epochs of the runs, each with all seeds."""


def parts(options: Options, results: Results) -> Iterator[Part]:
    """Yield the parts of this piece, seed by seed."""
    for seed in (0, 1) if options.smoke else SEEDS:
        for name, epochs in (("batch 256", 1), ("simclr", 1)) if options.smoke else PLAN:
            part = f"{name}, {epochs} epochs, seed {seed}"
            yield Part(part, lambda each=(name, epochs, seed): train(options, results, *each))


def recipe_for(options: Options, name: str, epochs: int, seed: int, *, compile: bool) -> Recipe:
    """Return the recipe of a part."""
    recipe = resolve("digits" if options.smoke else "cifar10", {"epochs": epochs, "seed": seed, **SETTINGS[name]})
    recipe = on_device(tiny(recipe) if options.smoke else recipe, options.device, compile=compile)
    return replace(recipe, checkpoints=CHECKPOINTS, keep_checkpoints=-1)


def train(options: Options, results: Results, name: str, epochs: int, seed: int) -> Result:
    """Train once, and judge the checkpoints."""
    recipe = recipe_for(options, name, epochs, seed, compile=compiled_is_faster(results))
    data = None if options.smoke else options.data
    with tempfile.TemporaryDirectory() as folder:
        run = fullrank.pretrain(recipe, data, out=Path(folder) / "run", console=Console(quiet=True))
        startup, seconds = clock(run)
        steps = [checkpoint.step for checkpoint in run.checkpoints]
        found = [{"step": k, "seconds": round(seconds(k), 2)} | judge(options, run, k, seed) for k in steps]
        settings = {"name": name, "epochs": epochs, "seed": seed, "batch": recipe.batch_size, "shared": options.shared}
        settings |= {"compiled": recipe.machine.compile, "precision": recipe.machine.precision}
        times = {"startup_seconds": round(startup, 2), "training_seconds": found[-1]["seconds"]}
        times |= {name: run.environment[name] for name in ("duration_seconds", "spectrum_share")}
        return settings | times | {"accuracies": found}


def compiled_is_faster(results: Results) -> bool:
    """Return whether the piece throughput has found the compiled method to be faster at a batch of 256."""
    found = (results.parts("throughput").get(f"{variant}, batch 256", {}) for variant in ("eager", "compiled"))
    eager, compiled = (result.get("images_per_second", 0) for result in found)
    return compiled > eager


def clock(run: Run) -> tuple[float, Callable[[int], float]]:
    """Return the seconds before the first steady step, and a function from a step to the seconds of steady training
    until that step.

    The log has the mean speed since the first step, so step · batch / speed is the time at which a step was logged.
    """
    batch = run.recipe.batch_size
    times = [(row.step, row.step * batch / row.images_per_second) for row in run.metrics if isinstance(row, TrainRow)]
    (first, begun), (last, ended) = times[0], times[-1]
    startup = max(begun - first * (ended - begun) / (last - first), 0.0) if last > first else 0.0

    def seconds(step: int) -> float:
        logged, time = min(times, key=lambda item: abs(item[0] - step))
        return (time - startup) * step / logged

    return startup, seconds


@lru_cache(maxsize=1)
def images_of(source: str, channels: int) -> tuple[MemoryImages, MemoryImages]:
    """Return all training and test images, decoded."""
    splits = train_and_test(source)
    return load_images(splits.train, channels=channels), load_images(splits.test, channels=channels)


def judge(options: Options, run: Run, step: int, seed: int) -> dict[str, float]:
    """Return the accuracies of the probes on the frozen backbone of a checkpoint, and the effective rank of the test
    images."""
    model = load(f"{run.path}@{step}")
    images = images_of("digits" if options.smoke else str(options.data), run.recipe.data.channels)
    train, test = (extract_features(model.backbone, each, model.preprocess, Device()) for each in images)
    X, y, X_test, y_test = (tensor.to(options.device) for split in (train, test) for tensor in (split.X, split.labels))
    standardized = standardize(X, X_test)
    protocol = SgdProtocol(epochs=2) if options.smoke else SgdProtocol()
    linear = gradient_probe(standardized[0], y, standardized[1], protocol, seed=seed)
    found = {"linear": accuracy(linear.logits, y_test), "kNN": accuracy(knn(X, y, X_test).logits, y_test)}
    return found | {"effective_rank": effective_rank(Spectrum.from_embeddings(X_test).eigenvalues).item()}


def times_to(results: dict[str, Result], probe: str, level: float) -> tuple[str, list[float]] | None:
    """Return the settings that reach a level with all of their seeds in the shortest median time, with the seconds of
    each seed; runs that shared the GPU have no times."""
    groups: dict[str, list[float | None]] = {}
    for result in results.values():
        if "accuracies" in result and not result.get("shared"):
            reached = min((row["seconds"] for row in result["accuracies"] if row[probe] >= level), default=None)
            groups.setdefault(f"{result['name']}, {result['epochs']} epochs", []).append(reached)
    complete = {name: [t for t in times if t is not None] for name, times in groups.items() if None not in times}
    most = max(map(len, complete.values()), default=0)
    enough = {name: times for name, times in complete.items() if len(times) == most}
    return min(enough.items(), key=lambda item: statistics.median(item[1])) if enough else None


def row(result: Result) -> str:
    """Return the text of a result."""
    scores = ", ".join(f"{probe} {result['accuracies'][-1][probe]:.1%}" for probe in PROBES)
    times = f"{result['training_seconds']:.0f} s, before {result['startup_seconds']:.0f} s"
    return f"{scores}; {'the GPU was shared' if result.get('shared') else times}"


def summary(results: dict[str, Result]) -> Iterator[tuple[str, str]]:
    """Yield the time to each level."""
    for probe in PROBES:
        for level in LEVELS:
            if found := times_to(results, probe, level):
                times = f"{statistics.median(found[1]):.0f} s (n = {len(found[1])}, up to {max(found[1]):.0f} s)"
                yield f"{probe} {level:.0%}", f"{times}, {found[0]}"
