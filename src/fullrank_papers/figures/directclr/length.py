"""Collapse against the length of training: the effective ranks of r and z over long runs behind three projectors.

The paper shows spectra after 100 epochs only. Here the learning rate is constant after the warm-up, so that a later
point of a run is what a longer run has. Each projector is trained at several rates; none is chosen. The images are few,
so a long run sees each of them many times.
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
from fullrank_papers.figures.trained import Training, at_rates, train
from fullrank_papers.plot_style import plot_runs, subplots

NAMES = ("two layers", "linear", "none")
START, LEAST = 0.25, 0.9  # the rank at the end is compared with this share of the rank after this share of the run


@dataclass(frozen=True)
class Size:
    """The recipe with the projector of two layers, the learning rates, the number of seeds, and the folder of the
    runs.
    """

    recipe: Recipe
    rates: tuple[float, ...]
    seeds: int
    runs: str = ""


def compute(size: Size, *, data: str | None, seed: int) -> Rows:
    found = {}
    for name in NAMES:
        recipes = {f"{x.optimizer.lr:g}": [x] for x in at_rates(with_projector(size.recipe, name), size.rates)}
        training = Training(measure, "length", lambda run: 0.0, size.seeds, size.runs)
        found[name] = train(recipes, training, data=data, seed=seed)
    return found


def measure(run: Run) -> Rows:
    """Return the epochs of the spectra, and the effective ranks of r and z there, on the same held-out images."""
    spectra = run.metrics.spectrum
    return {
        "epochs": [row.epoch for row in spectra],
        "r": [row.backbone.effective_rank for row in spectra],
        "z": [row.projector.effective_rank for row in spectra],
    }


def at(runs: Sequence[Rows], place: str, share: float) -> list[float]:
    """Return the effective rank of r or z, one per seed, at the first spectrum after a share of the run."""
    return [run[place][next(k for k, t in enumerate(run["epochs"]) if t >= share * run["epochs"][-1])] for run in runs]


def plot(rows: Rows) -> MplFigure:
    figure, (axes,) = subplots(1, 2, width=9.0, height=3.0)
    for axis, place in zip(axes, "rz", strict=True):
        for k, (name, by_rate) in enumerate(rows.items()):
            for style, (rate, runs) in zip(("-", "--", ":"), by_rate.items(), strict=False):
                label = f"{LABELS[name]}, rate {rate}"
                curves = [run[place] for run in runs]
                plot_runs(axis, runs[0]["epochs"], curves, color=f"C{k}", linestyle=style, label=label)
        axis.set(xlabel="epoch", ylabel=f"effective rank of {place}")
    axes[1].legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def evaluate_claims(rows: Rows) -> Verdicts:
    return {
        f"falls: {place}, {name}, {rate}": check_higher(
            [LEAST * rank for rank in at(runs, place, START)],
            at(runs, place, 1.0),
            unit="",
            scale=1.0,
            place=place,
            label=LABELS[name],
            rate=rate,
        )
        for name, by_rate in rows.items()
        for rate, runs in by_rate.items()
        for place in ("rz" if name != "none" else "r")  # without a projector z is r
    }


def lengthened(recipe: Recipe, *, epochs: int, images: int, samples: int) -> Recipe:
    """Return a recipe of the study with other epochs and images, a constant rate, and spectra during training."""
    schedule = ScheduleConfig(name="constant", warmup=recipe.schedule.warmup)
    data, spectrum = replace(recipe.data, subset=images), SpectrumConfig(samples=samples)
    return replace(recipe, epochs=epochs, schedule=schedule, data=data, spectrum=spectrum)


SIZES = {
    "smoke": Size(lengthened(study.SIZES["smoke"].recipe, epochs=1, images=512, samples=160), (1e-3,), seeds=1),
    "small": Size(
        lengthened(study.SIZES["small"].recipe, epochs=60, images=5000, samples=1280),
        rates=(3e-3, 3e-2),
        seeds=3,
        runs="runs/directclr",
    ),
}
