"""More layers collapse more: eigenvalues of the embeddings' covariance for 1 to 4 layers, linear and with ReLU between them.

A deep product of random layers is uneven before any training, and the paper does not say how its layers start (ours: as PyTorch's). So in a
third panel networks of all depths start from the same small product, balanced: only training can set them apart.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from fullrank.dynamics.infonce import linear_flow, relu_flow
from fullrank.dynamics.infonce_depth import balanced_layers
from fullrank.dynamics.infonce_training import train
from fullrank.reproduce.directclr.toy import DIMENSIONS, batches, generator, normal
from fullrank.reproduce.draw import subplots
from fullrank.reproduce.figure import Claim, Figure, Rows
from fullrank.spectrum.functional import effective_rank

DEPTHS = (1, 2, 3, 4)
CASES = {"linear": "Linear", "relu": "ReLU between layers", "product": "Linear, all from one product"}
DEAD = 1e-3  # a dimension is collapsed where its eigenvalue is at most this share of the largest


@dataclass(frozen=True)
class Size:
    """How much is trained."""

    N: int
    """Samples of a batch."""
    steps: int
    learning_rate: float
    """Of the loss as a mean over the batch."""
    noise: float
    """Standard deviation of the augmentation; that of the data is 1."""


def start_of(case: str, depth: int, rng: torch.Generator) -> list[Tensor]:
    """Layers with entries uniform within ±1/√16, as `torch.nn.Linear` draws them, or 0.3 of such a matrix in balanced layers."""
    layers = [(2 * torch.rand(DIMENSIONS, DIMENSIONS, generator=rng, dtype=torch.float64) - 1) / DIMENSIONS**0.5 for _ in range(depth)]
    return balanced_layers(0.3 * layers[0], depth) if case == "product" else layers


def embeddings(case: str, weights: list[Tensor], x: Tensor) -> Tensor:
    for W in weights[:-1]:
        x = (x @ W.mT).relu() if case == "relu" else x @ W.mT
    return x @ weights[-1].mT


def compute(size: Size, *, data: str | None, seed: int) -> Rows:
    fresh = normal(2000, DIMENSIONS, rng=generator(seed, 2))

    def spectra(case: str, depth: int) -> dict[str, list[float]]:
        rng = generator(seed, 1)
        start, k = start_of(case, depth, rng), torch.full((DIMENSIONS,), size.noise**2, dtype=torch.float64)
        flow = relu_flow if case == "relu" else linear_flow
        path = train(start, batches(size.N, k, rng=rng), learning_rate=size.learning_rate / size.N, steps=[0, size.steps], flow=flow)
        ends = zip(*path, strict=True)
        return {
            moment: torch.linalg.eigvalsh(torch.cov(embeddings(case, list(weights), fresh).mT)).flip(0).clamp(min=0).tolist()
            for moment, weights in zip(("start", "end"), ends, strict=True)
        }

    return {"t": size.learning_rate / size.N * size.steps} | {case: [spectra(case, depth) for depth in DEPTHS] for case in CASES}


def collapsed(eigenvalues: list[float]) -> int:
    return sum(λ <= DEAD * eigenvalues[0] for λ in eigenvalues)


def plot(rows: Rows):
    figure, (axes,) = subplots(1, 3, height=3.2, sharey=True)
    for (case, title), axis in zip(CASES.items(), axes, strict=True):
        for depth, spectra in zip(DEPTHS, rows[case], strict=True):
            (line,) = axis.plot(range(1, DIMENSIONS + 1), spectra["end"], ".-", label=f"{depth} layer{'s' * (depth > 1)}")
            axis.plot(range(1, DIMENSIONS + 1), spectra["start"], ":", linewidth=0.8, color=line.get_color())
        axis.set_yscale("log", nonpositive="mask")
        axis.set(title=title, xlabel="index of the eigenvalue", ylim=(1e-8, 1e3))
    axes[0].set_ylabel("eigenvalue of the covariance")
    axes[2].legend(loc="lower left", title=f"t = {rows['t']:.3g}, dotted: start")
    return figure


def claims(rows: Rows) -> list[Claim]:
    counts = {case: [collapsed(spectra["end"]) for spectra in rows[case]] for case in CASES}
    starts, ranks = (effective_rank(torch.tensor([spectra[moment] for spectra in rows["product"]])).tolist() for moment in ("start", "end"))

    def deeper(case: str, network: str) -> Claim:
        return Claim(
            f"more layers collapse more dimensions of {network} networks",
            expected=f"more eigenvalues below {DEAD:g} of the largest with each layer",
            measured=f"{', '.join(map(str, counts[case]))} of {DIMENSIONS} for {', '.join(map(str, DEPTHS))} layers",
            holds=all(fewer < more for fewer, more in pairwise(counts[case])),
        )

    return [
        Claim(
            "one layer does not collapse",
            expected=f"no eigenvalue below {DEAD:g} of the largest",
            measured=str(counts["linear"][0]),
            holds=counts["linear"][0] == 0,
        ),
        deeper("linear", "linear"),
        deeper("relu", "ReLU"),
        Claim(
            "training does this even where all start alike: from one common product, effective ranks end lower with each layer",
            expected=f"falling with depth, and from two layers on below the {min(starts):.1f} of the start",
            measured=", ".join(f"{rank:.1f}" for rank in ranks),
            holds=all(shallow > deep for shallow, deep in pairwise(ranks)) and ranks[0] > min(starts) > ranks[1],
            corrected=True,
        ),
    ]


FIGURE = Figure(
    title="Fig. 11 of Jing et al. 2022, DirectCLR",
    claim="Adding layers collapses more dimensions of the embeddings, with ReLU as without.",
    sizes={
        "smoke": Size(N=64, steps=300, learning_rate=0.2, noise=0.1),
        "small": Size(N=128, steps=4000, learning_rate=0.05, noise=0.1),
        "paper": Size(N=128, steps=10_000, learning_rate=0.05, noise=0.1),
    },
    compute=compute,
    plot=plot,
    claims=claims,
)
