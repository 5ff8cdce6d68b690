"""Alignment |A| = |V₂ᵀU₁| of two linear layers after training: the identity, as the paper has it, or not.

From the paper's start only the modes that outgrow the conserved imbalance W₁W₁ᵀ − W₂ᵀW₂ align; a balanced start aligns all. Where the
augmentation holds all grown modes at one level, their vectors are free, and what aligns is the subspace that they span. Within it, layers
whose product is level pair the largest singular value of one with the smallest of the other: hence the antidiagonals.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fullrank.dynamics.infonce import imbalances, linear_vector_field, train_infonce
from fullrank.dynamics.infonce_alignment import (
    alignment_lower_bound,
    balanced_layers,
    degenerate_groups,
    layer_alignment,
    subspace_cosines,
    svd,
)
from fullrank.reproduce.directclr.toy import DIMENSIONS, batches, decaying, generator, released_flow, rotation, unbalanced_start
from fullrank.reproduce.draw import THEORY, subplots
from fullrank.reproduce.figure import Claim, Figure, Rows

ALIGNED = 0.93  # |A_kk| from which a mode counts as aligned
RELEASED_RATE = 0.01  # learning rate of the released toy code
GROWN = 2.0  # a gap in the singular values by more than this factor ends a group
CASES = {
    "paper": ("the paper's start", 1e-6),
    "balanced": ("balanced start", 1e-6),
    "level": ("strong augmentation", 0.25),
    "released": ("released toy loss", 1e-6),
}
"""Name → title and the augmentation's second moment k (the data's variance is 1): 0.001² is that of the released toy code."""


@dataclass(frozen=True)
class Size:
    """How much is trained."""

    N: int
    """Samples of a batch."""
    steps: int
    learning_rate: float
    """Of the loss as a mean over the batch."""
    seeds: int
    """Starts of each kind; the first is drawn."""


def start_of(case: str, rng: torch.Generator) -> list[Tensor]:
    if case == "balanced":
        return balanced_layers(rotation(rng) * decaying().square() @ rotation(rng).mT, 2)
    return unbalanced_start(rng)


def measured(weights: list[Tensor]) -> dict[str, list]:
    first, second = map(svd, weights)
    A, groups = layer_alignment(first, second), degenerate_groups(first.S, ratio=GROWN)
    return {
        "A": A.abs().tolist(),
        "s1": first.S.tolist(),
        "s2": second.S.tolist(),
        "floor": alignment_lower_bound(first.S, second.S, imbalances(weights)[0]).tolist(),
        "cosines": subspace_cosines(A, groups)[0].tolist(),
    }


def compute(size: Size, *, data: str | None, seed: int) -> Rows:
    def trained(case: str, number: int) -> dict[str, list]:
        rng, k = generator(seed, number), CASES[case][1]
        start, pairs = start_of(case, rng), batches(size.N, torch.full((DIMENSIONS,), k, dtype=torch.float64), rng=rng)
        flow, rate = (released_flow, RELEASED_RATE) if case == "released" else (linear_vector_field, size.learning_rate)
        return measured([W[0] for W in train_infonce(start, pairs, learning_rate=rate / size.N, steps=[size.steps], vector_field=flow)])

    return {"t": size.learning_rate / size.N * size.steps} | {
        case: [trained(case, number) for number in range(size.seeds)] for case in CASES
    }


def diagonal(run: dict) -> list[float]:
    return [run["A"][k][k] for k in range(DIMENSIONS)]


def plot(rows: Rows):
    figure, (maps, lines) = subplots(2, 4, width=11.0, height=5.2, height_ratios=[1.5, 1])
    index = range(1, DIMENSIONS + 1)
    for case, top, bottom in zip(CASES, maps, lines, strict=True):
        run = rows[case][0]
        image = top.imshow(run["A"], vmin=0, vmax=1, cmap="gray_r", extent=(0.5, DIMENSIONS + 0.5, DIMENSIONS + 0.5, 0.5))
        top.set(title=CASES[case][0], xlabel="left vector of W₁", ylabel="right vector of W₂")
        bottom.plot(index, diagonal(run), "o", markersize=4, label="|A_kk|")
        bottom.plot(
            range(1, len(run["cosines"]) + 1),
            run["cosines"],
            "x",
            markersize=5,
            color="C1",
            label="cosines of the subspaces of grown modes",
        )
        bottom.plot(index, run["floor"], **THEORY, label="floor for |A_kk| (theory)")
        bottom.set(xlabel="index of the singular value k", ylim=(-0.05, 1.08))
        for axis in (top, bottom):
            axis.set_xticks([1, 4, 8, 12, 16])
        top.set_yticks([1, 4, 8, 12, 16])
    lines[0].set_ylabel("alignment")
    figure.legend(*lines[0].get_legend_handles_labels(), loc="upper right", ncols=3)  # beside the title
    figure.colorbar(image, ax=list(maps), shrink=0.8, label="|A|")
    return figure


def claims(rows: Rows) -> list[Claim]:
    counts = {case: [sum(a > ALIGNED for a in diagonal(run)) for run in rows[case]] for case in CASES}
    each = {case: f"{', '.join(map(str, found))} of {DIMENSIONS}, by start" for case, found in counts.items()}
    below = max(f - a for case in CASES for run in rows[case] for a, f in zip(diagonal(run), run["floor"], strict=True))
    level = rows["level"]
    inside = [sum(diagonal(run)[: len(run["cosines"])]) / len(run["cosines"]) for run in level]
    worst = [min(run["cosines"]) for run in level]
    return [
        Claim(
            "|A| converges to the identity",
            expected=f"all {DIMENSIONS} |A_kk| above {ALIGNED}",
            measured=f"{each['paper']}, at t = {rows['t']:.3g}",
            holds=min(counts["paper"]) == DIMENSIONS,
        ),
        Claim(
            "|A| converges to the identity, with the loss of the released toy code in place of eq. 2",
            expected=f"all {DIMENSIONS} |A_kk| above {ALIGNED}",
            measured=each["released"],
            holds=min(counts["released"]) == DIMENSIONS,
        ),
        Claim(
            "from a balanced start |A| is the identity",
            expected=f"all {DIMENSIONS} |A_kk| above {ALIGNED}",
            measured=f"the smallest {min(min(diagonal(run)) for run in rows['balanced']):.4f}",
            holds=min(counts["balanced"]) == DIMENSIONS,
            corrected=True,
        ),
        Claim(
            "every |A_kk| is at least √(1 − ‖W₁W₁ᵀ − W₂ᵀW₂‖²/gap²), gap = min |σ₁ₖ² − σ₂ⱼ²| over j ≠ k",
            expected="|A_kk| never below this floor",
            measured=f"{-below:.1g} above it or more",
            holds=below < 1e-6,
            corrected=True,
        ),
        Claim(
            "where singular values are nearly equal, blocks align, single vectors do not",
            expected="|A_kk| of the grown modes < 0.8 on average, cosines of the subspaces > 0.95",
            measured=f"{max(inside):.2f} and {min(worst):.3f} at the worst start",
            holds=max(inside) < 0.8 and min(worst) > 0.95,
        ),
    ]


FIGURE = Figure(
    title="Fig. 5 of Jing et al. 2022, DirectCLR",
    claim="Two linear layers align: |A| = |V₂ᵀU₁| converges to the identity.",
    sizes={
        "smoke": Size(N=64, steps=700, learning_rate=0.1, seeds=1),
        "small": Size(N=128, steps=6000, learning_rate=0.03, seeds=3),
        "paper": Size(N=128, steps=10_000, learning_rate=0.03, seeds=10),
    },
    compute=compute,
    plot=plot,
    claims=claims,
)
