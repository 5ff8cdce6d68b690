"""How far networks of sigmoid, ReLU and tanh units are from the linear one, as their width grows, before and after training.

The data (half-moons), their number and the number of outputs are ours: the paper names none. At the start we average over more random
weights than the paper's 10, which costs nothing. The loss is averaged over samples, so that the learning rate of 0.01 is a stable one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.dynamics.nonlinear import aligned_gain, curvature_bound, initial_difference, outputs, theorem1_bound
from fullrank.dynamics.trace import orthonormal_weights, projected_gradient_descent
from fullrank.objectives import contrastive_linear, total
from fullrank.reproduce.draw import THEORY, subplots
from fullrank.reproduce.dynamics.fig1 import moons
from fullrank.reproduce.figure import Claim, Figure, Rows

if TYPE_CHECKING:
    import matplotlib.figure

INPUTS, OUTPUTS = 2, 2
ACTIVATIONS = {"sigmoid": "sigmoid", "relu": "ReLU", "tanh": "tanh"}
Weights = tuple[Tensor, ...]  # W1 (h, d) and W2 (h, z)
CURVATURE = 4 / math.sqrt(27)  # the largest |φ″| of tanh


@dataclass(frozen=True)
class Size:
    """How much is computed."""

    widths: tuple[int, ...]
    """Hidden units h."""
    starts: int
    """Networks trained, of each width and activation."""
    draws: int
    """Random weights over which the difference at the start is averaged."""
    samples: int
    """Anchors."""
    learning_rate: float
    """η of gradient descent on the mean over the samples."""
    steps: int
    every: int
    """Steps between two records."""


def compute(size: Size, *, data: str | None, seed: int) -> Rows:
    """Train a network of each activation, and the linear one, from the same weights; sigmoid also on pairs of equal means."""
    X = moons(size.samples, seed=seed)
    level = torch.stack([X[0], X[1], X[2] + (X[1] - X[2]).mean(0)])
    norms = X[0].norm(dim=1).tolist()
    widths = []
    for h in size.widths:
        rng = torch.Generator().manual_seed(seed)
        starts = [orthonormal_weights(INPUTS, hidden=h, outputs=OUTPUTS, generator=rng) for _ in range(size.draws)]
        linear_start, linear = begin(starts, X, "linear"), train(starts, X, "linear", size)
        row: Rows = {
            "width": h,
            "linear": {"start": rms(linear_start).item(), "end": rms(linear)[-1].item()},
            "paper_bound": root_mean(theorem1_bound(norm=norm, inputs=INPUTS, hidden=h, curvature=CURVATURE) for norm in norms),
            "our_bound": root_mean(curvature_bound(norm=norm, hidden=h, outputs=OUTPUTS, curvature=CURVATURE) for norm in norms),
        }
        for activation in ACTIVATIONS:
            difference = rms(train(starts, X, activation, size) - linear)
            row[activation] = {
                "difference": difference.tolist(),
                "start": rms(begin(starts, X, activation) - linear_start).item(),
                "end": difference[-1].item(),
                "theory_start": root_mean(initial_difference(activation, norm=norm, hidden=h, outputs=OUTPUTS) for norm in norms),
                "theory_end": root_mean((1 - aligned_gain(activation, norm=norm, hidden=h)) * norm for norm in norms),
            }
        equal_means = train(starts, level, "sigmoid", size) - train(starts, level, "linear", size)
        row["sigmoid"]["equal_means"] = rms(equal_means)[-1].item()
        widths.append(row)
    t = [size.learning_rate * step for step in range(0, size.steps + 1, size.every)]
    return {"t": t, "starts": size.starts, "draws": size.draws, "widths": widths}


def begin(starts: list[Weights], X: Float[Tensor, "3 n d"], activation: str) -> Float[Tensor, "S n z"]:
    """The anchors' outputs at each start."""
    return torch.stack([outputs(W1, W2, X[0], activation=activation) for W1, W2 in starts])


def train(starts: list[Weights], X: Float[Tensor, "3 n d"], activation: str, size: Size) -> Float[Tensor, "S T n z"]:
    """The anchors' outputs while both layers, kept orthonormal, descend the contrastive loss."""

    def loss(W: Weights) -> Tensor:
        terms = contrastive_linear(*outputs(W[0], W[1], X, activation=activation))
        return total(terms) / X.shape[1]

    paths = (projected_gradient_descent(loss, W, learning_rate=size.learning_rate) for W in starts[: size.starts])
    recorded = [islice(path, 0, size.steps + 1, size.every) for path in paths]
    return torch.stack([torch.stack([outputs(W1, W2, X[0], activation=activation) for W1, W2 in path]) for path in recorded])


def rms(U: Float[Tensor, "S *T n z"]) -> Float[Tensor, "*T"]:
    """The root of the mean of |u|² over starts and samples."""
    return U.square().sum(-1).mean((0, -1)).sqrt()


def root_mean(values: Iterable[float]) -> float:
    """The root of the mean square."""
    return float(np.sqrt(np.mean(np.square(list(values)))))


def column(rows: Rows, network: str, key: str) -> list[float]:
    """One number of every width."""
    return [row[network][key] for row in rows["widths"]]


def ratios(first: list[float], second: list[float]) -> list[float]:
    return [a / b for a, b in zip(first, second, strict=True)]


def exponent(rows: Rows, network: str, key: str) -> float:
    """The a of numbers that go as width^a."""
    return float(np.polyfit(np.log([row["width"] for row in rows["widths"]]), np.log(column(rows, network, key)), 1)[0])


def plot(rows: Rows) -> matplotlib.figure.Figure:
    """Draw the difference over training for each width, and against the width."""
    from matplotlib import colormaps

    widths = [row["width"] for row in rows["widths"]]
    figure, axes = subplots(2, 3, height=5.4, sharey="row")
    for above, below, activation in zip(*axes, ACTIVATIONS, strict=True):
        for k, row in enumerate(rows["widths"]):
            color = colormaps["viridis"](0.9 * k / (len(widths) - 1))
            above.plot(rows["t"], row[activation]["difference"], color=color, label=f"h = {row['width']}")
        for key, marker in (("start", "o"), ("end", "s")):
            label = f"{key} $\\propto h^{{{exponent(rows, activation, key):.2f}}}$"
            below.plot(widths, column(rows, activation, key), marker, markersize=4, label=label)
            below.plot(widths, column(rows, activation, f"theory_{key}"), **THEORY)
        above.set(title=ACTIVATIONS[activation], xlabel="t = learning rate × step", yscale="log")
        below.set(xscale="log", yscale="log", xlabel="width h")
    axes[1, 0].plot(widths, column(rows, "sigmoid", "equal_means"), "^", color="C2", markersize=4, label="end, pairs of equal means")
    axes[1, 2].plot([], **THEORY, label="theory (end: of aligned layers)")
    for below in axes[1]:
        below.legend(loc="lower left")
    axes[0, 0].legend(loc="lower left", ncols=2)
    for panel in axes[:, 0]:
        panel.set(ylabel="$|u^\\phi - u^I|$, root mean square")
    return figure


def claims(rows: Rows) -> list[Claim]:
    """Compare exponents with the paper's words, and with the theory."""
    slope = {(network, key): exponent(rows, network, key) for network in ACTIVATIONS for key in ("start", "end", "theory_start")}
    share = {key: ratios(column(rows, "relu", key), column(rows, "linear", key)) for key in ("start", "end")}
    exact = [ratios(column(rows, network, "start"), column(rows, network, "theory_start")) for network in ACTIVATIONS]
    off = max(abs(ratio - 1) for network in exact for ratio in network)
    sigmoid, level = column(rows, "sigmoid", "end"), column(rows, "sigmoid", "equal_means")
    last = rows["widths"][-1]
    size = last["linear"]["start"]
    widths = f"from h = {rows['widths'][0]['width']} to {last['width']}"
    return [
        Claim(
            "tanh: the difference goes to zero with the width, at the start and after training",
            expected="exponents < −0.5",
            measured=f"{slope['tanh', 'start']:.2f} and {slope['tanh', 'end']:.2f}",
            holds=max(slope["tanh", "start"], slope["tanh", "end"]) < -0.5,
        ),
        Claim(
            "ReLU: the difference goes to zero as well, but more slowly",
            expected="exponents < −0.25",
            measured=f"{slope['relu', 'start']:.2f} at the start and {slope['relu', 'end']:.2f} after training",
            holds=max(slope["relu", "start"], slope["relu", "end"]) < -0.25,
        ),
        Claim(
            "sigmoid: the difference grows with the width at the start",
            expected="exponent > 0.1",
            measured=f"{slope['sigmoid', 'start']:.2f}",
            holds=slope["sigmoid", "start"] > 0.1,
        ),
        Claim(
            "sigmoid: the difference grows with the width after training",
            expected="more than 1.1 times as large",
            measured=f"{sigmoid[-1] / sigmoid[0]:.2f} times as large {widths}",
            holds=sigmoid[-1] > 1.1 * sigmoid[0],
        ),
        Claim(
            "at the start the difference is √(z E(φ(g) − g)²): exponents −3/2 for tanh, −1/2 for ReLU, 0 for sigmoid, whatever d",
            expected=", ".join(f"{slope[network, 'theory_start']:.2f}" for network in ("tanh", "relu", "sigmoid")) + " at these widths",
            measured=", ".join(f"{slope[network, 'start']:.2f}" for network in ("tanh", "relu", "sigmoid"))
            + f", each width within {off:.0%}",
            holds=off < 5 / math.sqrt(rows["draws"]),
            corrected=True,
        ),
        Claim(
            "after training, tanh has the exponent −1",
            expected="−1 ± 0.2",
            measured=f"{slope['tanh', 'end']:.2f}",
            holds=abs(slope["tanh", "end"] + 1) < 0.2,
            corrected=True,
        ),
        Claim(
            "ReLU comes no closer to linear with the width: its difference is 1/√2 of the outputs at the start, about half or more later",
            expected="0.71 ± 0.1, then > 0.4",
            measured=", then ".join(f"{min(share[key]):.2f} to {max(share[key]):.2f}" for key in ("start", "end")),
            holds=max(abs(ratio - math.sqrt(0.5)) for ratio in share["start"]) < 0.1 and min(share["end"]) > 0.4,
            corrected=True,
        ),
        Claim(
            "what grows for sigmoid is the constant W2ᵀφ(0)1, driven by unequal means of positives and negatives, not by equal ones",
            expected="less than half of that growth",
            measured=f"{level[-1] / level[0]:.2f} instead of {sigmoid[-1] / sigmoid[0]:.2f} times as large {widths}",
            holds=level[-1] / level[0] - 1 < (sigmoid[-1] / sigmoid[0] - 1) / 2,
            corrected=True,
        ),
        Claim(
            "Theorem 1's bound (with K = 1) exceeds the outputs themselves; c/2 |x|²√(3z/(h(h + 2))) does not, and bounds tanh too",
            expected="> 1 and < 1 times the outputs",
            measured=f"{last['paper_bound'] / size:.0f} and {last['our_bound'] / size:.3f} at h = {last['width']}",
            holds=last["paper_bound"] > size > last["our_bound"] > last["tanh"]["start"],
            corrected=True,
        ),
    ]


FIGURE = Figure(
    title="Fig. 2 of Esser et al. 2023, Representation Learning Dynamics",
    claim="With growing width, tanh networks approach the linear one, ReLU networks more slowly, sigmoid networks leave it.",
    sizes={
        "smoke": Size(widths=(10, 40, 160), starts=2, draws=60, samples=40, learning_rate=0.1, steps=50, every=5),
        "small": Size(widths=(10, 30, 100, 300, 1000), starts=4, draws=200, samples=100, learning_rate=0.01, steps=500, every=20),
        "paper": Size(
            widths=(10, 20, 50, 100, 200, 500, 1000, 2000), starts=10, draws=200, samples=100, learning_rate=0.01, steps=500, every=20
        ),
    },
    compute=compute,
    plot=plot,
    claims=claims,
)
