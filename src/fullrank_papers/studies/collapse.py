"""The README's figure: the spectrum over training of a healthy run and of dimensional collapse, and the alarm; and the
figure of the shapes of a spectrum.
"""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context

from fullrank import Run, pretrain
from fullrank.evaluation.spectrum import effective_ranks, plot_eigenvalues
from fullrank_papers import studies
from fullrank_papers.plot_style import MATPLOTLIB_STYLE, label_ends, subplots

FIGURES = Path("docs/figures")
RUNS = {"Barlow Twins": {}, "without redundancy term": {"hyper.redundancy": 0.0}}
# Run and location → name of the shape of its last spectrum.
SHAPES = {
    ("Barlow Twins", "backbone"): "slope: backbone",
    ("Barlow Twins", "projector"): "plateau: projector",
    ("without redundancy term", "projector"): "cliff: collapsed projector",
}


def measure(*, epochs: int = 20, folder: Path = Path("runs/collapse")) -> dict[str, Any]:
    """Train Barlow Twins on the digits with and without its redundancy term, and draw the spectra."""
    spectrum = {"spectrum.samples": 359, "spectrum.every": 5}
    options = {"objective": "barlow_twins", "epochs": epochs, "overwrite": True, **spectrum}
    runs = {name: pretrain("digits", out=folder / name, **options, **change) for name, change in RUNS.items()}
    with rc_context(MATPLOTLIB_STYLE):
        ranks = draw(runs, FIGURES / "collapse.svg")
        draw_shapes(runs, FIGURES / "shapes.svg")
    alarms = {name: [[alarm.step, alarm.message] for alarm in run.metrics.alarms] for name, run in runs.items()}
    return {"effective_rank": ranks, "alarms": alarms}


def draw(runs: dict[str, Run], path: Path) -> dict[str, list[float]]:
    """Draw eigenvalues over training, a panel per run, and the effective ranks, which are returned."""
    figure, ((*over, last),) = subplots(1, 3, width=9.0, height=2.8)
    ranks: dict[str, list[float]] = {}
    for axis, color, (name, run) in zip(over, ("C0", "C1"), runs.items(), strict=True):
        assert run.spectra, "the run measured spectra"
        history = run.spectra.comparable()
        ranks[name] = effective_ranks(history, "projector").round(2).tolist()
        plot_eigenvalues(axis, history, "projector")
        axis.set(title=name, ylim=(1e-9, 2))
        last.plot(history.steps, ranks[name], color=color, label=name)
        for alarm in run.metrics.alarms:
            at, arrow = float(np.interp(alarm.step, history.steps, ranks[name])), {"arrowstyle": "-|>", "color": color}
            last.annotate("alarm", (alarm.step, at), (0, 28), textcoords="offset points", ha="center", arrowprops=arrow)
    last.set(title="Effective rank", xlabel="step", ylim=(0, None))
    label_ends(last)
    figure.savefig(path, metadata={"Date": None})
    return ranks


def draw_shapes(runs: dict[str, Run], path: Path) -> None:
    """Draw the last spectra of `SHAPES`, on two logarithmic axes."""
    figure, ((axis,),) = subplots(width=6.0, height=3.2)
    for (name, part), label in SHAPES.items():
        history = runs[name].spectra
        assert history, "the run measured spectra"
        values = history.fullest().eigenvalues[part][-1]
        axis.loglog(range(1, len(values) + 1), values / values[0], label=label)
    axis.set(xlabel="index $j$ of the eigenvalue", ylabel="$λ_j / λ_1$", ylim=(1e-7, 2))
    label_ends(axis)
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    studies.run(measure, "collapse")
