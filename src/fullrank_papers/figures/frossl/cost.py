"""The cost of FroSSL, CorInfoMax and I-VNE+: seconds of loss and gradient against the batch size N and the dimension D.

The paper gives O(N D²) for the Frobenius norm and O(D³) for CorInfoMax's log-determinant, and says that I-VNE+'s
eigendecomposition can slow down training as the batch grows. The objectives alternate in one process, because the speed
of a machine drifts; ratios of medians are then stable where times are not.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.objectives import corinfomax, frossl, ivne, total
from fullrank.objectives.algebra import unit
from fullrank.report.plot_style import subplots
from fullrank_papers.figures.figure import MplFigure, Rows, Verdicts, verdict
from fullrank_papers.figures.numerics import log_slope

LABELS = {"frossl": "FroSSL", "corinfomax": "CorInfoMax", "ivne": "I-VNE+"}


@dataclass(frozen=True)
class Size:
    """The shapes of the embeddings, and how often each loss is timed."""

    samples: tuple[int, ...]  # batch sizes N at D = dimension
    dimension: int
    dimensions: tuple[int, ...]  # dimensions D at N = batch
    batch: int
    rounds: int


def compute(size: Size, *, data: str | None, seed: int) -> Rows:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    shapes = {"N": [(N, size.dimension) for N in size.samples], "D": [(size.batch, D) for D in size.dimensions]}
    rng = torch.Generator().manual_seed(seed)
    rows: Rows = {"device": device, "threads": torch.get_num_threads(), "rounds": size.rounds}
    for axis, pairs in shapes.items():
        times = [time_losses(torch.randn(2, N, D, generator=rng).to(device), rounds=size.rounds) for N, D in pairs]
        seconds = {name: [each[name] for each in times] for name in LABELS}
        rows[axis] = {"N": [N for N, _ in pairs], "D": [D for _, D in pairs], "seconds": seconds}
    return rows


def time_losses(Z: Float[Tensor, "2 N D"], *, rounds: int) -> dict[str, float]:
    """Return the median seconds of each loss with its gradient, after one call each that does not count."""
    D = Z.shape[-1]
    rows = unit(Z, dim=-1)  # CorInfoMax takes embeddings with unit rows
    R, mu = torch.eye(D, device=Z.device).repeat(2, 1, 1), torch.zeros(2, D, device=Z.device)
    works: dict[str, Callable[[], object]] = {
        "frossl": lambda: gradient(frossl, Z),
        "corinfomax": lambda: gradient(corinfomax, rows, R, mu),
        "ivne": lambda: gradient(ivne, Z),
    }
    times: dict[str, list[float]] = {name: [] for name in works}
    for count in range(rounds + 1):
        for name, work in works.items():
            start = now(Z)
            work()
            if count:
                times[name].append(now(Z) - start)
    return {name: statistics.median(values) for name, values in times.items()}


def now(Z: Tensor) -> float:
    """Return the time, after the GPU has finished if there is one."""
    if Z.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter()


def gradient(objective: Callable, Z: Tensor, *state: Tensor) -> Tensor:
    """Return the gradient of an objective's loss at Z."""
    Z = Z.detach().requires_grad_()
    total(objective(Z, *state)).backward()
    assert Z.grad is not None
    return Z.grad


def plot(rows: Rows) -> MplFigure:
    figure, (axes,) = subplots(1, 2, width=9.0, height=3.4)
    for axis, letter in zip(axes, "ND", strict=True):
        row, other = rows[letter], "D" if letter == "N" else "N"
        for marker, (name, label) in zip("osv", LABELS.items(), strict=True):
            axis.plot(
                row[letter],
                [1000 * seconds for seconds in row["seconds"][name]],
                f"{marker}-",
                markersize=4,
                label=label,
            )
        axis.set(
            xscale="log",
            yscale="log",
            xlabel=letter,
            title=f"{other} = {row[other][0]}, {rows['device']}, {rows['threads']} threads",
        )
    axes[0].set_ylabel("milliseconds of loss and gradient, median")
    axes[0].legend()
    return figure


def ratios_to_frossl(rows: Rows, axis: str, name: str) -> list[float]:
    """Return the time of an objective as a multiple of FroSSL's, at each value of N or D."""
    seconds = rows[axis]["seconds"]
    return [a / b for a, b in zip(seconds[name], seconds["frossl"], strict=True)]


def evaluate_claims(rows: Rows) -> Verdicts:
    corinfomax_ratios, ivne_ratios = ratios_to_frossl(rows, "D", "corinfomax"), ratios_to_frossl(rows, "N", "ivne")
    slopes = {name: log_slope(rows["D"]["D"], seconds) for name, seconds in rows["D"]["seconds"].items()}

    def measured(axis: str, ratios: list[float]) -> str:
        times, values = ", ".join(f"{ratio:.1f}" for ratio in ratios), ", ".join(map(str, rows[axis][axis]))
        return f"FroSSL's time times {times} at {axis} = {values}"

    return {
        "corinfomax": verdict(
            f"{measured('D', corinfomax_ratios)}; times grow as D^{slopes['frossl']:.1f} and "
            f"D^{slopes['corinfomax']:.1f}",
            all(ratio > 1 for ratio in corinfomax_ratios) and corinfomax_ratios[-1] > corinfomax_ratios[0],
        ),
        "ivne": verdict(measured("N", ivne_ratios), ivne_ratios[-1] > 1 and ivne_ratios[-1] > ivne_ratios[0]),
    }


TITLE = "Cost of the entropies, Section 4.3 of Skean et al. 2024, FroSSL"
CLAIM = (
    "FroSSL avoids the eigendecompositions of CorInfoMax and I-VNE+, whose cost grows with the dimension and "
    "the batch size."
)
SIZES = {
    "smoke": Size(samples=(16, 64), dimension=32, dimensions=(16, 64), batch=32, rounds=3),
    "small": Size(
        samples=(64, 128, 256, 512, 1024), dimension=256, dimensions=(64, 128, 256, 512, 1024), batch=256, rounds=7
    ),
    "gpu": Size(
        samples=(128, 256, 512, 1024, 2048, 4096),
        dimension=1024,
        dimensions=(128, 256, 512, 1024, 2048, 4096),
        batch=256,
        rounds=20,
    ),
    "paper": Size(
        samples=(128, 256, 512, 1024), dimension=1024, dimensions=(128, 256, 512, 1024, 2048), batch=256, rounds=20
    ),
}
