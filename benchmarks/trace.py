"""Measure the cost of the flow of the outputs: compare a step of (12) with gradient descent (11), and with more
accurate integrators.

    python benchmarks/trace.py            # a minute or two

Loss and equations are those of Esser et al. 2023, with C from embedded digits after PCA and two outputs. Times are
medians over steps, and all widths alternate in one process; "gradient" is (11) without the projection. The accuracy is
the largest error of qqᵀ at eight times until the loss is close to its minimum, as a function of the number of
evaluations of the right-hand side, for Euler's method (12), an adaptive method (`integrate_outputs`) and, for the
canonical flow, the closed form. Writes `benchmarks/results/trace.json`.
"""

import math
from datetime import UTC, datetime
from pathlib import Path
from unittest import mock

import torch
from torch import Tensor

from fullrank.run import write_json
from fullrank.run.environment import platform_info
from fullrank_papers.figures.dynamics.fig4 import Size, exponent, load_classes, pair_matrix_with_noise, step_times
from fullrank_papers.theory import trace
from fullrank_papers.theory.contrastive_pairs import eigenbasis

OUT = Path(__file__).parent / "results" / "trace.json"
WIDTHS, INPUTS, REPEATS, OUTPUTS = (10, 100, 1000, 10000), (10, 50), 1000, 2
STEPS = tuple(2**k for k in range(6, 18))
TOLERANCES = tuple(10.0**-k for k in range(2, 13))
ERRORS = (1e-2, 1e-4, 1e-6)


def main():
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    images = load_classes(None, Size(components=max(INPUTS)), (4, 9), seed=0).X
    indices = torch.arange(len(images)).repeat(10)
    matrices = {d: pair_matrix_with_noise(images[:, :d], indices, generator) for d in INPUTS}
    found = {
        "times": [cost(C, generator) for C in matrices.values()],
        "accuracy": [accuracy(matrices[INPUTS[0]], flow, generator) for flow in ("horizontal", "canonical")],
    }
    write_json(
        OUT,
        {
            "settings": {"outputs": OUTPUTS, "repeats": REPEATS},
            "date": f"{datetime.now(UTC):%Y-%m-%d}",
            **platform_info(),
            **found,
        },
    )


def cost(C: Tensor, generator: torch.Generator) -> dict:
    widths = [h for h in WIDTHS if h >= len(C)]
    micros = step_times(C, tuple(widths), repeats=REPEATS, generator=generator)
    ratios = {
        name: [a / b for a, b in zip(micros[name], micros["flow"], strict=True)] for name in ("descent", "gradient")
    }
    exponents = {name: exponent(widths, values, above=1000 * (name != "flow")) for name, values in micros.items()}
    print(f"d = {len(C)}, h = {widths}: times of a step over those of (12)", ratios, "exponents", exponents)
    return {"inputs": len(C), "widths": widths, "microseconds": micros, "ratios": ratios, "exponents": exponents}


def accuracy(C: Tensor, flow: str, generator: torch.Generator) -> dict:
    eigenvalues, V = eigenbasis(C)
    W1, W2 = trace.orthonormal_weights(len(C), hidden=100, outputs=OUTPUTS, generator=generator)
    q0 = V.mT @ W1.mT @ W2
    end = 8 / (4 * eigenvalues[0].abs())
    t = end * torch.linspace(0, 1, 9, dtype=torch.float64)[1:]
    exact = trace.integrate_outputs(q0, eigenvalues, t, flow=flow, rtol=1e-13, atol=1e-15)

    def error(
        q: Tensor,
    ) -> float:  # compares qqᵀ, because the closed form does not determine the rotation of the outputs
        return (q @ q.mT - exact @ exact.mT).flatten(1).norm(dim=1).max().item()

    def count_evaluations(solve) -> tuple[int, float]:
        with mock.patch.object(trace, "output_vector_field", wraps=trace.output_vector_field) as field:
            q = solve()
        return field.call_count, error(q)

    largest = trace.stability_limit(eigenvalues, outputs=OUTPUTS, flow=flow)
    euler = [
        count_evaluations(
            lambda n=n: trace.euler_outputs(q0, eigenvalues, learning_rate=end.item() / n, steps=n, flow=flow)[
                n // 8 :: n // 8
            ]
        )
        for n in STEPS
        if end / n < largest
    ]
    adaptive = [
        count_evaluations(lambda r=r: trace.integrate_outputs(q0, eigenvalues, t, flow=flow, rtol=r, atol=r / 100))
        for r in TOLERANCES
    ]
    methods = {"euler": euler, "adaptive": adaptive}
    if flow == "canonical":
        methods["closed form"] = [count_evaluations(lambda: trace.canonical_outputs(q0, eigenvalues, t))]
    evaluations = {
        name: {f"{target:g}": evaluations_for(points, target) for target in ERRORS} for name, points in methods.items()
    }
    print(flow, evaluations)
    return {"flow": flow, "methods": methods, "evaluations for an error of": evaluations}


def evaluations_for(points: list[tuple[int, float]], target: float) -> int:
    """Return the smallest number of evaluations with an error of at most `target`, extrapolated at first order (Euler)
    if necessary."""
    reached = [n for n, error in points if error <= target]
    n, error = points[-1]
    return min(reached) if reached else math.ceil(n * error / target)


if __name__ == "__main__":
    main()
