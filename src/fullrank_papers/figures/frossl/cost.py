"""The cost of FroSSL, CorInfoMax and I-VNE+: seconds of loss and gradient against the batch size N and the dimension D.

The paper gives O(N D²) for the Frobenius norm and O(D³) for CorInfoMax's log-determinant, and says that I-VNE+'s
eigendecomposition can slow down training as the batch grows. The objectives alternate in one process, because the speed
of a machine drifts; ratios of medians are then stable where times are not.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.objectives import corinfomax, frossl, ivne, total
from fullrank.objectives.algebra import unit
from fullrank_papers.figures.figure import MplFigure, Rows, Verdicts, verdict
from fullrank_papers.figures.numerics import log_slope, median_times, ratios
from fullrank_papers.plot_style import subplots

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
    """Return the median seconds of each loss with its gradient."""
    D = Z.shape[-1]
    R, mu = torch.eye(D, device=Z.device).repeat(2, 1, 1), torch.zeros(2, D, device=Z.device)
    arguments = {"frossl": (frossl, Z), "corinfomax": (corinfomax, unit(Z, dim=-1), R, mu), "ivne": (ivne, Z)}
    return median_times({name: partial(gradient, *each) for name, each in arguments.items()}, rounds)


def gradient(objective: Callable, Z: Tensor, *state: Tensor) -> Tensor:
    """Return the gradient of an objective's loss at Z."""
    Z = Z.detach().requires_grad_()
    return torch.autograd.grad(total(objective(Z, *state)), Z)[0]


def plot(rows: Rows) -> MplFigure:
    figure, (axes,) = subplots(1, 2, width=9.0, height=3.4)
    for axis, letter in zip(axes, "ND", strict=True):
        row, other = rows[letter], "D" if letter == "N" else "N"
        for marker, (name, label) in zip("osv", LABELS.items(), strict=True):
            milliseconds = [1000 * seconds for seconds in row["seconds"][name]]
            axis.loglog(row[letter], milliseconds, f"{marker}-", markersize=4, label=label)
        axis.set(xlabel=letter, title=f"{other} = {row[other][0]}, {rows['device']}, {rows['threads']} threads")
    axes[0].set_ylabel("milliseconds of loss and gradient, median")
    axes[0].legend()
    return figure


def evaluate_claims(rows: Rows) -> Verdicts:
    def compared(axis: str, name: str) -> tuple[list[float], str]:
        """Return the time of an objective as a multiple of FroSSL's, at each value of N or D, and its text."""
        found = ratios(rows[axis]["seconds"][name], rows[axis]["seconds"]["frossl"])
        times, values = ", ".join(f"{ratio:.1f}" for ratio in found), ", ".join(map(str, rows[axis][axis]))
        return found, f"FroSSL's time times {times} at {axis} = {values}"

    (corinfomax, text), (ivne, ivne_text) = compared("D", "corinfomax"), compared("N", "ivne")
    slopes = {name: log_slope(rows["D"]["D"], seconds) for name, seconds in rows["D"]["seconds"].items()}
    return {
        "corinfomax": verdict(
            f"{text}; times grow as D^{slopes['frossl']:.1f} and D^{slopes['corinfomax']:.1f}",
            all(ratio > 1 for ratio in corinfomax) and corinfomax[-1] > corinfomax[0],
        ),
        "ivne": verdict(ivne_text, ivne[-1] > 1 and ivne[-1] > ivne[0]),
    }


SMALL, LARGE = (64, 128, 256, 512, 1024), (128, 256, 512, 1024, 2048, 4096)
SIZES = {
    "smoke": Size(samples=(16, 64), dimension=32, dimensions=(16, 64), batch=32, rounds=3),
    "small": Size(samples=SMALL, dimension=256, dimensions=SMALL, batch=256, rounds=7),
    "gpu": Size(samples=LARGE, dimension=1024, dimensions=LARGE, batch=256, rounds=20),
    "paper": Size(samples=LARGE[:4], dimension=1024, dimensions=LARGE[:5], batch=256, rounds=20),
}
