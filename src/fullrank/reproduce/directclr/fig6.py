"""Singular values of two linear layers and eigenvalues of the embeddings' covariance over time; the theory of aligned layers on top.

The theory is eq. 10-11 with a_k = v₁ᵀXv₁ and the other layer's singular values of each moment. From a balanced start it is exact; from
the paper's, whose low modes never align, it is not. One batch is trained on throughout, so that there is one X to take a_k from.
"""

from dataclasses import dataclass
from itertools import repeat

import torch
from torch import Tensor

from fullrank.dynamics.infonce import driving_matrix, imbalances, softmax_weights, train_infonce
from fullrank.dynamics.infonce_alignment import aligned_vector_field, balanced_layers, svd
from fullrank.reproduce.directclr.toy import DIMENSIONS, decaying, generator, normal, rotation, unbalanced_start
from fullrank.reproduce.draw import THEORY, subplots
from fullrank.reproduce.figure import Claim, Figure, Rows

CASES = {"paper": "the paper's start", "balanced": "balanced start"}
QUANTITIES = {"s1": "singular values of W₁", "s2": "singular values of W₂", "eigenvalues": "eigenvalues of the covariance"}
LOWEST = 8


@dataclass(frozen=True)
class Size:
    """How much is trained."""

    N: int
    """Samples of the batch."""
    steps: int
    learning_rate: float
    """Of the loss as a mean over the batch."""
    recorded: int
    """Steps at which the theory takes a_k, evenly spaced in the logarithm."""


def batch(N: int, rng: torch.Generator) -> Tensor:
    """N pairs, the anchors of covariance I exactly, so that that of the embeddings is W₂W₁W₁ᵀW₂ᵀ."""
    x = normal(N, DIMENSIONS, rng=rng)
    x = N**0.5 * torch.linalg.qr(x - x.mean(0)).Q
    return torch.stack([x, x + 0.001 * normal(N, DIMENSIONS, rng=rng)])  # noise as in the released toy code


def aligned_theory(path: list[Tensor], x: Tensor, t: Tensor) -> list[Tensor]:
    """Eq. 10-11, ln σ₁ₖ and ln σ₂ₖ as the integrals of aₖσ₂ₖ² and aₖσ₁ₖ² along the path."""
    a = []
    for W1, W2 in zip(*path, strict=True):
        V = svd(W1).V
        a.append((V.mT @ driving_matrix(x, softmax_weights(x @ (W2 @ W1).mT)) @ V).diagonal())
    s1, s2 = (torch.linalg.svdvals(W) for W in path)
    rates = aligned_vector_field(s1, s2, torch.stack(a))
    return [
        s[0] * torch.cat([torch.zeros(1, DIMENSIONS), torch.cumulative_trapezoid(rate / s, t, dim=0)]).exp()
        for s, rate in zip((s1, s2), rates, strict=True)
    ]


def drift(start: list[Tensor], end: list[Tensor]) -> float:
    """‖D(t) − D(0)‖/‖D(0)‖ of the imbalance D."""
    (D0,), (D,) = imbalances(start), imbalances(end)
    return ((D - D0).norm() / D0.norm()).item()


def compute(size: Size, *, data: str | None, seed: int) -> Rows:
    x, rng = batch(size.N, generator(seed, 1)), generator(seed, 2)
    paper = unbalanced_start(rng)
    starts = {"paper": paper, "balanced": balanced_layers(rotation(rng) * decaying().square() @ rotation(rng).mT, 2)}
    steps = sorted({0, *(round(size.steps ** (i / (size.recorded - 1))) for i in range(size.recorded))})
    learning_rate = size.learning_rate / size.N
    t = learning_rate * torch.tensor(steps, dtype=torch.float64)
    shown = range(0, len(steps), max(1, len(steps) // 40))  # of the curves, enough to draw them
    rows: Rows = {"t": t[shown].tolist()}
    for case, start in starts.items():
        path = train_infonce(start, repeat(x), learning_rate=learning_rate, steps=steps)
        s1, s2 = (torch.linalg.svdvals(W) for W in path)
        p1, p2 = aligned_theory(path, x, t)
        measured = {"s1": s1, "s2": s2, "eigenvalues": torch.linalg.svdvals(path[1] @ path[0]).square()}
        theory = {"s1": p1, "s2": p2, "eigenvalues": (p1 * p2).square().sort(descending=True).values}
        rows[case] = {
            "trained": {name: values[shown].tolist() for name, values in measured.items()},
            "theory": {name: values[shown].tolist() for name, values in theory.items()},
            "deviation": ((p1 / s1 - 1).abs().amax(0)).tolist(),
            "end": {name: values[-1].tolist() for name, values in measured.items()},
        }
        if case == "paper":
            rows["drift"] = drift(start, [W[-1] for W in path])
    halved = train_infonce(paper, repeat(x), learning_rate=learning_rate / 2, steps=[2 * size.steps])
    rows["drift of half the learning rate"] = drift(paper, [W[-1] for W in halved])
    return rows


def plot(rows: Rows):
    from matplotlib import colormaps

    figure, axes = subplots(2, 3, height=5.0, sharex=True, sharey="col")
    colors = colormaps["viridis"]([0.9 * k / (DIMENSIONS - 1) for k in range(DIMENSIONS)])
    for (case, title), row in zip(CASES.items(), axes, strict=True):
        for (name, quantity), axis in zip(QUANTITIES.items(), row, strict=True):
            trained, theory = (list(zip(*rows[case][kind][name], strict=True)) for kind in ("trained", "theory"))
            for k, color in enumerate(colors):
                axis.plot(rows["t"], trained[k], color=color)
                axis.plot(rows["t"], theory[k], **THEORY)
            axis.set(xscale="log", yscale="log", title=f"{quantity}\n{title}")
    axes[0][0].plot([], [], color=colors[0], label="trained, k = 1 … 16")
    axes[0][0].plot([], [], **THEORY, label="aligned theory")
    axes[0][0].legend(loc="lower left")
    for axis in axes[-1]:
        axis.set_xlabel("t = learning rate × step")
    axes[0][0].set_ylim(3e-4, None)
    axes[0][2].set_ylim(1e-10, None)
    return figure


def claims(rows: Rows) -> list[Claim]:
    worst = {case: max(rows[case]["deviation"]) for case in CASES}
    shares = {name: rows["paper"]["end"][name][-LOWEST] / rows["paper"]["end"][name][0] for name in QUANTITIES}
    once, half = rows["drift"], rows["drift of half the learning rate"]
    return [
        Claim(
            "the lowest singular values of both layers, and so those of the embeddings, stay significantly smaller",
            expected=f"the lowest {LOWEST} below 0.1 of the largest",
            measured=", ".join(f"{share:.2g}" for share in shares.values()) + " (W₁, W₂, covariance)",
            holds=max(shares.values()) < 0.1,
        ),
        Claim(
            "from the paper's start eq. 10-11 describe the singular values, as its layers align",
            expected="each mode of W₁ within 0.02 over all of training",
            measured=f"off by up to {worst['paper']:.2g} of it",
            holds=worst["paper"] < 0.02,
        ),
        Claim(
            "from a balanced start, eq. 10-11 describe the singular values",
            expected="each mode of W₁ within 0.02 over all of training",
            measured=f"off by up to {worst['balanced']:.2g} of it",
            holds=worst["balanced"] < 0.02,
            corrected=True,
        ),
        Claim(
            "W₁W₁ᵀ − W₂ᵀW₂ is conserved by the flow, and drifts in proportion to the learning rate",
            expected="twice the drift at twice the learning rate",
            measured=f"{once / half:.2f} times; {once:.2g} of its norm at the larger one",
            holds=1.7 < once / half < 2.3,
            corrected=True,
        ),
    ]


FIGURE = Figure(
    title="Fig. 6 of Jing et al. 2022, DirectCLR",
    claim="The lowest singular values of both layers stay small, and the embeddings' covariance is of low rank.",
    sizes={
        "smoke": Size(N=64, steps=1000, learning_rate=0.05, recorded=100),
        "small": Size(N=128, steps=10_000, learning_rate=0.03, recorded=400),
        "paper": Size(N=128, steps=40_000, learning_rate=0.0075, recorded=400),
    },
    compute=compute,
    plot=plot,
    claims=claims,
)
