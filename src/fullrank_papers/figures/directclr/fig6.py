"""Fig. 6: singular values of two linear layers and eigenvalues of the embeddings' covariance over time, with the theory
of aligned layers.

The theory is eq. 10-11 with a_k = v₁ᵀXv₁ and the other layer's singular values at each time. It is exact from a
balanced start, but not from the paper's start: there the low modes never align. Training uses one batch throughout, so
that there is one X from which to compute a_k.
"""

from dataclasses import dataclass
from itertools import repeat

import torch
from torch import Tensor

from fullrank_papers.figures.directclr.toy_models import (
    DIMENSIONS,
    ToySize,
    balanced_start,
    paper_start,
    seeded_generator,
)
from fullrank_papers.figures.figure import MplFigure, Rows, Verdicts, verdict
from fullrank_papers.figures.numerics import normal
from fullrank_papers.plot_style import THEORY_LINE, add_theory_legend, color_scale, subplots
from fullrank_papers.theory.infonce import driving_matrix, imbalances, softmax_weights, train_infonce
from fullrank_papers.theory.infonce_alignment import aligned_vector_field

CASES = {"paper": "the paper's start", "balanced": "balanced start"}
QUANTITIES = {
    "s1": "singular values of W₁",
    "s2": "singular values of W₂",
    "eigenvalues": "eigenvalues of the covariance",
}
LOWEST = 8


@dataclass(frozen=True)
class Size(ToySize):
    recorded: int  # steps at which the theory computes a_k, evenly spaced in the logarithm


def make_batch(N: int, rng: torch.Generator) -> Tensor:
    """Return N pairs. The anchors have covariance I exactly, so the embeddings have the covariance W₂W₁W₁ᵀW₂ᵀ."""
    x = normal(N, DIMENSIONS, rng=rng)
    x = N**0.5 * torch.linalg.qr(x - x.mean(0)).Q
    return torch.stack([x, x + 0.001 * normal(N, DIMENSIONS, rng=rng)])  # noise as in the authors' toy code


def aligned_theory(path: list[Tensor], x: Tensor, t: Tensor) -> list[Tensor]:
    """Return σ₁ₖ and σ₂ₖ by eq. 10-11: ln σ₁ₖ and ln σ₂ₖ are the integrals of aₖσ₂ₖ² and aₖσ₁ₖ² along the path."""
    a = []
    for W1, W2 in zip(*path, strict=True):
        V = torch.linalg.svd(W1).Vh.mT
        a.append((V.mT @ driving_matrix(x, softmax_weights(x @ (W2 @ W1).mT)) @ V).diagonal())
    s1, s2 = (torch.linalg.svdvals(W) for W in path)
    rates = aligned_vector_field(s1, s2, torch.stack(a))
    return [
        s[0] * torch.cat([torch.zeros(1, DIMENSIONS), torch.cumulative_trapezoid(rate / s, t, dim=0)]).exp()
        for s, rate in zip((s1, s2), rates, strict=True)
    ]


def imbalance_drift(start: list[Tensor], end: list[Tensor]) -> float:
    """Return ‖D(t) − D(0)‖/‖D(0)‖ for the imbalance D = W₁W₁ᵀ − W₂ᵀW₂."""
    (D0,), (D,) = imbalances(start), imbalances(end)
    return ((D - D0).norm() / D0.norm()).item()


def compute(size: Size, *, data: str | None, seed: int) -> Rows:
    x, rng = make_batch(size.N, seeded_generator(seed, 1)), seeded_generator(seed, 2)
    starts = {"paper": paper_start(rng), "balanced": balanced_start(rng)}
    steps = sorted({0, *(round(size.steps ** (i / (size.recorded - 1))) for i in range(size.recorded))})
    t = size.rate * torch.tensor(steps, dtype=torch.float64)
    plotted = range(0, len(steps), max(1, len(steps) // 40))  # enough points to draw curves
    rows: Rows = {"t": t[plotted].tolist()}
    for case, start in starts.items():
        path = train_infonce(start, repeat(x), learning_rate=size.rate, steps=steps)
        s1, s2 = (torch.linalg.svdvals(W) for W in path)
        p1, p2 = aligned_theory(path, x, t)
        measured = {"s1": s1, "s2": s2, "eigenvalues": torch.linalg.svdvals(path[1] @ path[0]).square()}
        theory = {"s1": p1, "s2": p2, "eigenvalues": (p1 * p2).square().sort(descending=True).values}
        rows[case] = {
            "trained": {name: values[plotted].tolist() for name, values in measured.items()},
            "theory": {name: values[plotted].tolist() for name, values in theory.items()},
            "deviation": ((p1 / s1 - 1).abs().amax(0)).tolist(),
            "end": {name: values[-1].tolist() for name, values in measured.items()},
        }
        if case == "paper":
            rows["drift"] = imbalance_drift(start, [W[-1] for W in path])
    halved = train_infonce(starts["paper"], repeat(x), learning_rate=size.rate / 2, steps=[2 * size.steps])
    rows["drift of half the learning rate"] = imbalance_drift(starts["paper"], [W[-1] for W in halved])
    return rows


def plot(rows: Rows) -> MplFigure:
    figure, axes = subplots(2, 3, height=5.0, sharex=True, sharey="col")
    colors = color_scale(DIMENSIONS)
    for (case, title), row in zip(CASES.items(), axes, strict=True):
        for (name, quantity), axis in zip(QUANTITIES.items(), row, strict=True):
            trained, theory = (list(zip(*rows[case][kind][name], strict=True)) for kind in ("trained", "theory"))
            for k, color in enumerate(colors):
                axis.plot(rows["t"], trained[k], color=color)
                axis.plot(rows["t"], theory[k], **THEORY_LINE)
            axis.set(xscale="log", yscale="log", title=f"{quantity}\n{title}")
    axes[0][0].plot([], [], color=colors[0], label="trained, k = 1 … 16")
    add_theory_legend(axes[0][0], "aligned theory", loc="lower left")
    for axis in axes[-1]:
        axis.set_xlabel("t = learning rate × step")
    axes[0][0].set_ylim(3e-4, None)
    axes[0][2].set_ylim(1e-10, None)
    return figure


def evaluate_claims(rows: Rows) -> Verdicts:
    worst = {case: max(rows[case]["deviation"]) for case in CASES}
    shares = [rows["paper"]["end"][name][-LOWEST] / rows["paper"]["end"][name][0] for name in QUANTITIES]
    drift, halved = rows["drift"], rows["drift of half the learning rate"]
    return {
        "lowest": verdict(", ".join(f"{share:.2g}" for share in shares) + " (W₁, W₂, covariance)", max(shares) < 0.1),
        "paper": verdict(f"relative error up to {worst['paper']:.2g}", worst["paper"] < 0.02),
        "balanced": verdict(f"relative error up to {worst['balanced']:.2g}", worst["balanced"] < 0.02),
        "drift": verdict(f"{drift / halved:.2f} times; {drift:.2g} of its norm", 1.7 < drift / halved < 2.3),
    }


SIZES = {
    "smoke": Size(N=64, steps=1000, learning_rate=0.05, recorded=100),
    "small": Size(N=128, steps=10_000, learning_rate=0.03, recorded=400),
    "paper": Size(N=128, steps=40_000, learning_rate=0.0075, recorded=400),
}
