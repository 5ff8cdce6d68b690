"""Stepwise learning: a linear network, and a kernel machine, learn the eigenmodes of their data one by one, at
predictable times.

Pairs are two random crops, with noise, of one image, centred. The loss is that of Barlow Twins without normalisation.
The paper also trains deep networks, which its theory does not describe.
"""

import math
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank_papers.figures.figure import MplFigure, Rows, Verdicts, verdict
from fullrank_papers.figures.numerics import normal
from fullrank_papers.figures.pixels import load_pixels, random_crops
from fullrank_papers.plot_style import THEORY_LINE, add_theory_legend, subplots
from fullrank_papers.theory import stepwise
from fullrank_papers.theory.flow import gradient_flow
from fullrank_papers.theory.stepwise import contrastive_kernel

# Number of last modes that the theory predicts less well: they compete with the first mode that is not learned.
LAST = 3


@dataclass(frozen=True)
class Size:
    """Data and training."""

    images: int = 512  # images of the linear network, a pair of views each
    points: int = 150  # images of the kernel machine
    side: int = 8  # pixels per side; larger images are resized
    dimensions: int = 10  # D of the embedding, and number of learned modes
    start: float = 1e-4  # initial size of the weights, √γ₁‖w‖ for a row w
    rate: float = 0.005  # learning rate × γ₁


def compute(size: Size, *, data: str | None, seed: int) -> Rows:
    """Train both machines from small weights by gradient descent, and the network from aligned weights by gradient
    flow.
    """
    X = make_pairs(size, data, seed)
    G = stepwise.feature_cross_correlation(X)
    K = rbf_kernel(X[:, : size.points].flatten(0, 1))
    return {
        "linear": train_machine(G, size, size.start, seed),
        "linear, larger start": train_machine(G, size, 100 * size.start, seed),
        "kernel": train_machine(contrastive_kernel(K), size, size.start, seed),
        "aligned": aligned_error(G, size),
    }


def make_pairs(size: Size, data: str | None, seed: int) -> Float[Tensor, "2 n M"]:
    """Return two views of each image as rows of pixels: crops of at least half the area, resized, with noise."""
    images, _ = load_pixels(data, size.images, seed=seed, side=size.side)
    X = random_crops(images, area=0.5, seed=seed, noise=0.1)
    return X - X.mean((0, 1))


def rbf_kernel(points: Float[Tensor, "m M"]) -> Float[Tensor, "m m"]:
    """Return the kernel matrix exp(−‖x − x′‖² / median) with centred features."""
    distances = torch.cdist(points, points).square()
    K = torch.exp(-distances / distances.median())
    K = K - K.mean(0) - K.mean(1)[:, None] + K.mean()
    return (K + K.mT) / 2


def train_machine(G: Float[Tensor, "M M"], size: Size, start: float, seed: int) -> dict[str, Any]:
    """Train from small weights; return eigenvalues, predicted and measured learning times, and the modes that are
    learned at the end.
    """
    gamma, V = stepwise.eigenmodes(G)
    rng = torch.Generator().manual_seed(seed)
    W = normal(size.dimensions, len(G), rng=rng) * start / (len(G) * gamma[0]).sqrt()
    s, rates, _, _ = stepwise.aligned_initialization(W, gamma, V)
    gamma, V = gamma[: size.dimensions], V[:, : size.dimensions]
    predicted, rate = stepwise.learning_times(s, rates), size.rate / gamma[0].item()
    first, last = predicted.min().item() / rate / 2, predicted.max().item() / rate * 1.3
    steps = torch.logspace(math.log10(first), math.log10(last), 300, dtype=torch.float64).long().unique()
    path = stepwise.gradient_descent(W, G, learning_rate=rate, steps=steps.tolist())
    t = rate * steps.double()
    values = torch.linalg.eigvalsh(path @ G @ path.mT).flip(-1)
    by_mode = gamma * (path @ V).square().sum(1)  # γ_j‖Wv_j‖², the amount of each mode
    spanned = torch.linalg.qr(path[-1].mT)[0]
    return {
        "gamma": gamma.tolist(),
        "growth": (4 * rate * rates).tolist(),
        "t": round_curve(t[::2]),
        "eigenvalues": round_curve(values[::2]),
        "theory": round_curve(stepwise.eigenvalues(t[::2], s, rates)),
        "predicted": predicted.tolist(),
        "measured": stepwise.crossing_times(t, values).nan_to_num(posinf=t[-1].item()).tolist(),
        "measured by mode": stepwise.crossing_times(t, by_mode).nan_to_num(posinf=t[-1].item()).tolist(),
        "cosines": torch.linalg.svdvals(spanned.mT @ V[:, :-LAST]).tolist(),
    }


def aligned_error(G: Float[Tensor, "M M"], size: Size) -> float:
    """Return the largest error of the closed form for the flow from an aligned start, until the last few steps."""
    gamma, V = stepwise.eigenmodes(G)
    gamma, V = gamma[: size.dimensions], V[:, : size.dimensions]
    s, U = size.start * gamma.rsqrt(), torch.eye(size.dimensions, dtype=torch.float64)
    t = torch.linspace(0, stepwise.learning_times(s, gamma)[-LAST].item(), 20, dtype=torch.float64)
    start = stepwise.weights(t[0], s, gamma, U, V)
    path = gradient_flow(lambda p: stepwise.barlow_loss(p[0], G), (start,), t, rtol=1e-10, atol=1e-13)[0]
    return (torch.linalg.eigvalsh(path @ G @ path.mT).flip(-1) - stepwise.eigenvalues(t, s, gamma)).abs().max().item()


def round_curve(x: Tensor) -> list:
    """Return numbers rounded to five decimals."""
    return (x * 1e5).round().div(1e5).tolist()


def euler_factors(run: dict[str, Any]) -> list[float]:
    """Return, for each mode, how much slower finite steps are: they add log(1 + 4ηγ_j) per step, the flow 4ηγ_j."""
    return [x / math.log1p(x) for x in run["growth"]]


def time_errors(run: dict[str, Any], *, discrete: bool = False) -> list[float]:
    """Return measured / predicted learning times − 1, in the order of learning, whichever modes they are."""
    factors = euler_factors(run) if discrete else [1.0] * len(run["growth"])
    return [m / (p * x) - 1 for m, p, x in zip(run["measured"], run["predicted"], factors, strict=True)]


def plot(rows: Rows) -> MplFigure:
    """Draw the eigenvalues of both machines with theory, and the errors of the learning times."""
    from matplotlib.ticker import LogLocator, NullLocator

    figure, axes = subplots(1, 3, width=11.0, height=3.4)
    for ax, name, title in zip(axes[0], ("linear", "kernel"), ("linear network", "kernel machine, RBF"), strict=False):
        run = rows[name]
        ax.plot(run["t"], run["eigenvalues"])
        ax.plot(run["t"], run["theory"], **THEORY_LINE)
        ax.set(title=title, xlabel="t = learning rate × step", ylabel="eigenvalues of the embedding")
        ax.set_ylim(-0.02, 1.12)
        add_theory_legend(ax, "closed form", loc="upper left")
    for ax in axes[0]:
        ax.set_xscale("log")
        ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.xaxis.set_major_formatter("{x:g}")
    ax = axes[0, 2]
    ax.axhspan(-3, 3, color="0.93")
    for name, marker in (("linear", "o"), ("kernel", "s")):
        run = rows[name]
        ax.plot(run["predicted"], [100 * error for error in time_errors(run)], marker, ms=4, label=name)
        ax.plot(run["predicted"], [100 * (x - 1) for x in euler_factors(run)], **THEORY_LINE)
    add_theory_legend(ax, "effect of finite steps")
    ax.set(title="learning times, measured against predicted", xlabel="predicted τ", ylabel="error in %")
    return figure


def evaluate_claims(rows: Rows) -> Verdicts:
    linear, kernel = rows["linear"], rows["kernel"]
    by_time = {}
    for name, run in (("the linear network", linear), ("the kernel machine", kernel)):
        errors = [abs(error) for error in time_errors(run)]
        first, last = max(errors[:-LAST]), max(errors[-LAST:])
        measured = f"within {100 * first:.1f} %, the last {LAST} within {100 * last:.1f} %"
        by_time[f"times: {name}"] = verdict(measured, first < 0.03, name=name, last=LAST)
    modes = [list(zip(run["gamma"], run["measured by mode"], strict=True))[:-LAST] for run in (linear, kernel)]
    pairs = (pair for points in modes for pair in permutations(points, 2))
    wrong = sum(earlier > later for (g, later), (other, earlier) in pairs if other > 1.05 * g)
    cosine, aligned = min(linear["cosines"]), rows["aligned"]
    small, large = (
        max(abs(error) for error in time_errors(rows[name], discrete=True)[:-LAST])
        for name in ("linear", "linear, larger start")
    )
    return by_time | {
        "order": verdict(f"{wrong} pairs in the wrong order", wrong == 0),
        "span": verdict(f"at least {cosine:.4f}, all but the last {LAST} modes", cosine > 0.99),
        "aligned": verdict(f"{aligned:.0e}", aligned < 1e-5),
        "finite": verdict(f"{100 * small:.2f} % instead of {100 * large:.2f} %", small < large),
    }


SIZES = {
    "smoke": Size(images=128, points=30, dimensions=6, start=1e-3, rate=0.01),
    "small": Size(),
    "paper": Size(images=4096, points=500, side=16),
}
