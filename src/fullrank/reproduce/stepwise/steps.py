"""A linear network, and a kernel machine, learn the eigenmodes of their data one by one, at times that are known beforehand.

Pairs are two random crops, with noise, of one image, centred; the loss is that of Barlow Twins without normalisation. The paper also
trains deep networks, about which its theory says nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import permutations
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.dynamics import stepwise
from fullrank.dynamics.flow import gradient_flow
from fullrank.dynamics.stepwise import contrastive_kernel
from fullrank.reproduce.draw import THEORY, subplots
from fullrank.reproduce.figure import Claim, Figure, Rows
from fullrank.reproduce.pixels import crops, pixels

if TYPE_CHECKING:
    import matplotlib.figure

LAST = 3
"""How many of the last modes the theory predicts less well: they compete with the first mode for which no dimension is left."""


@dataclass(frozen=True)
class Size:
    """How much is trained, and how finely."""

    images: int = 512
    """of the linear network, a pair of views each."""
    points: int = 150
    """of them, of the kernel machine."""
    side: int = 8
    """pixels; larger images are resized to it."""
    dimensions: int = 10
    """D, of the embedding: so many modes are learned."""
    start: float = 1e-4
    """size of the weights at the start, √γ₁‖w‖ of a row w."""
    rate: float = 0.005
    """γ₁ × learning rate."""


def compute(size: Size, *, data: str | None, seed: int) -> Rows:
    """Train both machines from small weights by gradient descent, and the network from aligned weights by gradient flow."""
    X = _pairs(size, data, seed)
    G = stepwise.feature_cross_correlation(X)
    K = _rbf(X[:, : size.points].flatten(0, 1))
    return {
        "linear": _trained(G, size, size.start, seed),
        "linear, larger start": _trained(G, size, 100 * size.start, seed),
        "kernel": _trained(contrastive_kernel(K), size, size.start, seed),
        "aligned": _aligned(G, size),
    }


def _pairs(size: Size, data: str | None, seed: int) -> Float[Tensor, "2 n M"]:
    """Two views of each image as rows of pixels: crops of half the area or more, resized, and noise."""
    images, _ = pixels(data, size.images, seed=seed, side=size.side)
    X = crops(images, area=0.5, seed=seed, noise=0.1)
    return X - X.mean((0, 1))


def _rbf(points: Float[Tensor, "m M"]) -> Float[Tensor, "m m"]:
    """exp(−‖x − x′‖² / median), its features centred as pixels are."""
    distances = torch.cdist(points, points).square()
    K = torch.exp(-distances / distances.median())
    K = K - K.mean(0) - K.mean(1)[:, None] + K.mean()
    return (K + K.mT) / 2


def _trained(G: Float[Tensor, "M M"], size: Size, start: float, seed: int) -> dict[str, Any]:
    """Gradient descent from small weights: eigenvalues, predicted and measured step times, and which modes are spanned at the end."""
    gamma, V = stepwise.eigenmodes(G)
    gamma, V = gamma[: size.dimensions], V[:, : size.dimensions]
    rng = torch.Generator().manual_seed(seed)
    W = torch.randn(size.dimensions, len(G), generator=rng, dtype=torch.float64) * start / (len(G) * gamma[0]).sqrt()
    s = stepwise.aligned_initialization(W, V)[1]
    predicted, rate = stepwise.step_times(s, gamma), size.rate / gamma[0].item()
    first, last = predicted.min().item() / rate / 2, predicted.max().item() / rate * 1.3
    steps = torch.logspace(math.log10(first), math.log10(last), 300, dtype=torch.float64).long().unique()
    path = stepwise.gradient_descent(W, G, learning_rate=rate, steps=steps.tolist())
    t, in_time = rate * steps.double(), predicted.argsort()
    values = torch.linalg.eigvalsh(path @ G @ path.mT).flip(-1)
    by_mode = gamma * (path @ V).square().sum(1)  # γ_j‖Wv_j‖², how much there is of each mode
    spanned = torch.linalg.qr(path[-1].mT)[0]
    return {
        "gamma": gamma[in_time].tolist(),
        "growth": (4 * rate * gamma[in_time]).tolist(),
        "t": _short(t[::2]),
        "eigenvalues": _short(values[::2]),
        "theory": _short(stepwise.eigenvalues(t[::2], s, gamma)),
        "predicted": predicted[in_time].tolist(),
        "measured": stepwise.crossing_times(t, values).tolist(),
        "measured by mode": stepwise.crossing_times(t, by_mode)[in_time].nan_to_num(posinf=t[-1].item()).tolist(),
        "cosines": torch.linalg.svdvals(spanned.mT @ V[:, :-LAST]).tolist(),
    }


def _aligned(G: Float[Tensor, "M M"], size: Size) -> float:
    """How far the flow from an aligned start strays from the closed form, over the time of all steps but the last few."""
    gamma, V = stepwise.eigenmodes(G)
    gamma, V = gamma[: size.dimensions], V[:, : size.dimensions]
    s, U = size.start * gamma.rsqrt(), torch.eye(size.dimensions, dtype=torch.float64)
    t = torch.linspace(0, stepwise.step_times(s, gamma)[-LAST].item(), 20, dtype=torch.float64)
    path = gradient_flow(lambda p: stepwise.barlow_loss(p[0], G), (stepwise.weights(t[0], s, gamma, U, V),), t, rtol=1e-10, atol=1e-13)[0]
    return (torch.linalg.eigvalsh(path @ G @ path.mT).flip(-1) - stepwise.eigenvalues(t, s, gamma)).abs().max().item()


def _short(x: Tensor) -> list:
    return (x * 1e5).round().div(1e5).tolist()


def _slower(run: dict[str, Any]) -> list[float]:
    """A step of gradient descent takes mode j on by log(1 + 4ηγ_j), the flow by 4ηγ_j."""
    return [x / math.log1p(x) for x in run["growth"]]


def _errors(run: dict[str, Any], *, discrete: bool = False) -> list[float]:
    """Measured over predicted step times, less one; of what is learned first, whichever mode that is."""
    slower = _slower(run) if discrete else [1.0] * len(run["growth"])
    return [m / (p * x) - 1 for m, p, x in zip(run["measured"], run["predicted"], slower, strict=True)]


def plot(rows: Rows) -> matplotlib.figure.Figure:
    """Eigenvalues in steps, with theory, of the network and of the kernel machine; the errors of the step times of both."""
    from matplotlib.ticker import LogLocator, NullLocator

    figure, axes = subplots(1, 3, width=11.0, height=3.4)
    for ax, name, title in zip(axes[0], ("linear", "kernel"), ("linear network", "kernel machine, RBF"), strict=False):
        run = rows[name]
        ax.plot(run["t"], run["eigenvalues"])
        ax.plot(run["t"], run["theory"], **THEORY)
        ax.set(title=title, xlabel="t = learning rate × step", ylabel="eigenvalues of the embedding", ylim=(-0.02, 1.12))
        ax.plot([], [], **THEORY, label="closed form")
        ax.legend(loc="upper left")
    for ax in axes[0]:
        ax.set_xscale("log")
        ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.xaxis.set_major_formatter("{x:g}")
    ax = axes[0, 2]
    ax.axhspan(-3, 3, color="0.93")
    for name, marker in (("linear", "o"), ("kernel", "s")):
        run = rows[name]
        ax.plot(run["predicted"], [100 * error for error in _errors(run)], marker, ms=4, label=name)
        ax.plot(run["predicted"], [100 * (x - 1) for x in _slower(run)], **THEORY)
    ax.plot([], [], **THEORY, label="effect of finite steps")
    ax.set(title="step times, measured against predicted", xlabel="predicted τ", ylabel="error in %")
    ax.legend()
    return figure


def claims(rows: Rows) -> list[Claim]:
    """Of the paper, and of how exact its prediction can be."""
    linear, kernel = rows["linear"], rows["kernel"]
    out = []
    for name, run in (("the linear network", linear), ("the kernel machine", kernel)):
        worst = max(abs(error) for error in _errors(run)[:-LAST])
        tail = max(abs(error) for error in _errors(run)[-LAST:])
        out.append(
            Claim(
                f"from a small start, {name} learns its modes at τ = −log(γs(0)²)/(8γ)",
                expected=f"within 3 %, all but the last {LAST} modes",
                measured=f"within {100 * worst:.1f} %, the last {LAST} within {100 * tail:.1f} %",
                holds=worst < 0.03,
            )
        )
    wrong = sum(
        earlier > later
        for run in (linear, kernel)
        for (g, later), (other, earlier) in permutations(list(zip(run["gamma"], run["measured by mode"], strict=True))[:-LAST], 2)
        if other > 1.05 * g
    )
    cosine = min(linear["cosines"])
    exact, coarse = (max(abs(error) for error in _errors(rows[name], discrete=True)[:-LAST]) for name in ("linear", "linear, larger start"))
    return [
        *out,
        Claim(
            "modes are learned one by one, those of the largest γ first",
            expected="in this order, every two modes whose γ differ by more than 5 %",
            measured=f"{wrong} pairs in the wrong order",
            holds=wrong == 0,
        ),
        Claim(
            "at the end the embedding spans the top modes",
            expected="cosines of principal angles > 0.99",
            measured=f"at least {cosine:.4f}, all but the last {LAST} modes",
            holds=cosine > 0.99,
        ),
        Claim(
            "an aligned start follows the closed form exactly",
            expected="distance < 1e-5",
            measured=f"{rows['aligned']:.0e}",
            holds=rows["aligned"] < 1e-5,
        ),
        Claim(
            "finite steps are slower by 4ηγ/log(1 + 4ηγ); the rest of the error comes from the unaligned start and shrinks with its size",
            expected="a smaller rest from a start 100 times smaller",
            measured=f"{100 * exact:.2f} % instead of {100 * coarse:.2f} %",
            holds=exact < coarse,
            corrected=True,
        ),
    ]


FIGURE = Figure(
    title="Stepwise learning, Simon et al. 2023",
    claim="Trained from small weights, the embedding learns its modes in discrete steps, the top ones first, at predictable times.",
    sizes={
        "smoke": Size(images=128, points=30, dimensions=6, start=1e-3, rate=0.01),
        "small": Size(),
        "paper": Size(images=4096, points=500, side=16),
    },
    compute=compute,
    plot=plot,
    claims=claims,
    images="CIFAR-10",
)
