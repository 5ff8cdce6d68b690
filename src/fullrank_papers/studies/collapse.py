"""The README's figure: the spectrum over training of a healthy run and of dimensional collapse, and the alarm."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context

from fullrank import Run, pretrain
from fullrank.evaluation.spectrum import effective_ranks
from fullrank_papers import studies
from fullrank_papers.plot_style import MATPLOTLIB_STYLE, color_scale, subplots

RUNS = {"VICReg": {}, "VICReg without covariance term": {"hyper.covariance": 0.0}}


def measure(*, epochs: int = 20, folder: Path = Path("runs/collapse")) -> dict[str, Any]:
    """Train VICReg on the digits with and without its covariance term, and draw the spectra of its projector."""
    options = {"objective": "vicreg", "epochs": epochs, "spectrum.samples": 359, "spectrum.every": 5, "overwrite": True}
    runs = {name: pretrain("digits", out=folder / name, **options, **change) for name, change in RUNS.items()}
    with rc_context(MATPLOTLIB_STYLE):
        ranks = draw(runs, Path("docs/figures/collapse.svg"))
    alarms = {name: [[alarm.step, alarm.message] for alarm in run.metrics.alarms] for name, run in runs.items()}
    return {"effective_rank": ranks, "alarms": alarms}


def draw(runs: dict[str, Run], path: Path) -> dict[str, list[float]]:
    """Draw eigenvalues over training, a panel per run, and the effective ranks, which are returned."""
    figure, ((*over, last),) = subplots(1, 3, width=9.0, height=2.8)
    ranks: dict[str, list[float]] = {}
    for axis, color, (name, run) in zip(over, ("C0", "C1"), runs.items(), strict=True):
        assert run.spectra, "the run measured spectra"
        history = run.spectra.comparable()
        steps, values = history.steps, history.eigenvalues["projector"]
        ranks[name] = rank = effective_ranks(history, "projector").round(2).tolist()
        chosen = np.unique(np.geomspace(1, values.shape[1], 16).astype(int))
        for j, shade in zip(chosen, color_scale(len(chosen)), strict=True):
            axis.semilogy(steps, np.maximum(values[:, j - 1] / values[:, 0], 1e-9), color=shade, linewidth=1)
        axis.set(title=name, xlabel="step", ylim=(1e-9, 2), ylabel="$λ_j / λ_1$, projector")
        last.plot(steps, rank, color=color)
        last.text(steps[-1], rank[-1] + 3, name.removeprefix("VICReg "), color=color, ha="right")
        for alarm in run.metrics.alarms:
            last.plot(alarm.step, 14, "v", color=color, markersize=8)
            last.text(alarm.step, 19, "alarm", ha="center")
    last.set(title="Effective rank", xlabel="step", ylim=(0, None))
    figure.savefig(path, metadata={"Date": None})
    return ranks


if __name__ == "__main__":
    studies.run(measure, "collapse")
