"""FroSSL's loss (8) and Barlow's, two linear layers, full batch: loss and top eigenvalues over time, with the theory drawn over training.

The paper does not say how its two views were made: ours are random crops. Pixels are scaled so that view 1's largest eigenvalue λ₁ is 1;
with other units W and t scale along. Besides equal learning rates, where FroSSL is twice as fast, both are trained at the same share of
their own stability limit, where it is not. The closed form (18) is drawn as printed, too.

Crops are mild, at least 90 % of the area, because the theory of FroSSL's steps is approximate, and worse the more views differ. On digits
its step times are off by at most 5 %; with crops of at least 80 % of the area, by up to 10 %. With 60 %, some eigenvalues reach ½ in
training but never in theory. Barlow's theory stays within 3 % throughout.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.dynamics.small_initialization import SmallInitialization, barlow_small_initialization, frossl_small_initialization
from fullrank.dynamics.stepwise import crossing_times
from fullrank.dynamics.two_view import (
    BARLOW,
    FROSSL,
    TwoViewLoss,
    frossl_optimum,
    gradient_descent,
    moments,
    principal_cosines,
    small_random_weights,
)
from fullrank.dynamics.two_view_modes import curvature, steps_to_fraction
from fullrank.errors import UserError
from fullrank.reproduce.draw import THEORY, subplots
from fullrank.reproduce.figure import Claim, Figure, Rows
from fullrank.reproduce.pixels import crops, pixels

if TYPE_CHECKING:
    import matplotlib.figure

LEARNT = 0.5  # an eigenvalue that has reached this counts as learnt; all tend to about 1
SHARE = 0.9  # of the stability limit 2 / curvature
OBJECTIVES = {"frossl": (FROSSL, frossl_small_initialization), "barlow": (BARLOW, barlow_small_initialization)}
NAMES = {"frossl": "FroSSL", "barlow": "Barlow"}


@dataclass(frozen=True)
class Size:
    images: int
    """How many, each seen in two views."""
    area: float
    """Least area of a crop, as a share of the image's."""
    learning_rate: float
    """The equal one, in units of 1/λ₁; FroSSL's stability limit is about 1/6."""
    scale: float
    """Norm of a row of the weights at the start, times √λ₁."""
    points: int
    """Times that are kept of a curve."""
    dimensions: int = 10
    """D of the embedding: as many eigenvalues as the paper shows."""
    side: int = 32
    """Larger images are resized to it."""


def compute(size: Size, *, data: str | None, seed: int) -> Rows:
    G = moments(two_views(size, data=data, seed=seed))
    G = G / torch.linalg.eigvalsh(G[0, 0])[-1]
    generator = torch.Generator().manual_seed(seed)
    W = small_random_weights(generator, networks=2, dimensions=size.dimensions, inputs=G.shape[-1], scale=size.scale)
    (best, rho), starts = frossl_optimum(G, dimensions=size.dimensions), {name: begin(W, G) for name, (_, begin) in OBJECTIVES.items()}
    rows: Rows = {name: train(objective, starts[name], W, G, size) for name, (objective, _) in OBJECTIVES.items()}
    t = torch.tensor(rows["frossl"]["t"], dtype=torch.float64)
    lam, gamma = (torch.linalg.eigvalsh(G[v, v]).flip(0)[: size.dimensions] for v in (0, 1))
    printed = lam * printed_18(t, starts["frossl"].s0, lam, gamma).square()
    return rows | {
        "learning_rate": size.learning_rate,
        "printed_eigenvalues": printed.tolist(),
        "canonical_correlations": rho.tolist(),
        "optimum": FROSSL.loss(best, G).item(),
    }


def two_views(size: Size, *, data: str | None, seed: int) -> Float[Tensor, "2 n M"]:
    """Random crops of the images, centred over the images, in coordinates of the space that they span."""
    X, _ = pixels(data, size.images, seed=seed, side=size.side)
    Z = crops(X, area=size.area, seed=seed)
    Z = Z - Z.mean(1, keepdim=True)
    if Z.shape[2] <= Z.shape[1]:
        return Z
    # An orthonormal basis of each view's rows: what weights have outside of it neither moves nor matters.
    return torch.stack([torch.linalg.qr(view.mT).R.mT for view in Z])


def train(objective: TwoViewLoss, start: SmallInitialization, W: Tensor, G: Tensor, size: Size) -> Rows:
    """Train until the last step is over, at the equal learning rate and at the share of the own stability limit, and predict both."""
    steps = math.ceil(1.25 * start.step_times().max().item() / size.learning_rate)
    path = gradient_descent(objective, W, G, learning_rate=size.learning_rate, steps=steps, every=max(1, steps // 1000))
    predicted = start.eigenvalues(path.t)[:, 0]
    kept = torch.linspace(0, len(path.t) - 1, min(size.points, len(path.t))).round().long()
    weights = start.weights(path.t[kept])
    times = [crossing_times(path.t, curves, level=LEARNT) for curves in (path.eigenvalues[:, 0], predicted)]
    if not all(bool(each.isfinite().all()) for each in times):
        raise UserError(f"some eigenvalues do not reach {LEARNT} in training or in theory; give images whose crops are more alike")
    top = curvature(objective, path.W, G)
    own_rate = 2 * SHARE / top
    own_steps = steps_to_fraction(start.modes, start.s0, learning_rate=own_rate)
    own = gradient_descent(objective, W, G, learning_rate=own_rate, steps=math.ceil(1.25 * own_steps.max().item()))
    return {
        "t": path.t[kept].tolist(),
        "loss": path.loss[kept].tolist(),
        "eigenvalues": path.eigenvalues[kept, 0].tolist(),
        "predicted_loss": [objective.loss(now, G).item() for now in weights],
        "predicted_eigenvalues": predicted[kept].tolist(),
        "rates": start.modes.rate.tolist(),
        "step_times": times[0].tolist(),
        "predicted_step_times": times[1].tolist(),
        "cosines": principal_cosines(path.W, weights[-1], G)[0].tolist(),
        "curvature": top,
        "own_rate": own_rate,
        "own_loss": own.loss.tolist(),
        "own_steps": (crossing_times(own.t, own.eigenvalues[:, 0], level=LEARNT) / own_rate).tolist(),
        "predicted_own_steps": own_steps.sort().values.tolist(),
    }


def printed_18(
    t: Float[Tensor, " T"], s0: Float[Tensor, " K"], lam: Float[Tensor, " K"], gamma: Float[Tensor, " K"]
) -> Float[Tensor, "T K"]:
    """s(t) of the paper's (18) as printed, with k = √(λγ). It decays from s₀ to 0 wherever λ < 4γ.

    It solves (32), s′ = 2s (λ − 2k − 2λ²s²), in which the minus of the descent is missing and the cross term is doubled.
    """
    k = (lam * gamma).sqrt()
    growth = torch.exp((8 * k - 4 * lam) * t[:, None])
    return ((2 * k - lam) / ((2 * lam**2 + (2 * k - lam) / s0**2) * growth - 2 * lam**2)).sqrt()


def plot(rows: Rows) -> "matplotlib.figure.Figure":
    figure, axes = subplots(2, 3, width=10.0, height=5.4)
    longest = max(rows["barlow"]["t"])
    for column, name in enumerate(OBJECTIVES):
        row = rows[name]
        for axis, quantity in zip(axes[:, column], ("loss", "eigenvalues"), strict=True):
            axis.plot(row["t"], row[quantity])
            axis.plot(row["t"], row[f"predicted_{quantity}"], **THEORY)
            axis.set(xlim=(0, longest))
        axes[0, column].set(title=f"{NAMES[name]}, equal learning rate", ylabel="loss")
        axes[1, column].set(xlabel="t = learning rate × step (1/λ₁)", ylabel="eigenvalues of Z₁ᵀZ₁")
        axes[0, column].set_ylim(0, None)
        axes[1, column].set_ylim(0, 1.4)
    axes[1, 0].plot([], [], color="grey", label="training")
    axes[1, 0].plot([], [], **THEORY, label="theory, from W(0)")
    axes[1, 0].legend(loc="center right")
    own, printed = axes[:, 2]
    for name, color in zip(OBJECTIVES, ("C0", "C1"), strict=True):
        last, loss = rows[name]["own_steps"][-1], rows[name]["own_loss"]
        own.plot([now / loss[0] for now in loss], color=color, label=NAMES[name])
        own.plot(last, loss[round(last)] / loss[0], "o", color=color)
    own.set(
        title=f"Each at {SHARE} of its stability limit",
        xlabel="step (dot: last eigenvalue learnt)",
        ylabel="loss / loss at the start",
        ylim=(0, None),
    )
    own.legend()
    row = rows["frossl"]
    for mode, color, which in ((0, "C0", "first"), (-1, "C1", "last")):
        printed.loglog(row["t"][1:], [now[mode] for now in row["eigenvalues"][1:]], color=color, label=f"{which} eigenvalue")
        printed.loglog(row["t"][1:], [now[mode] for now in row["predicted_eigenvalues"][1:]], **THEORY)
        printed.loglog(row["t"][1:], [now[mode] for now in rows["printed_eigenvalues"][1:]], color=color, linestyle=":")
    printed.set(title="FroSSL: (18) as printed, dotted", xlabel="t = learning rate × step (1/λ₁)", ylabel="eigenvalue", ylim=(1e-18, 1e4))
    printed.legend(loc="upper left", ncols=2)
    return figure


def claims(rows: Rows) -> list[Claim]:
    frossl, barlow = rows["frossl"], rows["barlow"]
    faster, predicted = ([b / f for f, b in zip(frossl[key], barlow[key], strict=True)] for key in ("step_times", "predicted_step_times"))
    slower, expected = ([f / b for f, b in zip(frossl[key], barlow[key], strict=True)] for key in ("own_steps", "predicted_own_steps"))
    errors = {name: time_errors(rows[name], rows["learning_rate"]) for name in OBJECTIVES}
    percent = {name: 100 * max(abs(error) / time for error, _, time in errors[name]) for name in OBJECTIVES}
    gap, printed = (mean_gap(frossl["eigenvalues"], curves) for curves in (frossl["predicted_eigenvalues"], rows["printed_eigenvalues"]))
    spacing = {name: rows[name]["step_times"][-1] / rows[name]["step_times"][0] for name in OBJECTIVES}
    shared = {name: sum(cosine**2 for cosine in rows[name]["cosines"]) / len(rows[name]["cosines"]) for name in OBJECTIVES}
    angle = {name: math.degrees(math.acos(min(1.0, min(rows[name]["cosines"])))) for name in OBJECTIVES}
    return [
        Claim(
            "at equal learning rate FroSSL converges much quicker than Barlow",
            expected="the last eigenvalue learnt more than 1.5 times earlier",
            measured=f"{faster[-1]:.2f} times",
            holds=faster[-1] > 1.5,
        ),
        Claim(
            "the closed form (18), as printed, gives the eigenvalues of training",
            expected="mean distance < 0.05",
            measured=f"{printed:.2f}, as it ends at {max(rows['printed_eigenvalues'][-1]):.0e}",
            holds=printed < 0.05,
        ),
        Claim(
            "the closed form with corrected signs, started from the modes in W(0), gives the eigenvalues of training",
            expected="mean distance < 0.05",
            measured=f"{gap:.3f}",
            holds=gap < 0.05,
            corrected=True,
        ),
        Claim(
            "it gives the time at which each is learnt, up to 1/rate, as directions still turn while a mode is learnt, and Euler's error",
            expected="all within this bound",
            measured=f"off by at most {percent['frossl']:.1f} % (FroSSL) and {percent['barlow']:.1f} % (Barlow)",
            holds=all(abs(error) < allowed for each in errors.values() for error, allowed, _ in each),
            corrected=True,
        ),
        Claim(
            "FroSSL is 1 + 1/ρ times faster for small weights, 2 times where views are perfectly correlated (ρ = 1)",
            expected=f"{span(predicted)} times, by mode, within 10 %",
            measured=span(faster),
            holds=all(abs(a / b - 1) < 0.1 for a, b in zip(faster, predicted, strict=True)),
            corrected=True,
        ),
        Claim(
            "all modes are sped up alike, so that steps come no closer together: time of the last over time of the first",
            expected=f"at least 3/4 of Barlow's {spacing['barlow']:.1f}",
            measured=f"{spacing['frossl']:.1f}",
            holds=spacing["frossl"] > 0.75 * spacing["barlow"],
            corrected=True,
        ),
        Claim(
            f"at {SHARE} of its own stability limit each, and with views as alike as these, FroSSL needs more steps than Barlow, not fewer",
            expected=f"{expected[-1]:.2f} times as many until the last eigenvalue is learnt",
            measured=f"{slower[-1]:.2f} times, {frossl['own_steps'][-1]:.0f} and {barlow['own_steps'][-1]:.0f}",
            holds=slower[-1] > 1,
            corrected=True,
        ),
        Claim(
            "at the end the embeddings span the modes that the theory picks from W(0)",
            expected="mean squared cosine of principal angles > 0.9",
            measured=", ".join(f"{shared[name]:.3f}, angles ≤ {angle[name]:.0f}° ({NAMES[name]})" for name in OBJECTIVES),
            holds=min(shared.values()) > 0.9,
            corrected=True,
        ),
        Claim(
            "when the last step is over, FroSSL is not yet at its optimum, which is that of canonical correlation analysis",
            expected=f"loss above {abs(rows['optimum']):.1e}, which belongs to ρ of {span(rows['canonical_correlations'])}",
            measured=f"{frossl['loss'][-1]:.2g}",
            holds=frossl["loss"][-1] > 1.05 * rows["optimum"] + 1e-6,
            corrected=True,
        ),
    ]


def time_errors(row: Rows, learning_rate: float) -> list[tuple[float, float, float]]:
    """Error of each predicted step time, what the theory allows, and the time.

    Directions turn while a mode is learned, within a time 1/rate. Euler's method grows by log(1 + x) a step, x = η · rate/2, instead of x.
    """
    pairs = zip(row["step_times"], row["predicted_step_times"], sorted(row["rates"], reverse=True), strict=True)
    return [(time - guess, 1 / rate + learning_rate * rate / 4 * guess, guess) for time, guess, rate in pairs]


def mean_gap(rows: list[list[float]], others: list[list[float]]) -> float:
    """The mean distance of two sets of curves."""
    return (torch.tensor(rows) - torch.tensor(others)).abs().mean().item()


def span(numbers: list[float]) -> str:
    return f"{min(numbers):.2f} to {max(numbers):.2f}"


FIGURE = Figure(
    title="Fig. 2 of Skean et al. 2024, FroSSL",
    claim="The FroSSL variant (8) of the loss converges much quicker than the Barlow Twins variant.",
    sizes={
        "smoke": Size(images=1024, area=0.9, learning_rate=0.05, scale=1e-3, points=80, side=8),
        "small": Size(images=1024, area=0.9, learning_rate=0.03, scale=1e-3, points=150),
        "paper": Size(images=1024, area=0.9, learning_rate=0.01, scale=1e-4, points=300),
    },
    compute=compute,
    plot=plot,
    claims=claims,
    images="CIFAR-10, as in the paper; digits without --data",
)
