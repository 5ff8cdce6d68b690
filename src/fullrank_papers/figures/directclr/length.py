"""Collapse against the length of training: the effective ranks of r and z over one long run behind three projectors.

The paper shows spectra after 100 epochs only. Here the learning rate is constant after the warm-up, so that a later
point of a run is what a longer run has. The images are few, so that many epochs take little time.
"""

from dataclasses import replace
from statistics import fmean

from fullrank.recipes import SpectrumConfig
from fullrank.training import ScheduleConfig
from fullrank_papers.figures.directclr import study
from fullrank_papers.figures.directclr.study import LABELS, Size, run_projectors
from fullrank_papers.figures.figure import MplFigure, Rows, Verdicts
from fullrank_papers.figures.numerics import check_higher
from fullrank_papers.plot_style import plot_runs, subplots

NAMES = ("two layers", "linear", "none")
PLACES = {"r": 1, "z": 2}  # column of a point of "length"


def compute(size: Size, *, data: str | None, seed: int) -> Rows:
    return run_projectors(size, NAMES, data=data, seed=seed)


def ranks(rows: Rows, name: str, place: str, share: float) -> list[float]:
    """Return the effective rank of r or z, one per seed, at the first point after a share of the run."""
    found = []
    for run in rows[name]:
        points = run["length"]
        found.append(next(point[PLACES[place]] for point in points if point[0] >= share * points[-1][0]))
    return found


def plot(rows: Rows) -> MplFigure:
    figure, (axes,) = subplots(1, 2, width=9.0, height=3.0)
    for axis, (place, column) in zip(axes, PLACES.items(), strict=True):
        for k, name in enumerate(NAMES):
            epochs, *_ = zip(*rows[name][0]["length"], strict=True)
            curves = [[point[column] for point in run["length"]] for run in rows[name]]
            label = f"{LABELS[name]}, rate {fmean(run['rate'] for run in rows[name]):g}"
            plot_runs(axis, epochs, curves, color=f"C{k}", label=label)
        axis.set(xlabel="epoch", ylabel=f"effective rank of {place}")
    axes[0].legend()
    return figure


def evaluate_claims(rows: Rows) -> Verdicts:
    return {
        f"falls: {place}, {name}": check_higher(
            ranks(rows, name, place, 0.25),
            ranks(rows, name, place, 1.0),
            unit="",
            scale=1.0,
            place=place,
            label=LABELS[name],
        )
        for name in NAMES
        for place in PLACES
        if (place, name) != ("z", "none")  # z is r
    }


def lengthened(size: Size, *, epochs: int, images: int) -> Size:
    """Return the size of the study with another number of epochs and of images, and spectra during training."""
    schedule = ScheduleConfig(name="constant", warmup=size.recipe.schedule.warmup)
    data = replace(size.recipe.data, subset=images)
    recipe = replace(size.recipe, epochs=epochs, schedule=schedule, data=data, spectrum=SpectrumConfig())
    return replace(size, recipe=recipe)


SIZES = {
    "smoke": lengthened(study.SIZES["smoke"], epochs=1, images=512),
    "small": lengthened(study.SIZES["small"], epochs=60, images=5000),
}
