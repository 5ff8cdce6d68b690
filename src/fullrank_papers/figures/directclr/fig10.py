"""Fig. 10 and Appendix F: why all of r is useful although DirectCLR's loss sees only r[:d0].

The paper draws the argument and probes the sub-vector alone. We measure the ranks of the gradient and probe parts of r.
r[d0:2·d0] has as many dimensions as the loss sees: it shows whether the rest is better, or only larger. A network
trained at learning rate zero shows whether the rest has learned. A network without its last shortcut shows whether the
shortcut is the reason. Removing it changes r[:d0] too, so there we compare the gap between the parts.
"""

from dataclasses import replace

from fullrank_papers.figures.directclr.comparison import accuracies
from fullrank_papers.figures.directclr.study import SIZES as SIZES
from fullrank_papers.figures.directclr.study import Size, run_study, with_projector
from fullrank_papers.figures.figure import MplFigure, Rows, Verdicts, verdict
from fullrank_papers.figures.numerics import check_higher, holds_in_every_run
from fullrank_papers.plot_style import subplots

NETWORKS = {"DirectCLR": "DirectCLR", "no shortcut": "DirectCLR without the last shortcut", "untrained": "untrained"}
PARTS = {
    "whole": "all of r",
    "rest": "r[d0:], which gets no gradient",
    "first": "r[:d0], which the loss sees",
    "next": "r[d0:2·d0]",
}


def compute(size: Size, *, data: str | None, seed: int) -> Rows:
    """Train DirectCLR, the same without the last shortcut, and the same at learning rate zero (BatchNorm sees the
    images).
    """
    directclr = with_projector(size.recipe, "DirectCLR")
    recipes = {
        "DirectCLR": directclr,
        "no shortcut": replace(directclr, backbone=replace(directclr.backbone, last_residual=False)),
        "untrained": replace(directclr, optimizer=replace(directclr.optimizer, lr=0.0)),
    }
    return run_study(size, recipes, data=data, seed=seed) | {"d0": size.recipe.projector.d0}


def plot(rows: Rows) -> MplFigure:
    figure, axes = subplots(1, 1, width=8.0, height=3.0)
    axis = axes[0, 0]
    for k, (part, label) in enumerate(PARTS.items()):
        for place, name in enumerate(NETWORKS):
            percentages = [100 * accuracy for accuracy in accuracies(rows[name], part)]
            style = {"color": f"C{k}", "markersize": 5, "alpha": 0.7, "label": None if place else label}
            axis.plot(percentages, [place + 0.18 * (k - 1.5)] * len(percentages), "os^D"[k], **style)
    axis.set_yticks(range(len(NETWORKS)), NETWORKS.values())
    axis.invert_yaxis()
    axis.set(xlabel="accuracy of a linear probe, %", title=f"d0 = {rows['d0']}, one mark per seed")
    axis.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def evaluate_claims(rows: Rows) -> Verdicts:
    gap = {
        name: [b - a for a, b in zip(*(accuracies(rows[name], part) for part in ("first", "rest")), strict=True)]
        for name in NETWORKS
    }
    at_r, at_h = ([run["ranks"][place] for run in rows["DirectCLR"]] for place in ("representation", "block"))
    ranks_r, ranks_h = (", ".join(f"{rank} of {channels}" for rank, channels in ranks) for ranks in (at_r, at_h))
    whole, first, rest, following = (accuracies(rows["DirectCLR"], part) for part in ("whole", "first", "rest", "next"))
    return {
        "rank_at_r": verdict(ranks_r, holds_in_every_run(rank <= rows["d0"] for rank, _ in at_r), d0=rows["d0"]),
        "rank_at_block": verdict(ranks_h, holds_in_every_run(rank == channels for rank, channels in at_h)),
        "whole": check_higher(whole, first),
        "rest": check_higher(rest, accuracies(rows["untrained"], "rest")),
        "shortcut": check_higher(gap["DirectCLR"], gap["no shortcut"]),
        "larger": check_higher(first, following),
    }
