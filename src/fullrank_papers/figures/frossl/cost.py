"""The cost of FroSSL, CorInfoMax and I-VNE+: seconds of loss and gradient against the batch size N and the dimension D.

The paper gives O(N D²) for the Frobenius norm and O(D³) for CorInfoMax's log-determinant, and says that I-VNE+'s
eigendecomposition can slow down training as the batch grows. The objectives alternate in one process, because the speed
of a machine drifts; the ratios of a round are then stable where times are not.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import fmean, median

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.evaluation.paired import paired_difference
from fullrank.objectives import corinfomax, frossl, ivne, total
from fullrank.objectives.algebra import unit
from fullrank_papers.figures.figure import MplFigure, Rows, Verdicts, verdict
from fullrank_papers.figures.numerics import holds_for_all, log_slope, time_rounds
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


def time_losses(Z: Float[Tensor, "2 N D"], *, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each loss with its gradient, in each round."""
    D = Z.shape[-1]
    R, mu = torch.eye(D, device=Z.device).repeat(2, 1, 1), torch.zeros(2, D, device=Z.device)
    arguments = {"frossl": (frossl, Z), "corinfomax": (corinfomax, unit(Z, dim=-1), R, mu), "ivne": (ivne, Z)}
    return time_rounds({name: partial(gradient, *each) for name, each in arguments.items()}, rounds)


def gradient(objective: Callable, Z: Tensor, *state: Tensor) -> Tensor:
    """Return the gradient of an objective's loss at Z."""
    Z = Z.detach().requires_grad_()
    return torch.autograd.grad(total(objective(Z, *state)), Z)[0]


def plot(rows: Rows) -> MplFigure:
    figure, (axes,) = subplots(1, 2, width=9.0, height=3.4)
    for axis, letter in zip(axes, "ND", strict=True):
        row, other = rows[letter], "D" if letter == "N" else "N"
        for marker, (name, label) in zip("osv", LABELS.items(), strict=True):
            milliseconds = [1000 * median(seconds) for seconds in row["seconds"][name]]
            axis.loglog(row[letter], milliseconds, f"{marker}-", markersize=4, label=label)
        axis.set(xlabel=letter, title=f"{other} = {row[other][0]}, {rows['device']}, {rows['threads']} threads")
    axes[0].set_ylabel("milliseconds of loss and gradient, median")
    axes[0].legend()
    return figure


def evaluate_claims(rows: Rows) -> Verdicts:
    def compared(axis: str, name: str) -> tuple[list[list[float]], str]:
        """Return the logarithms of the time of an objective over FroSSL's, at each value of N or D and in each round,
        and a text with the geometric means.
        """
        pairs = zip(rows[axis]["seconds"][name], rows[axis]["seconds"]["frossl"], strict=True)
        found = [[math.log(a / b) for a, b in zip(*each, strict=True)] for each in pairs]
        times, values = ", ".join(f"{math.exp(fmean(x)):.2f}" for x in found), ", ".join(map(str, rows[axis][axis]))
        return found, f"FroSSL's time times {times} at {axis} = {values}"

    def above(a: list[float], b: list[float] | None = None) -> bool | None:
        return paired_difference(a, b or [0.0] * len(a)).exceeds(0.0)

    (corinfomax, text), (ivne, ivne_text) = compared("D", "corinfomax"), compared("N", "ivne")
    medians = {name: [median(times) for times in seconds] for name, seconds in rows["D"]["seconds"].items()}
    slopes = {name: log_slope(rows["D"]["D"], times) for name, times in medians.items()}
    return {
        "corinfomax": verdict(
            f"{text}; times grow as D^{slopes['frossl']:.1f} and D^{slopes['corinfomax']:.1f}",
            holds_for_all([*map(above, corinfomax), above(corinfomax[-1], corinfomax[0])]),
        ),
        "ivne": verdict(ivne_text, holds_for_all([above(ivne[-1]), above(ivne[-1], ivne[0])])),
    }


SMALL, LARGE = (64, 128, 256, 512, 1024), (128, 256, 512, 1024, 2048, 4096)
SIZES = {
    "smoke": Size(samples=(16, 64), dimension=32, dimensions=(16, 64), batch=32, rounds=3),
    "small": Size(samples=SMALL, dimension=256, dimensions=SMALL, batch=256, rounds=30),
    "gpu": Size(samples=LARGE, dimension=1024, dimensions=LARGE, batch=256, rounds=20),
    "paper": Size(samples=LARGE[:4], dimension=1024, dimensions=LARGE[:5], batch=256, rounds=20),
}
