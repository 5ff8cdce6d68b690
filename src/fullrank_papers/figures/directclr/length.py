"""Collapse against the length of training: the effective ranks of r and z over long runs behind three projectors.

The paper shows spectra after 100 epochs only. Here the learning rate, the best of several, is constant after the
warm-up, so that a later point of a run is what a longer run has. The images are few, so that many epochs take little
time. Ranks are those of ten held-out images per dimension.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fullrank.recipes import Recipe, SpectrumConfig
from fullrank.run import Run
from fullrank.training import ScheduleConfig
from fullrank_papers.figures.directclr import study
from fullrank_papers.figures.directclr.study import LABELS, with_projector
from fullrank_papers.figures.figure import MplFigure, Rows, Verdicts
from fullrank_papers.figures.numerics import check_higher
from fullrank_papers.figures.trained import Training, train
from fullrank_papers.plot_style import plot_runs, subplots

NAMES = ("two layers", "linear", "none")


@dataclass(frozen=True)
class Size:
    """The recipe with the projector of two layers, the number of seeds, the learning rates, and the folder of the
    runs.
    """

    recipe: Recipe
    seeds: int
    rates: tuple[float, ...] = ()
    runs: str = ""


def compute(size: Size, *, data: str | None, seed: int) -> Rows:
    training = Training(measure, "length", lambda found: found["accuracy"], size.seeds, size.rates, size.runs)
    recipes = {name: with_projector(size.recipe, name) for name in NAMES}
    return train(recipes, training, data=data, seed=seed)


def measure(run: Run) -> Rows:
    """Return the epochs of the spectra, the effective ranks of r and z there, the learning rate, and the accuracy of
    the online probe at the end.
    """
    spectra = run.metrics.spectrum
    return {
        "epochs": [row.epoch for row in spectra],
        "r": [row.full_metrics("backbone").effective_rank for row in spectra],
        "z": [row.full_metrics("projector").effective_rank for row in spectra],
        "rate": run.recipe.optimizer.lr,
        "accuracy": spectra[-1].probe_accuracy,
    }


def at(runs: Sequence[Rows], place: str, share: float) -> list[float]:
    """Return the effective rank of r or z, one per seed, at the first spectrum after a share of the run."""
    return [run[place][next(k for k, t in enumerate(run["epochs"]) if t >= share * run["epochs"][-1])] for run in runs]


def plot(rows: Rows) -> MplFigure:
    figure, (axes,) = subplots(1, 2, width=9.0, height=3.0)
    for axis, place in zip(axes, "rz", strict=True):
        for k, (name, runs) in enumerate(rows.items()):
            label = f"{LABELS[name]}, rate {runs[0]['rate']:g}"
            plot_runs(axis, runs[0]["epochs"], [run[place] for run in runs], color=f"C{k}", label=label)
        axis.set(xlabel="epoch", ylabel=f"effective rank of {place}")
    axes[0].legend()
    return figure


def evaluate_claims(rows: Rows) -> Verdicts:
    return {
        f"falls: {place}, {name}": check_higher(
            at(runs, place, 0.25), at(runs, place, 1.0), unit="", scale=1.0, place=place, label=LABELS[name]
        )
        for name, runs in rows.items()
        for place in ("rz" if name != "none" else "r")  # without a projector z is r
    }


def lengthened(recipe: Recipe, *, epochs: int, images: int, samples: int) -> Recipe:
    """Return a recipe of the study with other epochs and images, a constant rate, and spectra during training."""
    schedule = ScheduleConfig(name="constant", warmup=recipe.schedule.warmup)
    data, spectrum = replace(recipe.data, subset=images), SpectrumConfig(samples=samples)
    return replace(recipe, epochs=epochs, schedule=schedule, data=data, spectrum=spectrum)


SIZES = {
    "smoke": Size(lengthened(study.SIZES["smoke"].recipe, epochs=1, images=512, samples=160), seeds=1),
    "small": Size(
        lengthened(study.SIZES["small"].recipe, epochs=60, images=5000, samples=1280),
        seeds=3,
        rates=(3e-3, 1e-2, 3e-2, 1e-1),
        runs="runs/directclr",
    ),
}
