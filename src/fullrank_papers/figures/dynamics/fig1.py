"""Fig. 1: linear networks on half-moons under the contrastive loss. Without a constraint they diverge; with one they
converge.

The paper gives neither the sizes of data and networks nor the learning rate; those here are ours. We read 𝒩(0, 0.1 𝕀)
as a variance of 0.1, average the loss over the samples, and also draw the effective rank of the outputs, which shows
how the unconstrained network fails. Under the scaled loss gradient descent stays near the minimum without reaching it,
because spectral norms have a kink if singular values are equal.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank_papers.figures.figure import MplFigure, Rows, Verdicts, verdict
from fullrank_papers.figures.numerics import normal, uncentered_rank
from fullrank_papers.plot_style import THEORY_LINE, plot_runs, subplots
from fullrank_papers.theory.contrastive_pairs import eigenbasis, pair_matrix, unconstrained_weights
from fullrank_papers.theory.flow import gradient_descent, record
from fullrank_papers.theory.optimum import minimum_loss
from fullrank_papers.theory.trace import orthonormal_weights, projected_gradient_descent, scaled_loss, trace_loss

HIDDEN, OUTPUTS = 10, 2
VARIANCE = 0.1  # variance of the augmentation
KINDS = {"free": "no constraint", "scaled": "scaled loss", "orthonormal": "orthonormal weights"}


@dataclass(frozen=True)
class Size:
    """Data and training."""

    samples: int  # anchors n
    starts: int  # number of random initialisations
    learning_rate: float  # η of gradient descent on the mean loss over the samples
    steps: int
    every: int  # steps between two recorded points


def half_moons(samples: int, *, seed: int) -> Float[Tensor, "3 n 2"]:
    """Return anchors x, positives x + ε with ε ~ 𝒩(0, 0.1 𝕀), and negatives, which are independent samples."""
    from sklearn.datasets import make_moons

    anchors, negatives = (torch.from_numpy(make_moons(samples, random_state=2 * seed + k)[0]) for k in range(2))
    noise = normal(samples, 2, rng=torch.Generator().manual_seed(seed))
    return torch.stack([anchors, anchors + math.sqrt(VARIANCE) * noise, negatives])


def compute(size: Size, *, data: str | None, seed: int) -> Rows:
    """Train from several starts: an unconstrained linear map, two layers under the scaled loss, and two orthonormal
    layers.
    """
    X, X_pos, X_neg = half_moons(size.samples, seed=seed)
    C = pair_matrix(X, X_pos, X_neg, average=True)
    eigenvalues, V = eigenbasis(C)
    recorded = range(0, size.steps + 1, size.every)
    t = size.learning_rate * torch.tensor(recorded, dtype=torch.float64)
    rng = torch.Generator().manual_seed(seed)
    runs = []
    for _ in range(size.starts):
        free = normal(OUTPUTS, 2, rng=rng) / 2
        gaussian = tuple(normal(HIDDEN, k, rng=rng) / math.sqrt(HIDDEN) for k in (2, OUTPUTS))
        orthonormal = orthonormal_weights(2, hidden=HIDDEN, outputs=OUTPUTS, generator=rng)
        rate = {"learning_rate": size.learning_rate}
        (Theta,) = gradient_descent(lambda W: ((W[0] @ C) * W[0]).sum(), (free,), **rate, steps=recorded)
        W1, W2 = gradient_descent(lambda W: scaled_loss(W[0], W[1], C), gaussian, **rate, steps=recorded)
        norm1, norm2 = (torch.linalg.matrix_norm(W, 2, keepdim=True) for W in (W1, W2))  # the loss divides by them
        V1, V2 = record(projected_gradient_descent(lambda W: trace_loss(W[0], W[1], C), orthonormal, **rate), recorded)
        maps = {"free": Theta.mT, "theory": unconstrained_weights(free, C, t).mT}
        maps |= {"scaled": W1.mT @ W2 / (norm1 * norm2), "orthonormal": V1.mT @ V2}
        runs.append({kind: measure_outputs(A, X, C, V[:, 0]) for kind, A in maps.items()})
    return {
        "t": t.tolist(),
        "learning_rate": size.learning_rate,
        "eigenvalues": eigenvalues.tolist(),
        "minimum": minimum_loss(eigenvalues, hidden=HIDDEN, outputs=OUTPUTS).item(),
        "runs": runs,
    }


def measure_outputs(
    A: Float[Tensor, "T d z"], X: Float[Tensor, "n d"], C: Float[Tensor, "d d"], v: Float[Tensor, " d"]
) -> Rows:
    """Return the loss, the outputs of one sample and of v, and the effective rank of all outputs u = Aᵀx."""
    return {
        "loss": (A * (C @ A)).sum((1, 2)).tolist(),
        "outputs": (X[0] @ A).mT.tolist(),
        "lowest": (v @ A).mT.tolist(),
        "rank": uncentered_rank(X @ A).tolist(),
    }


def plot(rows: Rows) -> MplFigure:
    """Draw loss, outputs of one sample, and effective rank."""
    figure, ((left, middle, right),) = subplots(1, 3)
    t = rows["t"]
    for color, (kind, label) in enumerate({**KINDS, "theory": "closed form"}.items()):
        width = 2.5 if kind == "free" else 1.2  # visible below the theory
        style = THEORY_LINE if kind == "theory" else {"color": f"C{color}", "alpha": 0.7, "linewidth": width}
        plot_runs(left, t, [run[kind]["loss"] for run in rows["runs"]], label=label, **style)
        plot_runs(middle, t, [output for run in rows["runs"] for output in run[kind]["outputs"]], **style)
        plot_runs(right, t, [run[kind]["rank"] for run in rows["runs"]], **style)
    minimum = rows["minimum"]
    left.axhline(minimum, color="0.6", linewidth=0.8, zorder=0)
    left.set(title="Loss", xlabel="t = learning rate × step", ylabel="loss (mean over samples)")
    left.set_ylim(2 * minimum, -0.4 * minimum)
    middle.set(title="Outputs of one sample", xlabel="t", ylabel="u₁, u₂", ylim=(-3, 3))
    right.set(title="Effective rank of the outputs", xlabel="t", ylim=(0.95, 2.05))
    left.legend(loc="upper right")
    return figure


def evaluate_claims(rows: Rows) -> Verdicts:
    runs, minimum, end = rows["runs"], rows["minimum"], rows["t"][-1]
    last = {kind: [run[kind]["loss"][-1] for run in runs] for kind in (*KINDS, "theory")}
    free_rank, orthonormal_rank = ([run[kind]["rank"][-1] for run in runs] for kind in ("free", "orthonormal"))
    orthonormal, scaled = (max(abs(loss / minimum - 1) for loss in last[kind]) for kind in ("orthonormal", "scaled"))
    starts, ends = ([abs(run["free"]["lowest"][0][k] / run["free"]["lowest"][1][k]) for run in runs] for k in (0, -1))
    drift = max(abs(b / a - 1) for a, b in zip(starts, ends, strict=True))
    largest_ratio = max(max(ratio, 1 / ratio) for ratio in ends)
    error = max(abs(a / b - 1) for a, b in zip(last["free"], last["theory"], strict=True))
    euler = -math.expm1(-4 * rows["eigenvalues"][0] ** 2 * rows["learning_rate"] * end)
    return {
        "orthonormal": verdict(f"off by at most {orthonormal:.2%}", orthonormal < 0.01),
        "scaled": verdict(f"off by at most {scaled:.1%}", scaled < 0.1),
        "divergence": verdict(
            f"losses from {max(last['free']):.1e} to {min(last['free']):.1e} at t = {end:g}",
            all(loss < 100 * minimum for loss in last["free"]),
        ),
        "fixed_point": verdict(
            f"along the lowest eigenvector one output is up to {largest_ratio:.1f} times the other", largest_ratio < 1.1
        ),
        "collinear": verdict(
            f"at most {max(free_rank):.3f} and at least {min(orthonormal_rank):.2f}, ratios within {drift:.0e}",
            max(free_rank) < 1.05 and min(orthonormal_rank) > 1.5 and drift < 1e-4,
        ),
        "closed_form": verdict(f"{error:.1%} at t = {end:g}", error < 1.2 * euler, euler=euler),
    }


SIZES = {
    "smoke": Size(samples=200, starts=2, learning_rate=0.01, steps=800, every=40),
    "small": Size(samples=200, starts=4, learning_rate=0.005, steps=1600, every=40),
    "paper": Size(samples=1000, starts=10, learning_rate=0.002, steps=4000, every=100),
}
