"""Linear networks on half-moons under the contrastive loss: without a constraint they diverge, with one they come to rest.

The paper gives neither the sizes of data and networks nor the learning rate: those here are ours. We read 𝒩(0, 0.1 𝕀) as a variance of 0.1,
average the loss over the samples, and draw the effective rank of the outputs as well, which shows *how* the free network fails. Under the
scaled loss gradient descent only hovers about the minimum, as spectral norms have a kink where singular values are equal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.dynamics.contrastive_pairs import eigenbasis, pair_matrix, unconstrained
from fullrank.dynamics.flow import descend
from fullrank.dynamics.optimum import minimum
from fullrank.dynamics.orthonormal import projected_iterates
from fullrank.dynamics.trace import orthonormal_weights, scaled_loss, trace_loss
from fullrank.reproduce.draw import THEORY, subplots
from fullrank.reproduce.figure import Claim, Figure, Rows
from fullrank.spectrum.functional import effective_rank

if TYPE_CHECKING:
    import matplotlib.figure

HIDDEN, OUTPUTS = 10, 2
VARIANCE = 0.1  # of the augmentation
KINDS = {"free": "no constraint", "scaled": "scaled loss", "orthonormal": "orthonormal weights"}


@dataclass(frozen=True)
class Size:
    """How much is computed."""

    samples: int
    """Anchors n."""
    starts: int
    """Random initialisations."""
    learning_rate: float
    """η of gradient descent on the mean over the samples."""
    steps: int
    every: int
    """Steps between two records."""


def moons(samples: int, *, seed: int) -> Float[Tensor, "3 n 2"]:
    """Anchors, positives x + ε with ε ~ 𝒩(0, 0.1 𝕀), and negatives, which are samples of their own."""
    from sklearn.datasets import make_moons

    anchors, negatives = (torch.from_numpy(make_moons(samples, random_state=2 * seed + k)[0]) for k in range(2))
    noise = torch.randn(samples, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return torch.stack([anchors, anchors + math.sqrt(VARIANCE) * noise, negatives])


def compute(size: Size, *, data: str | None, seed: int) -> Rows:
    """Train from several starts: a free linear map, two layers under the scaled loss, and two layers that are kept orthonormal."""
    X, X_pos, X_neg = moons(size.samples, seed=seed)
    C = pair_matrix(X, X_pos, X_neg, average=True)
    eigenvalues, V = eigenbasis(C)
    recorded = range(0, size.steps + 1, size.every)
    t = size.learning_rate * torch.tensor(recorded, dtype=torch.float64)
    rng = torch.Generator().manual_seed(seed)
    runs = []
    for _ in range(size.starts):
        free = torch.randn(OUTPUTS, 2, dtype=torch.float64, generator=rng) / 2
        gaussian = tuple(torch.randn(HIDDEN, k, dtype=torch.float64, generator=rng) / math.sqrt(HIDDEN) for k in (2, OUTPUTS))
        orthonormal = orthonormal_weights(2, hidden=HIDDEN, outputs=OUTPUTS, generator=rng)
        (Theta,) = descend(lambda W: ((W[0] @ C) * W[0]).sum(), (free,), learning_rate=size.learning_rate, steps=recorded)
        scaled = descend(lambda W: scaled_loss(W[0], W[1], C), gaussian, learning_rate=size.learning_rate, steps=recorded)
        path = projected_iterates(lambda W: trace_loss(W[0], W[1], C), orthonormal, learning_rate=size.learning_rate)
        kept = islice(path, 0, size.steps + 1, size.every)
        maps = {
            "free": Theta.mT,
            "theory": unconstrained(free, C, t).mT,
            "scaled": scaled[0].mT @ scaled[1] / spectral_norms(*scaled),
            "orthonormal": torch.stack([W1.mT @ W2 for W1, W2 in kept]),
        }
        runs.append({kind: watch(A, X, C, V[:, 0]) for kind, A in maps.items()})
    return {
        "t": t.tolist(),
        "learning_rate": size.learning_rate,
        "eigenvalues": eigenvalues.tolist(),
        "minimum": minimum(eigenvalues, hidden=HIDDEN, outputs=OUTPUTS).item(),
        "runs": runs,
    }


def spectral_norms(W1: Float[Tensor, "T h d"], W2: Float[Tensor, "T h z"]) -> Float[Tensor, "T 1 1"]:
    """‖W1‖ ‖W2‖, by which the scaled loss divides the outputs."""
    return torch.linalg.matrix_norm(W1, 2, keepdim=True) * torch.linalg.matrix_norm(W2, 2, keepdim=True)


def watch(A: Float[Tensor, "T d z"], X: Float[Tensor, "n d"], C: Float[Tensor, "d d"], v: Float[Tensor, " d"]) -> Rows:
    """Loss, outputs of one sample and on v, and effective rank of all outputs u = Aᵀx."""
    return {
        "loss": (A * (C @ A)).sum((1, 2)).tolist(),
        "outputs": (X[0] @ A).mT.tolist(),
        "lowest": (v @ A).mT.tolist(),
        "rank": effective_rank(torch.linalg.svdvals(X @ A).square()).tolist(),
    }


def plot(rows: Rows) -> matplotlib.figure.Figure:
    """Draw loss, outputs of one sample, and effective rank."""
    figure, ((left, middle, right),) = subplots(1, 3)
    t = rows["t"]
    for number, run in enumerate(rows["runs"]):
        for color, (kind, label) in enumerate(KINDS.items()):
            width = 2.5 if kind == "free" else 1.2  # to be seen below the theory
            style = {"color": f"C{color}", "alpha": 0.7, "linewidth": width, "label": label if number == 0 else None}
            left.plot(t, run[kind]["loss"], **style)
            right.plot(t, run[kind]["rank"], **style)
            for output in run[kind]["outputs"]:
                middle.plot(t, output, **style)
        left.plot(t, run["theory"]["loss"], **THEORY, label="closed form" if number == 0 else None)
        right.plot(t, run["theory"]["rank"], **THEORY)
        for output in run["theory"]["outputs"]:
            middle.plot(t, output, **THEORY)
    least = rows["minimum"]
    left.axhline(least, color="0.6", linewidth=0.8, zorder=0)
    left.set(title="Loss", xlabel="t = learning rate × step", ylabel="loss (mean over samples)", ylim=(2 * least, -0.4 * least))
    middle.set(title="Outputs of one sample", xlabel="t", ylabel="u₁, u₂", ylim=(-3, 3))
    right.set(title="Effective rank of the outputs", xlabel="t", ylim=(0.95, 2.05))
    left.legend(loc="upper right")
    return figure


def claims(rows: Rows) -> list[Claim]:
    """Compare the ends of all runs."""
    runs, least, end = rows["runs"], rows["minimum"], rows["t"][-1]
    last = {kind: [run[kind]["loss"][-1] for run in runs] for kind in (*KINDS, "theory")}
    rank = {kind: [run[kind]["rank"][-1] for run in runs] for kind in KINDS}
    off = {kind: max(abs(loss / least - 1) for loss in last[kind]) for kind in ("orthonormal", "scaled")}
    shares = [abs(run["free"]["lowest"][0][k] / run["free"]["lowest"][1][k]) for run in runs for k in (0, -1)]
    drift = max(abs(b / a - 1) for a, b in zip(shares[::2], shares[1::2], strict=True))
    spread = max(max(s, 1 / s) for s in shares[1::2])
    error = max(abs(a / b - 1) for a, b in zip(last["free"], last["theory"], strict=True))
    euler = -math.expm1(-4 * rows["eigenvalues"][0] ** 2 * rows["learning_rate"] * end)
    return [
        Claim(
            "with orthonormal weights every start ends at the same loss",
            expected=f"λ₁ + λ₂ = {least:.3f}, within 1 %",
            measured=f"off by at most {off['orthonormal']:.2%}",
            holds=off["orthonormal"] < 0.01,
        ),
        Claim(
            "so it does under the scaled loss, with which the paper enforces that constraint",
            expected=f"{least:.3f}, within 10 %",
            measured=f"off by at most {off['scaled']:.1%}",
            holds=off["scaled"] < 0.1,
        ),
        Claim(
            "without a constraint training diverges",
            expected=f"losses below 100 times that, {100 * least:.0f}",
            measured=f"losses from {max(last['free']):.1e} to {min(last['free']):.1e} at t = {end:g}",
            holds=all(loss < 100 * least for loss in last["free"]),
        ),
        Claim(
            "without a constraint all outputs tend to one and the same fixed point (Proposition 1)",
            expected="equal outputs, within 10 %",
            measured=f"along the lowest eigenvector one output is up to {spread:.1f} times the other",
            holds=spread < 1.1,
        ),
        Claim(
            "free outputs become collinear and keep the ratio of sizes that they start with; constrained ones keep their rank",
            expected="effective ranks < 1.05 and > 1.5",
            measured=f"at most {max(rank['free']):.3f} and at least {min(rank['orthonormal']):.2f}, ratios within {drift:.0e}",
            holds=max(rank["free"]) < 1.05 and min(rank["orthonormal"]) > 1.5 and drift < 1e-4,
            corrected=True,
        ),
        Claim(
            "the closed form Θ₀ exp(−2Ct) gives the free loss, up to Euler's error of 1 − exp(−4λ₁²ηt)",
            expected=f"{euler:.1%}",
            measured=f"{error:.1%} at t = {end:g}",
            holds=error < 1.2 * euler,
            corrected=True,
        ),
    ]


FIGURE = Figure(
    title="Fig. 1 of Esser et al. 2023, Representation Learning Dynamics",
    claim="Under orthogonality constraints the outputs converge to fixed points, whatever the start; without constraint they diverge.",
    sizes={
        "smoke": Size(samples=200, starts=2, learning_rate=0.01, steps=800, every=40),
        "small": Size(samples=200, starts=4, learning_rate=0.005, steps=1600, every=40),
        "paper": Size(samples=1000, starts=10, learning_rate=0.002, steps=4000, every=100),
    },
    compute=compute,
    plot=plot,
    claims=claims,
)
