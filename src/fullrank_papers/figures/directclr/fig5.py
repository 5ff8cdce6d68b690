"""Fig. 5: the alignment |A| = |V₂ᵀU₁| of two linear layers after training. In the paper it is the identity.

From the paper's start, only modes that outgrow the conserved imbalance W₁W₁ᵀ − W₂ᵀW₂ align; from a balanced start, all
align. If the augmentation holds all grown modes at one level, their vectors are free, and only the subspace that they
span aligns. Within it, layers with a flat product pair the largest singular value of one with the smallest of the
other; this gives the antidiagonals.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cross_entropy

from fullrank_papers.figures.directclr.toy_models import (
    DIMENSIONS,
    ToySize,
    balanced_start,
    paper_start,
    seeded_generator,
)
from fullrank_papers.figures.figure import MplFigure, Rows, Verdicts, verdict
from fullrank_papers.figures.numerics import normal, quantiles, spread
from fullrank_papers.plot_style import THEORY_LINE, subplots
from fullrank_papers.theory.flow import gradient
from fullrank_papers.theory.infonce import imbalances, linear_vector_field
from fullrank_papers.theory.infonce_alignment import (
    alignment_lower_bound,
    degenerate_groups,
    layer_alignment,
    subspace_cosines,
)

ALIGNED = 0.93  # |A_kk| from which a mode counts as aligned
RELEASED_RATE = 0.01  # learning rate in the authors' toy code
GROUP_RATIO = 2.0  # a group of singular values ends if the next is smaller by more than this factor
# Name → title, and the augmentation's second moment k (the data's variance is 1); 1e-6 = 0.001² is that of the authors'
# toy code.
CASES = {
    "paper": ("the paper's start", 1e-6),
    "balanced": ("balanced start", 1e-6),
    "level": ("strong augmentation", 0.25),
    "released": ("loss of the authors' code", 1e-6),
}


@dataclass(frozen=True)
class Size(ToySize):
    seeds: int  # networks per case; the first is drawn, and of the others |A_kk| is stored
    balanced_seeds: int  # networks of the balanced start, which differ little
    released_steps: int  # steps with the loss and the learning rate of the authors' toy code


def measure_alignment(weights: list[Tensor]) -> dict[str, list]:
    """Return |A|, the singular values of both layers, the lower bound for |A_kk|, and the cosines of the first group's
    subspaces.
    """
    s1, s2 = map(torch.linalg.svdvals, weights)
    A, groups = layer_alignment(*weights), degenerate_groups(s1, ratio=GROUP_RATIO)
    return {
        "A": A.abs().tolist(),
        "diagonal": A.diagonal().abs().tolist(),
        "s1": s1.tolist(),
        "s2": s2.tolist(),
        "floor": alignment_lower_bound(s1, s2, imbalances(weights)[0]).tolist(),
        "cosines": subspace_cosines(A, groups)[0].tolist(),
    }


def compute(size: Size, *, data: str | None, seed: int) -> Rows:
    rows: Rows = {"t": size.end}
    for number, case in enumerate(CASES):
        first, *others = (measure_alignment(list(W)) for W in zip(*train_case(case, number, size, seed), strict=True))
        rows[case] = [first] + [{key: run[key] for key in ("diagonal", "floor", "cosines")} for run in others]
    return rows


def train_case(case: str, number: int, size: Size, seed: int) -> list[Float[Tensor, "S h m"]]:
    """Return the trained layers of all starts of a case, which are trained at once."""
    rng, k = seeded_generator(seed, number), CASES[case][1]
    count = size.balanced_seeds if case == "balanced" else size.seeds
    starts = [balanced_start(rng) if case == "balanced" else paper_start(rng) for _ in range(count)]
    weights = [torch.stack(layers) for layers in zip(*starts, strict=True)]
    flow, rate, steps = linear_flows, size.rate, size.steps
    if case == "released":
        flow, rate, steps = released_flows, RELEASED_RATE / size.N, size.released_steps
    for _ in range(steps):
        x = normal(count, size.N, DIMENSIONS, rng=rng)
        pairs = torch.stack([x, x + k**0.5 * normal(count, size.N, DIMENSIONS, rng=rng)], 1)
        weights = [W + rate * velocity for W, velocity in zip(weights, flow(weights, pairs), strict=True)]
    return weights


def linear_flows(weights: list[Tensor], x: Float[Tensor, "S 2 N m"]) -> list[Tensor]:
    """Return `linear_vector_field` of each start."""
    W1, W2 = weights
    return list(torch.vmap(lambda first, second, pairs: tuple(linear_vector_field([first, second], pairs)))(W1, W2, x))


def released_flows(weights: list[Tensor], x: Float[Tensor, "S 2 N m"]) -> list[Tensor]:
    """Return minus the gradient of the loss in the authors' toy code: inner products between the two views, at
    temperature 0.1, summed over the starts.
    """

    def loss(weights: tuple[Tensor, ...]) -> Tensor:
        Z = x @ (weights[1] @ weights[0]).mT[:, None]
        logits = Z[:, 0] @ Z[:, 1].mT / 0.1
        return cross_entropy(logits.flatten(0, 1), torch.arange(x.shape[2]).repeat(len(x)), reduction="sum")

    return [-slope for slope in gradient(loss, tuple(weights))]


def plot(rows: Rows) -> MplFigure:
    figure, (maps, lines) = subplots(2, 4, width=11.0, height=5.2, height_ratios=[1.5, 1])
    index = range(1, DIMENSIONS + 1)
    for case, top, bottom in zip(CASES, maps, lines, strict=True):
        run = rows[case][0]
        image = top.imshow(
            run["A"], vmin=0, vmax=1, cmap="gray_r", extent=(0.5, DIMENSIONS + 0.5, DIMENSIONS + 0.5, 0.5)
        )
        top.set(title=CASES[case][0], xlabel="left vector of W₁", ylabel="right vector of W₂")
        bottom.plot(index, run["diagonal"], "o", markersize=4, label="|A_kk|")
        label = "cosines of the subspaces of grown modes"
        bottom.plot(index[: len(run["cosines"])], run["cosines"], "x", markersize=5, color="C1", label=label)
        bottom.plot(index, run["floor"], **THEORY_LINE, label="lower bound of |A_kk| (theory)")
        bottom.set(xlabel="index of the singular value k", ylim=(-0.05, 1.08))
        for axis in (top, bottom):
            axis.set_xticks([1, 4, 8, 12, 16])
        top.set_yticks([1, 4, 8, 12, 16])
    lines[0].set_ylabel("alignment")
    figure.legend(*lines[0].get_legend_handles_labels(), loc="upper right", ncols=3)
    figure.colorbar(image, ax=list(maps), shrink=0.8, label="|A|")
    return figure


def evaluate_claims(rows: Rows) -> Verdicts:
    counts = {case: [sum(a > ALIGNED for a in run["diagonal"]) for run in rows[case]] for case in CASES}
    counted = {
        case: f"{spread(per_start, 0)} of {DIMENSIONS}, median and 5 % to 95 % of {len(per_start)} starts"
        for case, per_start in counts.items()
    }
    below = max(f - a for case in CASES for r in rows[case] for a, f in zip(r["diagonal"], r["floor"], strict=True))
    means = [sum(run["diagonal"][: len(run["cosines"])]) / len(run["cosines"]) for run in rows["level"]]
    cosines = {case: [min(run["cosines"]) for run in rows[case]] for case in CASES}
    mixed = sum(min(run["diagonal"][: len(run["cosines"])]) <= ALIGNED for run in rows["paper"])
    smallest = min(min(run["diagonal"]) for run in rows["balanced"])
    return {
        "paper": verdict(f"{counted['paper']}, at t = {rows['t']:.3g}", min(counts["paper"]) == DIMENSIONS),
        "released": verdict(counted["released"], min(counts["released"]) == DIMENSIONS),
        "balanced": verdict(f"the smallest {smallest:.4f}", min(counts["balanced"]) == DIMENSIONS),
        "bound": verdict(f"{-below:.1g} above it or more", below < 1e-6),
        "subspace": verdict(
            f"{spread(cosines['paper'], 3)}; {mixed} of {len(rows['paper'])} starts",
            quantiles(cosines["paper"])[1] > 0.95 and mixed > 0,
        ),
        "level": verdict(
            f"{spread(means)} and {spread(cosines['level'], 3)}",
            quantiles(means)[2] < 0.8 and quantiles(cosines["level"])[1] > 0.95,
        ),
    }


SIZES = {
    "smoke": Size(N=64, steps=700, learning_rate=0.1, seeds=3, balanced_seeds=1, released_steps=700),
    "small": Size(N=128, steps=1800, learning_rate=0.1, seeds=40, balanced_seeds=5, released_steps=3000),
    "paper": Size(N=128, steps=10_000, learning_rate=0.03, seeds=100, balanced_seeds=10, released_steps=10_000),
}
