"""Fig. 2: the distance of networks with sigmoid, ReLU and tanh units from the linear network, by width, before and
after training.

The paper does not name its data, their number, or the number of outputs; ours are half-moons. For the initial
difference we average over more random weights than the paper's 10, at no cost. The loss is averaged over samples, so
that the learning rate of 0.01 is stable.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

import torch
from jaxtyping import Float
from scipy.stats import quantile_test
from torch import Tensor

from fullrank.objectives import total
from fullrank_papers.figures.dynamics.fig1 import half_moons
from fullrank_papers.figures.figure import MplFigure, Rows, Verdict, Verdicts, verdict
from fullrank_papers.figures.numerics import holds_for_all, log_slope, ratios, spread
from fullrank_papers.plot_style import THEORY_LINE, add_theory_legend, color_scale, subplots
from fullrank_papers.theory.flow import record
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

    widths: tuple[int, ...] = (10, 30, 100, 300)  # hidden units h
    starts: int = 40  # trained networks per width and activation
    draws: int = 200  # random weights over which the initial difference is averaged
    samples: int = 60  # number of anchors
    learning_rate: float = 0.05  # η of gradient descent on the mean loss over the samples
    steps: int = 100
    every: int = 4  # steps between two recorded points
    late_rate: float = 0.2  # η of a second training, to a later time
    late_steps: int = 150  # its steps


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
        bounds = {"hidden": h, "curvature": CURVATURE}
        row: Rows = {
            "width": h,
            "linear": {"start": rms(linear_start).item(), "end": rms(linear)[-1].item()},
            "paper_bound": rms_of(theorem1_bound(norm=x, inputs=INPUTS, **bounds) for x in norms),
            "our_bound": rms_of(curvature_bound(norm=x, outputs=OUTPUTS, **bounds) for x in norms),
        }
        for name in ACTIVATIONS:
            trained = train(starts, X, name, size) - linear
            at_start = initial_outputs(starts, X, name) - linear_start
            row[name] = {
                "difference": rms(trained).tolist(),
                "ends": rms_by_start(trained[:, -1]),
                "start": rms(at_start).item(),
                "end": rms(trained[:, -1]).item(),
                "theory_start": rms_of(initial_difference(name, norm=x, hidden=h, outputs=OUTPUTS) for x in norms),
                "theory_end": rms_of((1 - aligned_gain(name, norm=x, hidden=h)) * x for x in norms),
            }
        late_linear, late_tanh, late_sigmoid = (train_late(starts, X, n, size) for n in ("linear", "tanh", "sigmoid"))
        sigmoid, equal_linear = (train_late(starts, X_equal_means, name, size) for name in ("sigmoid", "linear"))
        constant = (late_sigmoid - late_linear).mean(1, keepdim=True)  # over the anchors
        row["tanh"]["late"] = rms_by_start(late_tanh - late_linear)
        row["sigmoid"] |= {
            "late": rms_by_start(late_sigmoid - late_linear),
            "constants": rms_by_start(constant),
            "rests": rms_by_start(late_sigmoid - late_linear - constant),
            "equal_means": rms_by_start(sigmoid - equal_linear),
        }
        widths.append(row)
    t = [size.learning_rate * step for step in range(0, size.steps + 1, size.every)]
    late = size.late_rate * size.late_steps
    return {"t": t, "late": late, "starts": size.starts, "draws": size.draws, "widths": widths}


def initial_outputs(starts: list[Weights], X: Float[Tensor, "3 n d"], activation: str) -> Float[Tensor, "S n z"]:
    """Return the anchors' outputs at each start."""
    return torch.stack([outputs(W1, W2, X[0], activation=activation) for W1, W2 in starts])


def train(starts: list[Weights], X: Float[Tensor, "3 n d"], activation: str, size: Size) -> Float[Tensor, "S T n z"]:
    """Return the anchors' outputs while both layers, with orthonormal columns, descend the contrastive loss."""

    def loss(W: Weights) -> Tensor:
        U = outputs(W[0][:, None], W[1][:, None], X, activation=activation)  # (S, 3, n, z), all starts at once
        return total(contrastive_linear(*U.transpose(0, 1).flatten(1, 2))) / X.shape[1]

    weights = tuple(torch.stack(layers) for layers in zip(*starts[: size.starts], strict=True))
    path = projected_gradient_descent(loss, weights, learning_rate=size.learning_rate)
    W1, W2 = record(path, range(0, size.steps + 1, size.every))
    return outputs(W1, W2, X[0], activation=activation).transpose(0, 1)


def train_late(starts: list[Weights], X: Float[Tensor, "3 n d"], activation: str, size: Size) -> Float[Tensor, "S n z"]:
    """Return the anchors' outputs at the later time."""
    late = replace(size, learning_rate=size.late_rate, steps=size.late_steps, every=size.late_steps)
    return train(starts, X, activation, late)[:, -1]


def rms(U: Float[Tensor, "S *T n z"]) -> Float[Tensor, "*T"]:
    """Return the root of the mean of |u|² over starts and samples."""
    return U.square().sum(-1).mean((0, -1)).sqrt()


def rms_by_start(U: Float[Tensor, "S n z"]) -> list[float]:
    """Return the root of the mean of |u|² over samples, for each start."""
    return U.square().sum(-1).mean(-1).sqrt().tolist()


def rms_of(values: Iterable[float]) -> float:
    """Return the root of the mean square of numbers."""
    return math.sqrt(fmean(value**2 for value in values))


def by_width(rows: Rows, network: str, key: str) -> list:
    """Return one number, or one for each start, for each width."""
    return [row[network][key] for row in rows["widths"]]


def exponent(rows: Rows, values: Sequence[float]) -> float:
    """Return the exponent a of numbers, one for each width, that scale as width^a."""
    return log_slope([row["width"] for row in rows["widths"]], values)


def exponents_by_start(rows: Rows, network: str, key: str) -> list[float]:
    """Return the exponent over all widths of each start."""
    return [exponent(rows, values) for values in zip(*by_width(rows, network, key), strict=True)]


def local_exponents(rows: Rows, network: str, key: str) -> list[float]:
    """Return the exponents of the medians between neighbouring widths."""
    points = [(row["width"], median(row[network][key])) for row in rows["widths"]]
    return [log_slope(*zip(*points[k : k + 2], strict=True)) for k in range(len(points) - 1)]


def decide(values: Sequence[float | int], *, above: float) -> bool | None:
    """Return whether the median over starts is above a number, None if its 95 % interval contains the number."""
    low, high = quantile_test(values).confidence_interval()
    return True if low > above else False if high < above else None


def plot(rows: Rows) -> MplFigure:
    """Draw the difference over training for each width, and against the width."""
    widths = [row["width"] for row in rows["widths"]]
    figure, axes = subplots(2, 3, height=5.4, sharey="row")
    for above, below, (name, title) in zip(*axes, ACTIVATIONS.items(), strict=True):
        for color, row in zip(color_scale(len(widths)), rows["widths"], strict=True):
            above.plot(rows["t"], row[name]["difference"], color=color, label=f"h = {row['width']}")
        for key, marker in (("start", "o"), ("end", "s")):
            values = by_width(rows, name, key)
            label = f"{key} $\\propto h^{{{exponent(rows, values):.2f}}}$"
            below.plot(widths, values, marker, markersize=4, label=label)
            below.plot(widths, by_width(rows, name, f"theory_{key}"), **THEORY_LINE)
        above.set(title=title, xlabel="t = learning rate × step", yscale="log")
        below.set(xscale="log", yscale="log", xlabel="width h")
    for key, marker, label in (("constants", "v", "constant"), ("rests", "^", "rest")):
        medians = [median(values) for values in by_width(rows, "sigmoid", key)]
        axes[1, 0].plot(widths, medians, marker, markersize=4, label=f"{label} at t = {rows['late']:g}")
    for below in axes[1, :2]:
        below.legend(loc="lower left")
    add_theory_legend(axes[1, 2], "theory (end: of aligned layers)", loc="lower left")
    axes[0, 0].legend(loc="lower left", ncols=2)
    for panel in axes[:, 0]:
        panel.set(ylabel="$|u^\\phi - u^I|$, root mean square")
    return figure


def evaluate_claims(rows: Rows) -> Verdicts:
    def rates(key: str) -> dict[str, float]:
        return {name: exponent(rows, by_width(rows, name, key)) for name in ("tanh", "relu", "sigmoid")}

    def text(numbers: Sequence[float]) -> str:
        return ", ".join(f"{x:.2f}" for x in numbers)

    start, theory = rates("start"), rates("theory_start")
    ends = {name: exponents_by_start(rows, name, "ends") for name in ACTIVATIONS}
    constants, rests, equal_means, late_sigmoid = (
        exponents_by_start(rows, "sigmoid", key) for key in ("constants", "rests", "equal_means", "late")
    )
    shares = {key: ratios(by_width(rows, "relu", key), by_width(rows, "linear", key)) for key in ("start", "end")}
    to_theory = (ratios(by_width(rows, n, "start"), by_width(rows, n, "theory_start")) for n in ACTIVATIONS)
    error = max(abs(ratio - 1) for network in to_theory for ratio in network)
    local, late = local_exponents(rows, "tanh", "ends"), local_exponents(rows, "tanh", "late")
    last, end = rows["widths"][-1], rows["t"][-1]
    size = last["linear"]["start"]  # of the outputs

    def falls(name: str, least: float) -> Verdict:
        after = decide([-x for x in ends[name]], above=least)
        return verdict(
            f"{start[name]:.2f} at the start, {spread(ends[name])} after training",
            after if start[name] < -least else False,
        )

    return {
        "tanh": falls("tanh", 0.5),
        "relu": falls("relu", 0.25),
        "sigmoid_start": verdict(f"{start['sigmoid']:.2f}", start["sigmoid"] > 0.1),
        "sigmoid_end": verdict(
            f"{spread(ends['sigmoid'])} at t = {end:g}, {spread(late_sigmoid)} at t = {rows['late']:g}",
            decide(late_sigmoid, above=0.1),
        ),
        "start": verdict(
            f"{text([*start.values()])}, each width within {error:.0%}",
            error < 5 / math.sqrt(rows["draws"]),
            theory=text([*theory.values()]),
        ),
        "tanh_end": verdict(
            f"from width to width {text(local)}; {text(late)}",
            abs(local[-1] + 1) < 0.2 and local[0] > -1 and late[0] > local[0],
            end=end,
        ),
        "relu_share": verdict(
            ", then ".join(f"{min(values):.2f} to {max(values):.2f}" for values in shares.values()),
            max(abs(ratio - math.sqrt(0.5)) for ratio in shares["start"]) < 0.1 and min(shares["end"]) > 0.4,
        ),
        "constant": verdict(
            f"{spread(constants)} and {spread(rests)}",
            holds_for_all([decide(constants, above=0.1), decide([-x for x in rests], above=-0.1)]),
        ),
        "means": verdict(
            f"{spread(equal_means)}",
            decide([late / 2 - equal for late, equal in zip(late_sigmoid, equal_means, strict=True)], above=0.0),
        ),
        "theorem1": verdict(
            f"{last['paper_bound'] / size:.0f} and {last['our_bound'] / size:.3f} at h = {last['width']}",
            last["paper_bound"] > size > last["our_bound"] > last["tanh"]["start"],
        ),
    }


SMOKE = Size((10, 40, 160), 6, draws=60, samples=40, learning_rate=0.1, steps=50, every=5, late_rate=0.3, late_steps=80)
PAPER = {"widths": (10, 20, 50, 100, 200, 500, 1000, 2000), "starts": 100, "samples": 100, "learning_rate": 0.01}
SIZES = {"smoke": SMOKE, "small": Size(), "paper": Size(**PAPER, steps=500, every=20, late_rate=0.1, late_steps=300)}
