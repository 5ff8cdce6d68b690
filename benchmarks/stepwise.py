"""Measure how accurately learning times are predicted from small random weights, over many starts.

    python benchmarks/stepwise.py            # a few minutes

A linear network (D outputs) is trained by gradient flow on the loss of Simon et al. 2023, from `STARTS` random weights
of each scale. The error of a learning time is |measured / predicted − 1|; for each start, the largest error of the
first D − 1 modes, and the error of the last. "block SVD" is `aligned_initialization` with all modes, "first D modes"
the same without modes D + 1 and beyond, and "Gram-Schmidt" is the QR factorisation of W(0)V of the first D modes, as in
the paper. Writes the medians, 95 % quantiles and maxima over the starts to `benchmarks/results/stepwise.json`.
"""

from datetime import UTC, datetime
from pathlib import Path

import torch
from torch import Tensor

from fullrank.run import write_json
from fullrank.run.environment import platform_info
from fullrank_papers.theory import stepwise
from fullrank_papers.theory.flow import solve_ode

OUT = Path(__file__).parent / "results" / "stepwise.json"
STARTS = 40
CASES = {
    "1/j": ([1 / j for j in range(1, 21)], 8),
    "two equal": ([1, 1, 0.5, 0.25, 0.1], 3),
    "3 % apart": ([1, 0.97, 0.5, 0.25, 0.1], 3),
    "10 % apart": ([1, 0.9, 0.5, 0.25, 0.1], 3),
    "last equal to the next": ([1, 0.6, 0.4, 0.4, 0.1], 3),
}
SCALES = {"1/j": (1e-3, 1e-6)}


def main():
    torch.set_num_threads(1)
    rows = [measure(name, scale) for name in CASES for scale in SCALES.get(name, (1e-4,))]
    write_json(
        OUT, {"settings": {"starts": STARTS}, "date": f"{datetime.now(UTC):%Y-%m-%d}", **platform_info(), "rows": rows}
    )


def measure(name: str, scale: float) -> dict:
    gamma, D = torch.tensor(CASES[name][0], dtype=torch.float64), CASES[name][1]
    rng = torch.Generator().manual_seed(0)
    W = scale * torch.randn(STARTS, D, len(gamma), generator=rng, dtype=torch.float64)
    predicted = {
        "block SVD": torch.stack([predict(start, gamma) for start in W]),
        "first D modes": torch.stack([predict(start, gamma[:D]) for start in W]),
        "Gram-Schmidt": torch.stack([gram_schmidt(start, gamma[:D]) for start in W]),
    }
    measured = train(W, gamma, 1.2 * predicted["block SVD"].max().item())
    errors = {method: summarize((measured / times - 1).abs()) for method, times in predicted.items()}
    print(name, scale, errors)
    return {"spectrum": name, "gamma": gamma.tolist(), "outputs": D, "scale": scale, "errors": errors}


def predict(W: Tensor, gamma: Tensor) -> Tensor:
    return stepwise.learning_times(
        *stepwise.aligned_initialization(W[:, : len(gamma)], gamma, torch.eye(len(gamma)).double())[:2]
    )


def gram_schmidt(W: Tensor, gamma: Tensor) -> Tensor:
    s = torch.linalg.qr(W[:, : len(gamma)])[1].diagonal().abs()
    return stepwise.learning_times(s, gamma).sort().values


def train(W: Tensor, gamma: Tensor, end: float) -> Tensor:
    """Return the learning times of each start, by the flow of all starts together."""
    t = torch.linspace(0, end, 3001, dtype=torch.float64)
    eye = torch.eye(W.shape[1], dtype=W.dtype)

    def velocity(Y: Tensor) -> Tensor:  # stepwise.vector_field for Γ = diag(γ)
        WG = Y * gamma
        return -4 * (WG @ Y.mT - eye) @ WG

    path = solve_ode(velocity, W, t, rtol=1e-9, atol=1e-14)
    values = torch.linalg.eigvalsh((path * gamma) @ path.mT).flip(-1)
    return torch.stack([stepwise.crossing_times(t, values[:, start]) for start in range(len(W))])


def summarize(errors: Tensor) -> dict[str, dict[str, float]]:
    parts = {"first modes": errors[:, :-1].amax(1), "last mode": errors[:, -1]}
    return {
        part: {"median": x.median().item(), "95 %": x.quantile(0.95).item(), "maximum": x.max().item()}
        for part, x in parts.items()
    }


if __name__ == "__main__":
    main()
