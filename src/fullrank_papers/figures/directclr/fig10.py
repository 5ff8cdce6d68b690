"""Fig. 10 and Appendix F: why all of r is useful although DirectCLR's loss sees only r[:d0].

The paper draws the argument and probes the sub-vector alone. We measure the ranks of the gradient and probe parts of r.
r[d0:2·d0] has as
many dimensions as the loss sees: it shows whether the rest is better, or only larger. A network trained at learning
rate zero shows whether the rest has learned. A network without its last shortcut shows whether the shortcut is the
reason. Removing it changes r[:d0] too, so there we compare the gap between the parts.
"""

from dataclasses import replace

from fullrank.recipes import Recipe
from fullrank.report.plot_style import subplots
from fullrank_papers.figures.directclr.study import IMAGES, SIZES, Size, run_study, values_per_seed, with_projector
from fullrank_papers.figures.figure import ClaimResult, Figure, MplFigure, Rows, our_correction, paper_claim
from fullrank_papers.figures.seeds import check_higher, holds_in_every_run

NETWORKS = {"DirectCLR": "DirectCLR", "no shortcut": "DirectCLR without the last shortcut", "untrained": "untrained"}
PARTS = {
    "whole": "all of r",
    "rest": "r[d0:], which gets no gradient",
    "first": "r[:d0], which the loss sees",
    "next": "r[d0:2·d0]",
}


def make_recipes(recipe: Recipe) -> dict[str, Recipe]:
    """Return DirectCLR's recipe, the same without the last shortcut, and the same at learning rate zero (BatchNorm sees
    the images).
    """
    directclr = with_projector(recipe, "DirectCLR")
    return {
        "DirectCLR": directclr,
        "no shortcut": replace(directclr, backbone=replace(directclr.backbone, last_residual=False)),
        "untrained": replace(directclr, optimizer=replace(directclr.optimizer, lr=0.0)),
    }


def compute(size: Size, *, data: str | None, seed: int) -> Rows:
    return run_study(size, make_recipes(size.recipe), data=data, seed=seed) | {"d0": size.recipe.projector.d0}


def plot(rows: Rows) -> MplFigure:
    figure, axes = subplots(1, 1, width=8.0, height=3.0)
    axis = axes[0, 0]
    for color, (part, label) in enumerate(PARTS.items()):
        for place, name in enumerate(NETWORKS):
            percentages = [100 * accuracy for accuracy in values_per_seed(rows[name], "accuracy", part)]
            height = [place + 0.18 * (color - 1.5)] * len(percentages)
            axis.plot(
                percentages,
                height,
                "os^D"[color],
                color=f"C{color}",
                markersize=5,
                alpha=0.7,
                label=None if place else label,
            )
    axis.set_yticks(range(len(NETWORKS)), NETWORKS.values())
    axis.invert_yaxis()
    axis.set(xlabel="accuracy of a linear probe, %", title=f"d0 = {rows['d0']}, one mark per seed")
    axis.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def evaluate_claims(rows: Rows) -> dict[str, ClaimResult]:
    accuracy = {(name, part): values_per_seed(rows[name], "accuracy", part) for name in NETWORKS for part in PARTS}
    gap = {
        name: [b - a for a, b in zip(accuracy[name, "first"], accuracy[name, "rest"], strict=True)] for name in NETWORKS
    }
    at_r, at_h = ([run["ranks"][place] for run in rows["DirectCLR"]] for place in ("representation", "block"))
    ranks_r, ranks_h = (", ".join(f"{rank} of {channels}" for rank, channels in ranks) for ranks in (at_r, at_h))
    whole, first, rest, following = (accuracy["DirectCLR", part] for part in ("whole", "first", "rest", "next"))
    return {
        "the gradient at r has rank d0 at most": paper_claim(
            f"≤ {rows['d0']}", ranks_r, holds_in_every_run(rank <= rows["d0"] for rank, _ in at_r)
        ),
        "at the last block's input the gradient has full rank": paper_claim(
            "all channels, in every run", ranks_h, holds_in_every_run(rank == channels for rank, channels in at_h)
        ),
        "all of r is better than the sub-vector (62.7 % against 47.9 % in the paper)": check_higher(whole, first),
        "r[d0:], which gets no gradient, is better than before training": check_higher(
            rest, accuracy["untrained", "rest"]
        ),
        "without the last shortcut r[d0:] loses more than r[:d0] does": check_higher(
            gap["DirectCLR"], gap["no shortcut"]
        ),
        "the dimensions that the loss sees are better than as many others: the rest is useful because it is larger": our_correction(
            *check_higher(first, following)[:3]
        ),
    }


FIGURE = Figure(
    title="Fig. 10 and Appendix F of Jing et al. 2022, DirectCLR",
    claim="The part of r without gradient is useful: the last block's shortcut carries h there, and the gradient at h has full rank.",
    sizes=SIZES,
    compute=compute,
    plot=plot,
    evaluate_claims=evaluate_claims,
    images=IMAGES,
)
