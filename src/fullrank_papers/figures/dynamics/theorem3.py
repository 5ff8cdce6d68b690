"""Theorem 3: the limits of the outputs under the constrained flow, and the cases that the theorem omits.

The paper proves two cases for one output: all eigenvalues positive, and at least one negative. We add: starts on the
unit sphere (every network with as many hidden units as inputs), starts without a component along e₁, multiple and zero
eigenvalues, several outputs, and the largest stable step of the discretisation (12). We also check E[C], with which the
paper explains negative eigenvalues.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fullrank_papers.figures.figure import MplFigure, Rows, Verdicts, verdict
from fullrank_papers.figures.numerics import normal
from fullrank_papers.plot_style import subplots
from fullrank_papers.theory import trace
from fullrank_papers.theory.contrastive_pairs import pair_matrix
from fullrank_papers.theory.optimum import output_limit, output_limit_projector

# Eigenvalues of C in each plane, and its title.
PLANES = {
    "positive": ((0.5, 1.5), "λ = (½, 3/2): to 0, except |q₀| = 1"),
    "negative": ((-1.0, 1.0), "λ = (−1, 1): to ±e₁, except e₁·q₀ = 0"),
    "multiple": ((-1.0, -1.0), "λ = (−1, −1): along q₀"),
    "zero": ((0.0, 1.0), "λ = (0, 1): into the kernel, |q| < 1"),
}
# For each of the three bounds of the step, a case in which it is the smallest: eigenvalues, and number of outputs.
BOUNDS: dict[str, tuple[tuple[int | float, ...], int]] = {
    "1/(4|λ₁|)": ((-2, 1), 1),
    "1/(λ_d − λ₁)": ((-0.5, 4), 1),
    "1/(2λ_d)": ((-0.5, 3), 2),
}
SEVERAL_OUTPUTS = (-2.0, -1.0, 1.0, 3.0)
END_TIME, POINTS = 12.0, 60


@dataclass(frozen=True)
class Size:
    """Numbers of starts and networks."""

    starts: int = 8  # random starts per plane; half of them are opposite to the others
    networks: int = 10  # trained networks with h = d, and with several outputs
    factors: int = 21  # number of steps between 0.8 and 1.2 of each stable bound


def float64(*values: int | float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def integrate_plane(eigenvalues: Tensor, starts: Tensor, end: float = END_TIME) -> dict[str, Any]:
    """Return paths from several starts, their limits by `output_limit`, and the largest distance between last point and
    limit.
    """
    t = end * torch.linspace(0, 1, POINTS, dtype=torch.float64) ** 2
    paths = [trace.integrate_outputs(q0[:, None], eigenvalues, t)[..., 0] for q0 in starts]
    limits = [output_limit(q0, eigenvalues) for q0 in starts]
    error = max((path[-1] - end_point).norm().item() for path, end_point in zip(paths, limits, strict=True))
    return {"paths": [path.mT.tolist() for path in paths], "limits": [x.tolist() for x in limits], "error": error}


def sphere_growth_rate(eigenvalue: float) -> float:
    """Return the rate at which 1 − |q| grows near the unit sphere, for a C with one eigenvalue, `eigenvalue` > 0."""
    t = float64(0, 0.5 / eigenvalue)
    gap = 1 - trace.integrate_outputs(float64(1 - 1e-6)[:, None], float64(eigenvalue), t).flatten()
    return ((gap[1] / gap[0]).log() / t[1]).item()


def train_square(eigenvalues: Tensor, generator: torch.Generator) -> tuple[float, float]:
    """Return |q| and the distance of q from ±e₁ after training a network with h = d by (11)."""
    d = len(eigenvalues)
    W1, W2 = trace.orthonormal_weights(d, hidden=d, outputs=1, generator=generator)
    for _ in range(700):
        W1, W2 = trace.projected_gradient_step(W1, W2, torch.diag(eigenvalues), learning_rate=0.02)
    q = (W1.mT @ W2)[:, 0]
    return q.norm().item(), math.hypot(1 - abs(q[0].item()), q[1:].norm().item())


def integrate_several(hidden: int, generator: torch.Generator) -> dict[str, Any]:
    """Return eigenvalues of qqᵀ over time with three outputs, for a C with two negative eigenvalues."""
    eigenvalues = float64(*SEVERAL_OUTPUTS)
    W1, W2 = trace.orthonormal_weights(4, hidden=hidden, outputs=3, generator=generator)
    t = 6 * torch.linspace(0, 1, POINTS, dtype=torch.float64) ** 2
    q = trace.integrate_outputs(W1.mT @ W2, eigenvalues, t)
    last = output_limit_projector(eigenvalues, hidden=hidden, outputs=3)
    return {
        "t": t.tolist(),
        "squares": torch.linalg.svdvals(q).square().mT.tolist(),
        "error": (q[-1] @ q[-1].mT - last).norm().item(),
    }


def final_distance(eigenvalues: Tensor, outputs: int, factor: float, noise: Tensor) -> float:
    """Return the distance (at most 1) of qqᵀ from its minimum after 400 steps of (12) from a start close to it.

    The step is `factor` times the stable step.
    """
    step = factor * trace.stability_limit(eigenvalues, outputs=outputs)
    rank = min(outputs, int((eigenvalues < 0).sum()))
    optimum = torch.eye(len(eigenvalues), outputs, dtype=torch.float64) * (torch.arange(outputs) < rank)
    q = optimum + 1e-6 * noise
    for _ in range(400):
        q = q + step * trace.output_vector_field(q, eigenvalues)
    distance = (q @ q.mT - optimum @ optimum.mT).norm().item()
    return min(distance, 1.0) if math.isfinite(distance) else 1.0


def expected_pair_matrix(generator: torch.Generator) -> dict[str, float]:
    """Return distances of the exact E[C] / n from both formulas, and its largest eigenvalue: 50 samples, mean ≠ 0, in 2
    of 3 dimensions.
    """
    X = normal(50, 2, rng=generator) @ float64(1, 0, 1, 0, 1, 1).view(2, 3) + 2
    # Each sample is a negative of each anchor; the noise of positives has mean 0.
    C = pair_matrix(X, X, X.expand(50, 50, 3), average=True)
    printed, ours = -X.mT @ X / 50, -torch.cov(X.mT, correction=0)
    return {
        "printed": ((C - printed).norm() / C.norm()).item(),
        "corrected": ((C - ours).norm() / C.norm()).item(),
        "largest": torch.linalg.eigvalsh(C)[-1].item(),
    }


def compute(size: Size, *, data: str | None = None, seed: int = 0) -> Rows:
    generator = torch.Generator().manual_seed(seed)

    directions = torch.nn.functional.normalize(normal(size.starts // 2, 2, rng=generator))
    lengths = 0.2 + 0.7 * torch.rand(size.starts // 2, 1, dtype=torch.float64, generator=generator)
    inside = torch.cat([lengths * directions, -lengths.flip(0) * directions])
    planes = {name: integrate_plane(float64(*spectrum), inside) for name, (spectrum, _) in PLANES.items()}
    positive, negative = (float64(*PLANES[name][0]) for name in ("positive", "negative"))
    on_sphere = float64(1, 2, -1, 2, -2, -1).view(3, 2) / 5**0.5
    exceptions = {
        "sphere": integrate_plane(positive, on_sphere, end=2.8),  # later, rounding errors move q off the sphere
        "orthogonal": integrate_plane(negative, float64(0, 0.7, 0, -0.7).view(2, 2)),
        "next": integrate_plane(float64(-2, -1, 1), float64(0, -0.4, 0.3).view(1, 3)),
    }
    squares = [train_square(float64(0.5, 1, 1.5), generator) for _ in range(size.networks)]
    outputs = [integrate_several(7, generator) for _ in range(size.networks)]
    factors = torch.linspace(0.8, 1.2, size.factors).tolist()
    steps = {}
    for name, (spectrum, z) in BOUNDS.items():
        noise = normal(len(spectrum), z, rng=generator)
        steps[name] = [final_distance(float64(*spectrum), z, factor, noise) for factor in factors]
    return {
        "planes": planes,
        "exceptions": exceptions,
        "sphere_rate": sphere_growth_rate(0.5) / 0.5,
        "square": {"length": [length for length, _ in squares], "error": max(error for _, error in squares)},
        "several": {**outputs[0], "error": max(out["error"] for out in outputs), "networks": size.networks},
        "steps": {"factors": factors, "distances": steps},
        "expectation": expected_pair_matrix(generator),
    }


def plot(rows: Rows) -> MplFigure:
    figure, axes = subplots(2, 3, width=10.0, height=6.8)
    discs = (axes[0, 0], axes[0, 1], axes[0, 2], axes[1, 0])
    angle = torch.linspace(0, 2 * math.pi, 100)
    for axis, (name, covered) in zip(discs, rows["planes"].items(), strict=True):
        axis.plot(angle.cos(), angle.sin(), color="0.7", linewidth=0.8)
        exception = {"positive": "sphere", "negative": "orthogonal"}.get(name)
        by_color = {"C0": covered} | ({"C1": rows["exceptions"][exception]} if exception else {})
        for color, plane in by_color.items():
            for (x, y), end in zip(plane["paths"], plane["limits"], strict=True):
                axis.plot(x, y, color=color)
                axis.plot(x[0], y[0], "o", color=color, markersize=3)
                axis.plot(*end, "*", color="black", markersize=7, linestyle="none", zorder=4)
        axis.set(title=PLANES[name][1], xlabel="q₁", ylabel="q₂", aspect="equal", xticks=(-1, 0, 1), yticks=(-1, 0, 1))
    axes[0, 0].plot([], [], color="C0", label="Theorem 3")
    axes[0, 0].plot([], [], color="C1", label="not covered")
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


def evaluate_claims(rows: Rows) -> Verdicts:
    planes, exceptions, expected = rows["planes"], rows["exceptions"], rows["expectation"]
    signed, starts = planes["negative"]["error"], len(planes["negative"]["paths"])
    unsigned = max(math.hypot(1 - abs(x[-1]), y[-1]) for x, y in planes["negative"]["paths"])
    sides = {math.copysign(1, x[-1]) for x, _ in planes["negative"]["paths"]}
    sphere, orthogonal = (
        max(math.hypot(x[-1], y[-1]) for x, y in exceptions[name]["paths"]) for name in ("sphere", "orthogonal")
    )
    kernel = [math.hypot(*limit) for limit in planes["zero"]["limits"]]
    results = planes | exceptions | {name: rows[name] for name in ("square", "several")}
    errors = {name: result["error"] for name, result in results.items()}
    lengths, rate = rows["square"]["length"], rows["sphere_rate"]
    factors, steps = rows["steps"]["factors"], rows["steps"]["distances"].values()
    below = max(x for distances in steps for f, x in zip(factors, distances, strict=True) if f < 0.955)
    above = min(x for distances in steps for f, x in zip(factors, distances, strict=True) if f > 1.045)
    largest = f"largest eigenvalue {abs(expected['largest']):.0e}"
    return {
        "positive": verdict(f"{errors['positive']:.1g} at t = {END_TIME:g}", errors["positive"] < 1e-6),
        "negative": verdict(f"within {unsigned:.1g}, {starts} starts", unsigned < 1e-6),
        "sphere": verdict(f"|q| = {sphere:.4f} from |q₀| = 1", sphere < 1e-6),
        "orthogonal": verdict(f"|q| = {orthogonal:.1g} where e₁·q₀ = 0", orthogonal > 1 - 1e-6),
        "expectation": verdict(
            f"relative distance {expected['printed']:.1f}, {largest}",
            expected["printed"] < 1e-6 and expected["largest"] < -1e-9,
        ),
        "sign": verdict(f"within {signed:.1g}, on {len(sides)} sides", signed < 1e-6 and len(sides) == 2),
        "on_sphere": verdict(
            f"within {errors['sphere']:.1g}, {rate:.3f} λ₁", errors["sphere"] < 0.1 and abs(rate - 8) < 0.01
        ),
        "square": verdict(
            f"|q| ≥ {min(lengths):.6f}, within {errors['square']:.1g}, {len(lengths)} networks",
            min(lengths) > 1 - 1e-9 and errors["square"] < 1e-3,
        ),
        "next": verdict(
            "within {next:.1g} and {orthogonal:.1g}".format(**errors), max(errors["next"], errors["orthogonal"]) < 1e-6
        ),
        "multiple": verdict(f"within {errors['multiple']:.1g}", errors["multiple"] < 1e-6),
        "zero": verdict(
            f"{min(kernel):.2f} to {max(kernel):.2f}, within {errors['zero']:.1g}",
            min(kernel) > 0 and max(kernel) < 1 and errors["zero"] < 1e-6,
        ),
        "several": verdict(f"{errors['several']:.1g}, {rows['several']['networks']} starts", errors["several"] < 1e-6),
        "steps": verdict(f"at most {below:.1g}, at least {above:.1g}", below < 1e-8 and above > 1e-3),
        "covariance": verdict(
            f"relative distance {expected['corrected']:.0e}, {largest}",
            expected["corrected"] < 1e-9 and abs(expected["largest"]) < 1e-9,
        ),
    }


SIZES = {"smoke": Size(starts=4, networks=2, factors=9), "small": Size(), "paper": Size(starts=20, networks=50)}
