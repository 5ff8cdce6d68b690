"""Fig. 11: more layers collapse more: eigenvalues of the embeddings' covariance for 1 to 4 layers, linear and with ReLU
between them.

A product of many random layers is uneven before training, and the paper does not say how its layers are initialised
(ours: as in PyTorch). So in a third panel networks of all depths start from the same small product, balanced: there
only training can make a difference.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from fullrank.spectrum.functional import effective_rank
from fullrank_papers.figures.directclr.toy_models import DIMENSIONS, ToySize, sample_batches, seeded_generator
from fullrank_papers.figures.figure import MplFigure, Rows, Verdict, Verdicts, verdict
from fullrank_papers.figures.numerics import normal
from fullrank_papers.plot_style import subplots
from fullrank_papers.theory.infonce import linear_vector_field, relu_vector_field, train_infonce
from fullrank_papers.theory.infonce_alignment import balanced_layers

DEPTHS = (1, 2, 3, 4)
CASES = {"linear": "Linear", "relu": "ReLU between layers", "product": "Linear, all from one product"}
COLLAPSED = 1e-3  # a dimension is collapsed if its eigenvalue is at most this share of the largest


@dataclass(frozen=True)
class Size(ToySize):
    noise: float  # standard deviation of the augmentation; the data have 1


def init_layers(case: str, depth: int, rng: torch.Generator) -> list[Tensor]:
    """Return layers as `torch.nn.Linear` initialises them, uniform in ±1/√16; for "product", 0.3 of one such matrix in
    balanced layers.
    """
    layers = [
        (2 * torch.rand(DIMENSIONS, DIMENSIONS, generator=rng, dtype=torch.float64) - 1) / DIMENSIONS**0.5
        for _ in range(depth)
    ]
    return balanced_layers(0.3 * layers[0], depth) if case == "product" else layers


def embed(case: str, weights: list[Tensor], x: Tensor) -> Tensor:
    for W in weights[:-1]:
        x = (x @ W.mT).relu() if case == "relu" else x @ W.mT
    return x @ weights[-1].mT


def compute(size: Size, *, data: str | None, seed: int) -> Rows:
    x = normal(2000, DIMENSIONS, rng=seeded_generator(seed, 2))

    def train_spectra(case: str, depth: int) -> dict[str, list[float]]:
        rng = seeded_generator(seed, 1)
        start, k = init_layers(case, depth, rng), torch.full((DIMENSIONS,), size.noise**2, dtype=torch.float64)
        flow = relu_vector_field if case == "relu" else linear_vector_field
        batches = sample_batches(size.N, k, rng=rng)
        path = train_infonce(start, batches, learning_rate=size.rate, steps=[0, size.steps], vector_field=flow)
        covariances = (torch.cov(embed(case, list(weights), x).mT) for weights in zip(*path, strict=True))
        first, last = (torch.linalg.eigvalsh(C).flip(0).clamp(min=0).tolist() for C in covariances)
        return {"start": first, "end": last}

    return {"t": size.end} | {case: [train_spectra(case, depth) for depth in DEPTHS] for case in CASES}


def plot(rows: Rows) -> MplFigure:
    figure, (axes,) = subplots(1, 3, height=3.2, sharey=True)
    index = range(1, DIMENSIONS + 1)
    for (case, title), axis in zip(CASES.items(), axes, strict=True):
        for depth, spectra in zip(DEPTHS, rows[case], strict=True):
            (line,) = axis.plot(index, spectra["end"], ".-", label=f"{depth} layer{'s' * (depth > 1)}")
            axis.plot(index, spectra["start"], ":", linewidth=0.8, color=line.get_color())
        axis.set_yscale("log", nonpositive="mask")
        axis.set(title=title, xlabel="index of the eigenvalue", ylim=(1e-8, 1e3))
    axes[0].set_ylabel("eigenvalue of the covariance")
    axes[2].legend(loc="lower left", title=f"t = {rows['t']:.3g}, dotted: start")
    return figure


def evaluate_claims(rows: Rows) -> Verdicts:
    counts = {case: [sum(value <= COLLAPSED * s["end"][0] for value in s["end"]) for s in rows[case]] for case in CASES}
    starts, ends = (
        effective_rank(torch.tensor([spectra[moment] for spectra in rows["product"]])).tolist()
        for moment in ("start", "end")
    )

    def more(case: str, networks: str) -> Verdict:
        measured = f"{', '.join(map(str, counts[case]))} of {DIMENSIONS} for {', '.join(map(str, DEPTHS))} layers"
        holds = all(fewer < more for fewer, more in pairwise(counts[case]))
        return verdict(measured, holds, networks=networks)

    return {
        "one_layer": verdict(str(counts["linear"][0]), counts["linear"][0] == 0),
        "more: linear": more("linear", "linear"),
        "more: relu": more("relu", "ReLU"),
        "training": verdict(
            ", ".join(f"{rank:.1f}" for rank in ends),
            all(shallow > deep for shallow, deep in pairwise(ends)) and ends[0] > min(starts) > ends[1],
            min_starts=min(starts),
        ),
    }


SIZES = {
    "smoke": Size(N=64, steps=300, learning_rate=0.2, noise=0.1),
    "small": Size(N=128, steps=4000, learning_rate=0.05, noise=0.1),
    "paper": Size(N=128, steps=10_000, learning_rate=0.05, noise=0.1),
}
