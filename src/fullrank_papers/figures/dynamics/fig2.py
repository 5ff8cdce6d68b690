"""Fig. 2: the distance of networks with sigmoid, ReLU and tanh units from the linear network, by width, before and
after training.

The paper does not name its data, their number, or the number of outputs; ours are half-moons. For the initial
difference we average over more random weights than the paper's 10, at no cost. The loss is averaged over samples, so
that the learning rate of 0.01 is stable.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from statistics import median

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.objectives import total
from fullrank.report.plot_style import subplots
from fullrank_papers.figures.dynamics.fig1 import half_moons
from fullrank_papers.figures.figure import (
    MplFigure,
    Rows,
    Verdicts,
    add_theory_legend,
    verdict,
)
from fullrank_papers.figures.numerics import log_slope, median_interval, ratios, spread
from fullrank_papers.plot_style import THEORY_LINE, color_scale
from fullrank_papers.theory.nonlinear import aligned_gain, curvature_bound, initial_difference, outputs, theorem1_bound
from fullrank_papers.theory.objectives import contrastive_linear
from fullrank_papers.theory.trace import orthonormal_weights, projected_gradient_descent

INPUTS, OUTPUTS = 2, 2
ACTIVATIONS = {"sigmoid": "sigmoid", "relu": "ReLU", "tanh": "tanh"}
Weights = tuple[Tensor, ...]  # W1 (h, d) and W2 (h, z)
CURVATURE = 4 / math.sqrt(27)  # the largest |φ″| of tanh


@dataclass(frozen=True)
class Size:
    """Data and training."""

    widths: tuple[int, ...]  # hidden units h
    starts: int  # trained networks per width and activation
    draws: int  # random weights over which the initial difference is averaged
    samples: int  # number of anchors
    learning_rate: float  # η of gradient descent on the mean loss over the samples
    steps: int
    every: int  # steps between two recorded points
    late_rate: float  # η of a second training, to a later time
    late_steps: int  # its steps


def compute(size: Size, *, data: str | None, seed: int) -> Rows:
    """Train a network of each activation, and the linear one, from the same weights; sigmoid also on pairs of equal
    means.
    """
    X = half_moons(size.samples, seed=seed)
    X_equal_means = torch.stack([X[0], X[1], X[2] + (X[1] - X[2]).mean(0)])
    norms = X[0].norm(dim=1).tolist()
    widths = []
    for h in size.widths:
        rng = torch.Generator().manual_seed(seed)
        starts = [orthonormal_weights(INPUTS, hidden=h, outputs=OUTPUTS, generator=rng) for _ in range(size.draws)]
        linear_start, linear = initial_outputs(starts, X, "linear"), train(starts, X, "linear", size)
        row: Rows = {
            "width": h,
            "linear": {"start": rms(linear_start).item(), "end": rms(linear)[-1].item()},
            "paper_bound": root_mean_square(
                theorem1_bound(norm=norm, inputs=INPUTS, hidden=h, curvature=CURVATURE) for norm in norms
            ),
            "our_bound": root_mean_square(
                curvature_bound(norm=norm, hidden=h, outputs=OUTPUTS, curvature=CURVATURE) for norm in norms
            ),
        }
        for activation in ACTIVATIONS:
            trained = train(starts, X, activation, size) - linear
            difference = rms(trained)
            row[activation] = {
                "difference": difference.tolist(),
                "ends": rms_by_start(trained[:, -1]).tolist(),
                "start": rms(initial_outputs(starts, X, activation) - linear_start).item(),
                "end": difference[-1].item(),
                "theory_start": root_mean_square(
                    initial_difference(activation, norm=norm, hidden=h, outputs=OUTPUTS) for norm in norms
                ),
                "theory_end": root_mean_square(
                    (1 - aligned_gain(activation, norm=norm, hidden=h)) * norm for norm in norms
                ),
            }
        late_linear, late_tanh, late_sigmoid = (
            train_late(starts, X, name, size) for name in ("linear", "tanh", "sigmoid")
        )
        constant = (late_sigmoid - late_linear).mean(1, keepdim=True)  # over the anchors
        equal_means = train_late(starts, X_equal_means, "sigmoid", size) - train_late(
            starts, X_equal_means, "linear", size
        )
        row["tanh"]["late"] = rms_by_start(late_tanh - late_linear).tolist()
        row["sigmoid"] |= {
            "late": rms_by_start(late_sigmoid - late_linear).tolist(),
            "constants": rms_by_start(constant).tolist(),
            "rests": rms_by_start(late_sigmoid - late_linear - constant).tolist(),
            "equal_means": rms_by_start(equal_means).tolist(),
        }
        widths.append(row)
    t = [size.learning_rate * step for step in range(0, size.steps + 1, size.every)]
    return {
        "t": t,
        "late": size.late_rate * size.late_steps,
        "starts": size.starts,
        "draws": size.draws,
        "widths": widths,
    }


def initial_outputs(starts: list[Weights], X: Float[Tensor, "3 n d"], activation: str) -> Float[Tensor, "S n z"]:
    """Return the anchors' outputs at each start."""
    return torch.stack([outputs(W1, W2, X[0], activation=activation) for W1, W2 in starts])


def train(starts: list[Weights], X: Float[Tensor, "3 n d"], activation: str, size: Size) -> Float[Tensor, "S T n z"]:
    """Return the anchors' outputs while both layers, with orthonormal columns, descend the contrastive loss."""

    def loss(W: Weights) -> Tensor:
        U = outputs(W[0][:, None], W[1][:, None], X, activation=activation)  # (S, 3, n, z), all starts at once
        terms = contrastive_linear(*U.transpose(0, 1).flatten(1, 2))
        return total(terms) / X.shape[1]

    weights = tuple(torch.stack(layers) for layers in zip(*starts[: size.starts], strict=True))
    path = projected_gradient_descent(loss, weights, learning_rate=size.learning_rate)
    recorded = islice(path, 0, size.steps + 1, size.every)
    return torch.stack([outputs(W1, W2, X[0], activation=activation) for W1, W2 in recorded], 1)


def train_late(starts: list[Weights], X: Float[Tensor, "3 n d"], activation: str, size: Size) -> Float[Tensor, "S n z"]:
    """Return the anchors' outputs at the later time."""
    late = replace(size, learning_rate=size.late_rate, steps=size.late_steps, every=size.late_steps)
    return train(starts, X, activation, late)[:, -1]


def rms(U: Float[Tensor, "S *T n z"]) -> Float[Tensor, "*T"]:
    """Return the root of the mean of |u|² over starts and samples."""
    return U.square().sum(-1).mean((0, -1)).sqrt()


def rms_by_start(U: Float[Tensor, "S n z"]) -> Float[Tensor, " S"]:
    """Return the root of the mean of |u|² over samples, for each start."""
    return U.square().sum(-1).mean(-1).sqrt()


def root_mean_square(values: Iterable[float]) -> float:
    """Return the root of the mean square."""
    return float(np.sqrt(np.mean(np.square(list(values)))))


def values_by_width(rows: Rows, network: str, key: str) -> list:
    """Return one number, or one for each start, for each width."""
    return [row[network][key] for row in rows["widths"]]


def exponent(rows: Rows, network: str, key: str) -> float:
    """Return the exponent a of numbers that scale as width^a."""
    return log_slope([row["width"] for row in rows["widths"]], values_by_width(rows, network, key))


def exponents_by_start(rows: Rows, network: str, key: str) -> list[float]:
    """Return the exponent over all widths of each start."""
    widths = [row["width"] for row in rows["widths"]]
    return [log_slope(widths, values) for values in zip(*values_by_width(rows, network, key), strict=True)]


def local_exponents(rows: Rows, network: str, key: str) -> list[float]:
    """Return the exponents of the medians between neighbouring widths."""
    widths = [row["width"] for row in rows["widths"]]
    medians = [median(values) for values in values_by_width(rows, network, key)]
    return [log_slope(widths[k : k + 2], medians[k : k + 2]) for k in range(len(widths) - 1)]


def decide(values: Sequence[float | int], *, above: float) -> bool | None:
    """Return whether the median over starts is above a number, None if its 95 % interval contains the number."""
    low, high = median_interval(values)
    return True if low > above else False if high < above else None


def all_of(*verdicts: bool | None) -> bool | None:
    """Return whether all statements hold; None if none fails and one is undecidable."""
    return False if False in verdicts else None if None in verdicts else True


def plot(rows: Rows) -> MplFigure:
    """Draw the difference over training for each width, and against the width."""
    widths = [row["width"] for row in rows["widths"]]
    figure, axes = subplots(2, 3, height=5.4, sharey="row")
    for above, below, activation in zip(*axes, ACTIVATIONS, strict=True):
        for color, row in zip(color_scale(len(widths)), rows["widths"], strict=True):
            above.plot(rows["t"], row[activation]["difference"], color=color, label=f"h = {row['width']}")
        for key, marker in (("start", "o"), ("end", "s")):
            label = f"{key} $\\propto h^{{{exponent(rows, activation, key):.2f}}}$"
            below.plot(widths, values_by_width(rows, activation, key), marker, markersize=4, label=label)
            below.plot(widths, values_by_width(rows, activation, f"theory_{key}"), **THEORY_LINE)
        above.set(title=ACTIVATIONS[activation], xlabel="t = learning rate × step", yscale="log")
        below.set(xscale="log", yscale="log", xlabel="width h")
    for key, marker, label in (("constants", "v", "constant"), ("rests", "^", "rest")):
        medians = [median(values) for values in values_by_width(rows, "sigmoid", key)]
        axes[1, 0].plot(widths, medians, marker, markersize=4, label=f"{label} at t = {rows['late']:g}")
    for below in axes[1, :2]:
        below.legend(loc="lower left")
    add_theory_legend(axes[1, 2], "theory (end: of aligned layers)", loc="lower left")
    axes[0, 0].legend(loc="lower left", ncols=2)
    for panel in axes[:, 0]:
        panel.set(ylabel="$|u^\\phi - u^I|$, root mean square")
    return figure


def evaluate_claims(rows: Rows) -> Verdicts:
    slope = {
        (network, key): exponent(rows, network, key) for network in ACTIVATIONS for key in ("start", "theory_start")
    }
    ends = {network: exponents_by_start(rows, network, "ends") for network in ACTIVATIONS}
    constants, rests, equal_means, late_sigmoid = (
        exponents_by_start(rows, "sigmoid", key) for key in ("constants", "rests", "equal_means", "late")
    )
    tanh, relu = slope["tanh", "start"], slope["relu", "start"]
    measured, theory = (
        ", ".join(f"{slope[n, key]:.2f}" for n in ("tanh", "relu", "sigmoid")) for key in ("start", "theory_start")
    )
    shares = {
        key: ratios(values_by_width(rows, "relu", key), values_by_width(rows, "linear", key))
        for key in ("start", "end")
    }
    to_theory = [
        ratios(values_by_width(rows, n, "start"), values_by_width(rows, n, "theory_start")) for n in ACTIVATIONS
    ]
    error = max(abs(ratio - 1) for network in to_theory for ratio in network)
    local, late = local_exponents(rows, "tanh", "ends"), local_exponents(rows, "tanh", "late")
    local_text, late_text = (", ".join(f"{x:.2f}" for x in values) for values in (local, late))
    last, end = rows["widths"][-1], rows["t"][-1]
    outputs_size = last["linear"]["start"]
    spreads = {network: f"{spread(values)} after training" for network, values in ends.items()}
    decided = {
        network: decide([-x for x in ends[network]], above=least) for network, least in (("tanh", 0.5), ("relu", 0.25))
    }
    return {
        "tanh": verdict(f"{tanh:.2f} at the start, {spreads['tanh']}", decided["tanh"] if tanh < -0.5 else False),
        "relu": verdict(f"{relu:.2f} at the start, {spreads['relu']}", decided["relu"] if relu < -0.25 else False),
        "sigmoid_start": verdict(f"{slope['sigmoid', 'start']:.2f}", slope["sigmoid", "start"] > 0.1),
        "sigmoid_end": verdict(
            f"{spread(ends['sigmoid'])} at t = {end:g}, {spread(late_sigmoid)} at t = {rows['late']:g}",
            decide(late_sigmoid, above=0.1),
        ),
        "start": verdict(
            f"{measured}, each width within {error:.0%}", error < 5 / math.sqrt(rows["draws"]), theory=theory
        ),
        "tanh_end": verdict(
            f"from width to width {local_text}; {late_text}",
            abs(local[-1] + 1) < 0.2 and local[0] > -1 and late[0] > local[0],
            end=end,
            rows_late=rows["late"],
        ),
        "relu_share": verdict(
            ", then ".join(f"{min(values):.2f} to {max(values):.2f}" for values in shares.values()),
            max(abs(ratio - math.sqrt(0.5)) for ratio in shares["start"]) < 0.1 and min(shares["end"]) > 0.4,
        ),
        "constant": verdict(
            f"{spread(constants)} and {spread(rests)}",
            all_of(decide(constants, above=0.1), decide([-x for x in rests], above=-0.1)),
            rows_late=rows["late"],
        ),
        "means": verdict(
            f"{spread(equal_means)}",
            decide([late / 2 - equal for late, equal in zip(late_sigmoid, equal_means, strict=True)], above=0.0),
        ),
        "theorem1": verdict(
            f"{last['paper_bound'] / outputs_size:.0f} and {last['our_bound'] / outputs_size:.3f} at h = "
            f"{last['width']}",
            last["paper_bound"] > outputs_size > last["our_bound"] > last["tanh"]["start"],
        ),
    }


TITLE = "Fig. 2 of Esser et al. 2023, Representation Learning Dynamics"
CLAIM = (
    "With growing width, tanh networks approach the linear one, ReLU networks more slowly, and sigmoid "
    "networks move away."
)
SIZES = {
    "smoke": Size(
        widths=(10, 40, 160),
        starts=6,
        draws=60,
        samples=40,
        learning_rate=0.1,
        steps=50,
        every=5,
        late_rate=0.3,
        late_steps=80,
    ),
    "small": Size(
        widths=(10, 30, 100, 300),
        starts=40,
        draws=200,
        samples=60,
        learning_rate=0.05,
        steps=100,
        every=4,
        late_rate=0.2,
        late_steps=150,
    ),
    "paper": Size(
        widths=(10, 20, 50, 100, 200, 500, 1000, 2000),
        starts=100,
        draws=200,
        samples=100,
        learning_rate=0.01,
        steps=500,
        every=20,
        late_rate=0.1,
        late_steps=300,
    ),
}
