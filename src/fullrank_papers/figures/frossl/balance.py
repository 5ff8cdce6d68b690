"""The trade-off of five objectives in trained networks, over batch size and dimension: at the published weights, and at
the balanced ones.

A weight that is right for one batch size N and dimension D is wrong for another. `balance` follows N and D so that the
ratio of the gradients stays the same. Here networks with two hidden layers of ReLUs are trained on crops with many
weights, and judged on crops of other images by the share of the embeddings' variance that lies between the views. If a
rule is right, the curves of all N and D coincide over weight / balanced weight.
"""

import math
from dataclasses import dataclass
from functools import partial
from itertools import product
from statistics import fmean as mean
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fullrank.evaluation.paired import paired_difference
from fullrank.objectives import OBJECTIVES
from fullrank_papers.figures import networks
from fullrank_papers.figures.figure import MplFigure, Rows, Verdicts, verdict
from fullrank_papers.figures.frossl.contenders import CONTENDERS
from fullrank_papers.figures.networks import adam, draw_batches, relu_network
from fullrank_papers.figures.pixels import load_pixels, random_crops
from fullrank_papers.plot_style import subplots
from fullrank_papers.theory.balance import balanced

WEIGHTS = {
    "frossl": "invariance",
    "barlow_twins": "redundancy",
    "vicreg": "covariance",
    "simclr": "temperature",
    "ivne": "alignment",
}
PUBLISHED = {name: balanced(name, 2, 256, 1024 if name == "frossl" else 2048) for name in WEIGHTS}
PUBLISHED |= {"ivne": balanced("ivne", 2, 64, 2048)}
AREA = 0.5
MARGIN = 2.0  # a trade-off that changes less over N and D is the same
BANK = 16  # pairs of crops of each image


@dataclass(frozen=True)
class Size:
    """Data, sizes and training of the networks."""

    images: int
    side: int  # larger images are resized to this number of pixels per side
    batches: tuple[int, ...]
    dimensions: tuple[int, ...]
    factors: tuple[float, ...]  # in units of the balanced weight; the published one is trained too
    hidden: int
    steps: int = 300
    seeds: int = 1
    objectives: tuple[str, ...] = tuple(WEIGHTS)


def scaled(objective: str, weights: dict[str, float], factor: float) -> dict[str, float]:
    """Return the weights with the one that sets the balance multiplied; for SimCLR, exp(1/temperature) is.

    >>> scaled("frossl", {"invariance": 2.0, "variance": 1.0}, 4.0)
    {'invariance': 8.0, 'variance': 1.0}
    """
    key = WEIGHTS[objective]
    weight = 1 / (1 / weights[key] + math.log(factor)) if objective == "simclr" else weights[key] * factor
    return weights | {key: weight}


def published_factor(objective: str, N: int, D: int) -> float:
    """Return the published weight in units of the balanced one; for SimCLR, the ratio of exp(1/temperature)."""
    published, ours = (each[WEIGHTS[objective]] for each in (PUBLISHED[objective], balanced(objective, 2, N, D)))
    return math.exp(1 / published - 1 / ours) if objective == "simclr" else published / ours


def compute(size: Size, *, data: str | None, seed: int) -> Rows:
    X, _ = load_pixels(data, size.images, seed=seed, side=size.side)
    pairs = [random_crops(X, area=AREA, seed=seed + k) for k in range(BANK)]
    crops = torch.stack(pairs).float()  # (BANK, 2, n, M)
    rows: list[dict[str, Any]] = []
    for objective, N, D in product(size.objectives, size.batches, size.dimensions):
        published = published_factor(objective, N, D)
        for factor, run in product(sorted({*size.factors, published}), range(size.seeds)):
            weights = scaled(objective, balanced(objective, 2, N, D), factor)
            share = train(crops, objective, weights, N=N, D=D, size=size, seed=seed + run)
            numbers = {"batch": N, "dimension": D, "factor": factor, "published": published}
            rows.append({"objective": objective, **numbers, "seed": seed + run, "share": share})
    return {"runs": rows}


def train(
    crops: Float[Tensor, "K 2 n M"], objective: str, weights: dict[str, float], *, N: int, D: int, size: Size, seed: int
) -> float:
    """Train on three quarters of the images, and return `share_between` of the embeddings of the others."""
    learned, test = crops[:, :, : 3 * crops.shape[2] // 4], crops[:, :, 3 * crops.shape[2] // 4 :]
    batches = draw_batches(learned, size=N, steps=size.steps, generator=torch.Generator().manual_seed(seed))
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        network = relu_network(crops.shape[3], hidden=size.hidden, outputs=D)
    for _ in networks.train(network, partial(OBJECTIVES[objective], **weights), batches, *adam(network, size.steps)):
        pass
    network.eval()
    with torch.no_grad():
        Z = torch.stack([network(view) for view in test[0]])
    return share_between(nn.functional.normalize(Z, dim=2) if objective in ("simclr", "ivne") else Z)


def share_between(Z: Float[Tensor, "2 n D"]) -> float:
    """Return the share of the variance that lies between two views of an image: 0 if they are equal, 1 if they are
    uncorrelated, Σ_d (1 − Cov(z_d, z′_d) / Var(z_d)) weighted by the variances.

    >>> Z = torch.tensor([[[0.0], [1.0]], [[0.0], [1.0]]])
    >>> share_between(Z), share_between(torch.stack([Z[0], Z[0].flip(0)]))
    (0.0, 2.0)
    """
    Z = Z - Z.mean(1, keepdim=True)
    return (1 - 2 * (Z[0] * Z[1]).sum() / Z.square().sum()).item()


def curves(rows: Rows, objective: str) -> dict[tuple[int, int], tuple[list[float], list[float], float]]:
    """Return (N, D) → the factors, the shares (means over the seeds), and the factor of the published weight."""
    found: dict[tuple[int, int], dict[float, list[float]]] = {}
    published = {}
    for row in rows["runs"]:
        if row["objective"] == objective:
            key = (row["batch"], row["dimension"])
            found.setdefault(key, {}).setdefault(row["factor"], []).append(row["share"])
            published[key] = row["published"]
    return {key: (list(x), [mean(each) for each in x.values()], published[key]) for key, x in found.items()}


def spreads(rows: Rows, objective: str) -> tuple[list[float], list[float]]:
    """Return the largest share divided by the smallest over N and D, at the published weight and at the balanced one,
    of each seed.
    """
    own = [row for row in rows["runs"] if row["objective"] == objective]

    def spread(seed: int, balanced: bool) -> float:
        at = (row for row in own if row["factor"] == (1.0 if balanced else row["published"]))
        shares = [row["share"] for row in at if row["seed"] == seed]
        return max(shares) / min(shares)

    seeds = sorted({row["seed"] for row in own})
    return [spread(seed, False) for seed in seeds], [spread(seed, True) for seed in seeds]


def objectives_of(rows: Rows) -> list[str]:
    return list(dict.fromkeys(row["objective"] for row in rows["runs"]))


def plot(rows: Rows) -> MplFigure:
    names = objectives_of(rows)
    figure, axes = subplots(2, len(names), width=2.6 * len(names), height=5.0, sharey="col")
    for column, name in enumerate(names):
        found = curves(rows, name)
        batches, dimensions = (sorted({key[k] for key in found}) for k in (0, 1))
        for (N, D), (factors, shares, published) in found.items():
            style = {"color": f"C{dimensions.index(D)}", "linestyle": ("-", "--", ":")[batches.index(N)]}
            for axis, unit in zip(axes[:, column], (published, 1.0), strict=True):
                axis.loglog([x / unit for x in factors], shares, **style, label=f"N {N}, D {D}")
        axes[0, column].set(title=CONTENDERS[name].label)
        weight = "exp(1/temperature)" if name == "simclr" else WEIGHTS[name]
        for axis, unit in zip(axes[:, column], ("published", "balanced"), strict=True):
            axis.axvline(1.0, color="gray", linewidth=0.6)
            axis.set(xlabel=f"{weight} / {unit}")
    for axis in axes[:, 0]:
        axis.set(ylabel="share of variance between views")
    axes[0, -1].legend(fontsize=6, loc="lower left")
    return figure


def evaluate_claims(rows: Rows) -> Verdicts:
    found: Verdicts = {}
    for name in objectives_of(rows):
        published, ours = spreads(rows, name)
        measured = f"{mean(published):.2f} times with the published weight, {mean(ours):.2f} with the rule"
        gap = paired_difference([math.log(x) for x in published], [math.log(x) for x in ours])
        found[f"rule: {name}"] = verdict(f"{measured}, n = {gap.n}", gap.exceeds(0.0), label=CONTENDERS[name].label)
        if name == "frossl":
            same = paired_difference([math.log(MARGIN)] * gap.n, [math.log(x) for x in published]).exceeds(0.0)
            found["one_weight"] = verdict(", ".join(f"{x:.2f}" for x in published) + " times", same, margin=MARGIN)
    return found


FACTORS = (1 / 32, 1 / 6, 1.0, 6.0, 32.0)
SIZES = {
    "smoke": Size(512, 8, (32, 128), (32, 128), (1.0, 6.0), hidden=64, steps=150, seeds=3, objectives=("frossl",)),
    "small": Size(4096, 12, batches=(64, 256), dimensions=(64, 256, 1024), factors=FACTORS, hidden=128, seeds=3),
    "paper": Size(16384, 32, batches=(64, 256, 1024), dimensions=(64, 256, 1024, 2048), factors=FACTORS, hidden=1024),
}
