"""Theorem 3: where the outputs of the constrained flow end, and what it leaves out.

The paper proves two cases for one output: all eigenvalues positive, and at least one negative. Starts on the unit sphere (every network
with as many hidden units as inputs), starts without a component along e₁, multiple and zero eigenvalues, several outputs, and the step that
the discretisation (12) may take are ours. So is E[C], with which the paper explains where negative eigenvalues come from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fullrank.dynamics.contrastive_pairs import pair_matrix
from fullrank.dynamics.optimum import output_limit, output_limit_projector
from fullrank.dynamics.trace import integrate_outputs, orthonormal_weights, output_vector_field, projected_gradient_step, stability_limit
from fullrank.reproduce.draw import subplots
from fullrank.reproduce.figure import Claim, Figure, Rows

if TYPE_CHECKING:
    import matplotlib.figure

SPECTRA = {"positive": (0.5, 1.5), "negative": (-1.0, 1.0), "multiple": (-1.0, -1.0), "zero": (0.0, 1.0)}
"""Eigenvalues of C in each plane."""
TITLES = {
    "positive": "λ = (½, 3/2): to 0, but for |q₀| = 1",
    "negative": "λ = (−1, 1): to ±e₁, but for e₁·q₀ = 0",
    "multiple": "λ = (−1, −1): along q₀",
    "zero": "λ = (0, 1): into the kernel, |q| < 1",
}
BOUNDS: dict[str, tuple[tuple[int | float, ...], int]] = {
    "1/(4|λ₁|)": ((-2, 1), 1),
    "1/(λ_d − λ₁)": ((-0.5, 4), 1),
    "1/(2λ_d)": ((-0.5, 3), 2),
}
"""Where each of the three stable steps is the smallest: eigenvalues, and outputs."""
SEVERAL = (-2.0, -1.0, 1.0, 3.0)
LATE, POINTS = 12.0, 60


@dataclass(frozen=True)
class Size:
    """How much is tried."""

    starts: int = 8
    """Random starts in each plane, half of them opposite to the others."""
    networks: int = 10
    """Networks trained with h = d, and with several outputs."""
    factors: int = 21
    """Steps tried between 0.8 and 1.2 of each stable bound."""


def numbers(*values: int | float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def plane(eigenvalues: Tensor, starts: Tensor, end: float = LATE) -> dict[str, Any]:
    """Return paths from several starts, where `limit` sees them end, and the largest distance of the last point from it."""
    t = end * torch.linspace(0, 1, POINTS, dtype=torch.float64) ** 2
    paths = [integrate_outputs(q0[:, None], eigenvalues, t)[..., 0] for q0 in starts]
    limits = [output_limit(q0, eigenvalues) for q0 in starts]
    error = max((path[-1] - last).norm().item() for path, last in zip(paths, limits, strict=True))
    return {"paths": [path.mT.tolist() for path in paths], "limits": [x.tolist() for x in limits], "error": error}


def departure(size: float, *, distance: float = 1e-6) -> float:
    """Return the rate at which 1 − |q| grows near the sphere, for C of one positive eigenvalue of this size."""
    t = numbers(0, 0.5 / size)
    left = 1 - integrate_outputs(numbers(1 - distance)[:, None], numbers(size), t).flatten()
    return ((left[1] / left[0]).log() / t[1]).item()


def trained_square(eigenvalues: Tensor, generator: torch.Generator) -> tuple[float, float]:
    """Return |q| and the distance of q from ±e₁ after training a network with h = d by (11)."""
    d = len(eigenvalues)
    W1, W2 = orthonormal_weights(d, hidden=d, outputs=1, generator=generator)
    for _ in range(700):
        W1, W2 = projected_gradient_step(W1, W2, torch.diag(eigenvalues), learning_rate=0.02)
    q = (W1.mT @ W2)[:, 0]
    return q.norm().item(), math.hypot(1 - abs(q[0].item()), q[1:].norm().item())


def several(hidden: int, generator: torch.Generator) -> dict[str, Any]:
    """Return eigenvalues of qqᵀ over time with three outputs, where two eigenvalues of C are negative."""
    eigenvalues = numbers(*SEVERAL)
    W1, W2 = orthonormal_weights(4, hidden=hidden, outputs=3, generator=generator)
    t = 6 * torch.linspace(0, 1, POINTS, dtype=torch.float64) ** 2
    q = integrate_outputs(W1.mT @ W2, eigenvalues, t)
    last = output_limit_projector(eigenvalues, hidden=hidden, outputs=3)
    return {
        "t": t.tolist(),
        "squares": torch.linalg.svdvals(q).square().mT.tolist(),
        "error": (q[-1] @ q[-1].mT - last).norm().item(),
    }


def survived(eigenvalues: Tensor, outputs: int, factor: float, noise: Tensor) -> float:
    """Return how far qqᵀ is from its minimum after 400 steps of (12) from beside it, at this multiple of the stable step; at most 1."""
    step = factor * stability_limit(eigenvalues, outputs=outputs)
    alive = min(outputs, int((eigenvalues < 0).sum()))
    optimum = torch.eye(len(eigenvalues), outputs, dtype=torch.float64) * (torch.arange(outputs) < alive)
    q = optimum + 1e-6 * noise
    for _ in range(400):
        q = q + step * output_vector_field(q, eigenvalues)
    away = (q @ q.mT - optimum @ optimum.mT).norm().item()
    return min(away, 1.0) if math.isfinite(away) else 1.0


def expectation(generator: torch.Generator) -> dict[str, float]:
    """Return the exact E[C] / n of 50 samples of mean ≠ 0 that span 2 of 3 dimensions: its distances, and its largest eigenvalue."""
    X = torch.randn(50, 2, dtype=torch.float64, generator=generator) @ numbers(1, 0, 1, 0, 1, 1).view(2, 3) + 2
    C = pair_matrix(X, X, X.expand(50, 50, 3), average=True)  # each sample is a negative of each anchor; noise of the positives has mean 0
    printed, corrected = -X.mT @ X / 50, -torch.cov(X.mT, correction=0)
    return {
        "printed": ((C - printed).norm() / C.norm()).item(),
        "corrected": ((C - corrected).norm() / C.norm()).item(),
        "largest": torch.linalg.eigvalsh(C)[-1].item(),
    }


def compute(size: Size, *, data: str | None = None, seed: int = 0) -> Rows:
    del data
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    directions = torch.nn.functional.normalize(random(size.starts // 2, 2))
    lengths = 0.2 + 0.7 * torch.rand(size.starts // 2, 1, dtype=torch.float64, generator=generator)
    inside = torch.cat([lengths * directions, -lengths.flip(0) * directions])
    planes = {name: plane(numbers(*spectrum), inside) for name, spectrum in SPECTRA.items()}
    gaps = {
        "sphere": plane(
            numbers(*SPECTRA["positive"]), numbers(1, 2, -1, 2, -2, -1).view(3, 2) / 5**0.5, end=2.8
        ),  # later, rounding lets it leave
        "orthogonal": plane(numbers(*SPECTRA["negative"]), numbers(0, 0.7, 0, -0.7).view(2, 2)),
        "next": plane(numbers(-2, -1, 1), numbers(0, -0.4, 0.3).view(1, 3)),
    }
    squares = [trained_square(numbers(0.5, 1, 1.5), generator) for _ in range(size.networks)]
    outputs = [several(7, generator) for _ in range(size.networks)]
    factors = torch.linspace(0.8, 1.2, size.factors).tolist()
    steps = {}
    for name, (spectrum, z) in BOUNDS.items():
        noise = random(len(spectrum), z)
        steps[name] = [survived(numbers(*spectrum), z, factor, noise) for factor in factors]
    return {
        "planes": planes,
        "gaps": gaps,
        "sphere_rate": departure(0.5) / 0.5,
        "square": {"length": [length for length, _ in squares], "error": max(error for _, error in squares)},
        "several": {**outputs[0], "error": max(out["error"] for out in outputs), "networks": size.networks},
        "steps": {"factors": factors, "distances": steps},
        "expectation": expectation(generator),
    }


def plot(rows: Rows) -> matplotlib.figure.Figure:
    figure, axes = subplots(2, 3, width=10.0, height=6.8)
    discs = (axes[0, 0], axes[0, 1], axes[0, 2], axes[1, 0])
    angle = torch.linspace(0, 2 * math.pi, 100)
    for axis, (name, found) in zip(discs, rows["planes"].items(), strict=True):
        axis.plot(angle.cos(), angle.sin(), color="0.7", linewidth=0.8)
        gap = {"positive": "sphere", "negative": "orthogonal"}.get(name)
        shown = {"C0": found} | ({"C1": rows["gaps"][gap]} if gap else {})
        for color, paths in shown.items():
            for (x, y), end in zip(paths["paths"], paths["limits"], strict=True):
                axis.plot(x, y, color=color)
                axis.plot(x[0], y[0], "o", color=color, markersize=3)
                axis.plot(*end, "*", color="black", markersize=7, linestyle="none", zorder=4)
        axis.set(title=TITLES[name], xlabel="q₁", ylabel="q₂", aspect="equal", xticks=(-1, 0, 1), yticks=(-1, 0, 1))
    axes[0, 0].plot([], [], color="C0", label="Theorem 3")
    axes[0, 0].plot([], [], color="C1", label="left out by it")
    axes[0, 0].legend(loc="lower right", bbox_to_anchor=(1.1, -0.03))
    ranks, steps = axes[1, 1], axes[1, 2]
    for k, values in enumerate(rows["several"]["squares"]):
        ranks.plot(rows["several"]["t"], values, color=f"C{k}")
    ranks.set(title="λ = (−2, −1, 1, 3), z = 3: rank 2", xlabel="t = learning rate × step", ylabel="eigenvalues of qqᵀ")
    for (name, distances), style in zip(rows["steps"]["distances"].items(), ("-", "--", ":"), strict=True):
        steps.semilogy(rows["steps"]["factors"], [max(x, 1e-16) for x in distances], linestyle=style, label=name)
    steps.axvline(1, color="0.7", linewidth=0.8, zorder=0)
    steps.set(title="After 400 steps of (12)", xlabel="η / stable step", ylabel="distance of qqᵀ from its limit")
    steps.legend(title="bound", title_fontsize=8)
    return figure


def claims(rows: Rows) -> list[Claim]:
    planes, gaps, expected = rows["planes"], rows["gaps"], rows["expectation"]
    signed, starts = planes["negative"]["error"], len(planes["negative"]["paths"])
    unsigned = max(math.hypot(1 - abs(x[-1]), y[-1]) for x, y in planes["negative"]["paths"])
    sphere = [math.hypot(x[-1], y[-1]) for x, y in gaps["sphere"]["paths"]]
    sides = {math.copysign(1, x[-1]) for x, _ in planes["negative"]["paths"]}
    orthogonal = max(math.hypot(x[-1], y[-1]) for x, y in gaps["orthogonal"]["paths"])
    inside = [math.hypot(*end) for end in planes["zero"]["limits"]]
    lengths, square = rows["square"]["length"], rows["square"]["error"]
    factors, steps = rows["steps"]["factors"], rows["steps"]["distances"].values()
    below = max(x for distances in steps for f, x in zip(factors, distances, strict=True) if f < 0.955)
    above = min(x for distances in steps for f, x in zip(factors, distances, strict=True) if f > 1.045)
    return [
        Claim(
            "all λ > 0: q → 0, from starts with |q₀| < 1",
            expected="0",
            measured=f"{planes['positive']['error']:.1g} at t = {LATE:g}",
            holds=planes["positive"]["error"] < 1e-6,
        ),
        Claim(
            "λ₁ < 0: q becomes the lowest eigenvector, up to sign",
            expected="±e₁",
            measured=f"within {unsigned:.1g}, {starts} starts",
            holds=unsigned < 1e-6,
        ),
        Claim(
            "all λ > 0: q → 0 from every start", expected="0", measured=f"|q| = {max(sphere):.4f} from |q₀| = 1", holds=max(sphere) < 1e-6
        ),
        Claim(
            "λ₁ < 0: q → ±e₁ from every start",
            expected="|q| = 1",
            measured=f"|q| = {orthogonal:.1g} where e₁·q₀ = 0",
            holds=orthogonal > 1 - 1e-6,
        ),
        Claim(
            "E[C] = −n E[xxᵀ] is negative definite",
            expected="E[C] equal to it, largest eigenvalue < 0",
            measured=f"relative distance {expected['printed']:.1f}, largest eigenvalue {abs(expected['largest']):.0e}",
            holds=expected["printed"] < 1e-6 and expected["largest"] < -1e-9,
        ),
        Claim(
            "the sign of the limit is that of e₁·q₀",
            expected="sign(e₁·q₀) e₁",
            measured=f"within {signed:.1g}, on {len(sides)} sides",
            holds=signed < 1e-6 and len(sides) == 2,
            corrected=True,
        ),
        Claim(
            "a start with |q₀| = 1 stays on the sphere and ends at ±e₁, whatever the signs of λ; next to it, 1 − |q| grows at rate 8λ₁",
            expected="±e₁, rate 8λ₁",
            measured=f"within {gaps['sphere']['error']:.1g}, {rows['sphere_rate']:.3f} λ₁",
            holds=gaps["sphere"]["error"] < 0.1 and abs(rows["sphere_rate"] - 8) < 0.01,
            corrected=True,
        ),
        Claim(
            "so every network with h = d trained by (11) ends at ±e₁, though all λ > 0",
            expected="|q| = 1, ±e₁",
            measured=f"|q| ≥ {min(lengths):.6f}, within {square:.1g}, {len(lengths)} networks",
            holds=min(lengths) > 1 - 1e-9 and square < 1e-3,
            corrected=True,
        ),
        Claim(
            "e₁·q₀ = 0: q ends at the next eigenvector with λ < 0 along which q₀ has a component, or else at 0",
            expected="−e₂ for λ = (−2, −1, 1), and 0 for λ = (−1, 1)",
            measured=f"within {gaps['next']['error']:.1g} and {gaps['orthogonal']['error']:.1g}",
            holds=max(gaps["next"]["error"], gaps["orthogonal"]["error"]) < 1e-6,
            corrected=True,
        ),
        Claim(
            "λ₁ multiple: q ends at the normalised projection of q₀ onto its eigenspace",
            expected="that vector",
            measured=f"within {planes['multiple']['error']:.1g}",
            holds=planes["multiple"]["error"] < 1e-6,
            corrected=True,
        ),
        Claim(
            "λ₁ = 0: q ends in the kernel of C, inside the unit ball, at a length that a conserved quantity gives",
            expected="0 < |q| < 1, at that length",
            measured=f"{min(inside):.2f} to {max(inside):.2f}, within {planes['zero']['error']:.1g}",
            holds=min(inside) > 0 and max(inside) < 1 and planes["zero"]["error"] < 1e-6,
            corrected=True,
        ),
        Claim(
            "several outputs: qqᵀ → the projector onto the min(z, number of λ < 0) lowest eigenvectors",
            expected="projector of rank 2 for 3 outputs",
            measured=f"within {rows['several']['error']:.1g}, {rows['several']['networks']} starts",
            holds=rows["several"]["error"] < 1e-6,
            corrected=True,
        ),
        Claim(
            "(12) is stable below each of 1/(4|λ₁|), 1/(λ_d − λ₁), and 1/(2λ_d) where an output must vanish, and not above",
            expected="distance 0 up to 0.95 of the bound, and not from 1.05 of it on",
            measured=f"at most {below:.1g}, at least {above:.1g}",
            holds=below < 1e-8 and above > 1e-3,
            corrected=True,
        ),
        Claim(
            "E[C] = −n Cov(x), negative semidefinite: data in a subspace have the eigenvalue 0",
            expected="E[C] equal to it, largest eigenvalue 0",
            measured=f"relative distance {expected['corrected']:.0e}, largest eigenvalue {abs(expected['largest']):.0e}",
            holds=expected["corrected"] < 1e-9 and abs(expected["largest"]) < 1e-9,
            corrected=True,
        ),
    ]


FIGURE = Figure(
    title="Theorem 3 of Esser et al. 2023, Representation Learning Dynamics",
    claim="One output ends at 0 if all eigenvalues of C are positive, and at the lowest eigenvector if one is negative.",
    sizes={"smoke": Size(starts=4, networks=2, factors=9), "small": Size(), "paper": Size(starts=20, networks=50)},
    compute=compute,
    plot=plot,
    claims=claims,
)
