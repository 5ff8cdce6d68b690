"""Is fast just sharp? The learning rate that suits each objective beside its sharpness, in networks with ReLUs and
BatchNorm that learn from crops by SGD without momentum.

The linear theory gives FroSSL half the steps of Barlow Twins at equal learning rate, and 1.5 times as many at an equal
share of the stability limit (stepwise/steps). Here the share is rate · λ_max/2, with λ_max the largest eigenvalue of
the Hessian of the loss of one batch at the start. If an objective learns faster only because its loss is steeper, its
lead at equal rate goes at equal share. λ_max is measured along training too. BatchNorm makes the loss independent of
the scale of the hidden weights, which grow at rates above the limit until λ_max has fallen to it.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from statistics import fmean as mean
from statistics import pstdev
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from scipy.stats import spearmanr
from torch import Tensor

from fullrank.evaluation import knn
from fullrank.evaluation.paired import paired_difference
from fullrank.objectives import OBJECTIVES, total
from fullrank_papers.figures import networks
from fullrank_papers.figures.figure import MplFigure, Rows, Verdicts, verdict
from fullrank_papers.figures.frossl.balance import WEIGHTS
from fullrank_papers.figures.frossl.contenders import LABELS
from fullrank_papers.figures.networks import draw_batches, relu_network
from fullrank_papers.figures.numerics import check_higher
from fullrank_papers.figures.pixels import load_pixels, random_crops
from fullrank_papers.plot_style import COLORS, subplots
from fullrank_papers.theory.balance import balanced
from fullrank_papers.theory.sharpness import sharpness

SHOWN = (*WEIGHTS, "wmse", "corinfomax_batch", "spectral_contrastive", "ssl_hsic", "mmcr", "emp_ssl")
AREA = 0.5
DRAWS = 8  # pairs of crops of each image
POINTS = 30  # of the accuracy over training
EARLY = 5  # the first of these points
MEASURED = 6  # points between two measurements of λ_max
EDGE = (0.5, 2.0)  # rate · λ_max/2 at the edge of stability
CHANCE = 10.0  # accuracy in % of a run that has diverged; the data sets have ten classes


@dataclass(frozen=True)
class Size:
    """Data, sizes and training of the networks."""

    images: int
    side: int  # larger images are resized to this number of pixels per side
    rates: tuple[float, ...]
    hidden: int
    outputs: int
    batch: int
    steps: int = 600
    seeds: int = 1
    objectives: tuple[str, ...] = SHOWN


def compute(size: Size, *, data: str | None, seed: int) -> Rows:
    X, labels = load_pixels(data, size.images, seed=seed, side=size.side)
    learned = X[: 3 * len(X) // 4]
    crops = torch.stack([random_crops(learned, area=AREA, seed=seed + k) for k in range(DRAWS)]).float()
    runs = []
    for objective, rate, run in product(size.objectives, size.rates, range(size.seeds)):
        points = list(train(crops, X.float(), labels, objective, rate, size=size, seed=seed + run))
        accuracy = [each for each, _ in points] + [None] * (POINTS + 1 - len(points))  # None: it has diverged
        curvature = [each for _, each in points if each is not None]
        runs.append(
            {"objective": objective, "rate": rate, "seed": seed + run, "accuracy": accuracy, "λ_max": curvature}
        )
    return {"runs": runs}


def train(
    crops: Float[Tensor, "K 2 n M"],
    X: Float[Tensor, "m M"],
    labels: Int64[Tensor, " m"],
    objective: str,
    rate: float,
    *,
    size: Size,
    seed: int,
) -> Iterator[tuple[float, float | None]]:
    """Yield, until the weights or λ_max are not finite, the accuracy in % of kNN on the embeddings of images that are
    not learned, and λ_max at some of the points.
    """
    hyper = balanced(objective, 2, size.batch, size.outputs) if objective in WEIGHTS else {}
    loss = partial(OBJECTIVES[objective], **hyper)
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        network = relu_network(X.shape[1], hidden=size.hidden, outputs=size.outputs)
    weights, n = list(network.parameters()), crops.shape[2]

    def measure(point: int) -> tuple[float, float | None]:
        network.eval()
        with torch.no_grad():
            Z = network(X)
        network.train()
        right = knn(Z[:n], labels[:n], Z[n:]).logits.argmax(1) == labels[n:]
        accuracy = 100 * right.float().mean().item()
        if point % MEASURED:
            return accuracy, None
        Z = torch.stack([network(view) for view in crops[0, :, : size.batch]])
        return accuracy, sharpness(total(loss(Z)), weights)

    yield measure(0)  # finite: the weights are random
    batches = draw_batches(crops, size=size.batch, steps=size.steps, generator=torch.Generator().manual_seed(seed))
    steps = networks.train(network, loss, batches, torch.optim.SGD(weights, lr=rate))
    for step, _ in enumerate(steps, start=1):
        if not all(w.isfinite().all() for w in weights):
            return
        if step % (size.steps // POINTS) == 0:
            accuracy, curvature = measure(step * POINTS // size.steps)
            if curvature is not None and math.isnan(curvature):
                return
            yield accuracy, curvature


class Curves(NamedTuple):
    """What the runs of an objective show: a line for each seed, a column for each rate; `CHANCE` after a divergence."""

    rates: np.ndarray
    limits: np.ndarray  # 2/λ_max at the start, for each seed
    early: np.ndarray
    late: np.ndarray

    def best_rate(self) -> float:
        """Return the rate of the highest late accuracy, a mean over the seeds."""
        return self.rates[np.argmax(self.late.mean(0))]

    def limit(self) -> float:
        return math.exp(np.log(self.limits).mean())


def curves(rows: Rows) -> dict[str, Curves]:
    found = {}
    for objective in dict.fromkeys(row["objective"] for row in rows["runs"]):
        runs = [row for row in rows["runs"] if row["objective"] == objective]
        rates = list(dict.fromkeys(row["rate"] for row in runs))
        accuracy = np.array([row["accuracy"] for row in runs], float).reshape(len(rates), -1, POINTS + 1)
        accuracy = np.nan_to_num(accuracy, nan=CHANCE)
        limits = [2 / row["λ_max"][0] for row in runs if row["rate"] == rates[0]]
        early, late = (accuracy[..., part].mean(2).T for part in (slice(1, EARLY + 1), slice(-EARLY, None)))
        found[objective] = Curves(np.array(rates), np.array(limits), early, late)
    return found


def leads(first: Curves, second: Curves, at: str) -> list[float]:
    """Return, for each seed, how far the first is ahead early, in points: at equal "rate" or at equal "share" of the
    stability limit, a mean over those that both grids have (NaN: none), or at the "best" early rate of each.

    Each is read at its own rates and interpolated at those of the other, and both count half, because interpolation
    cuts peaks.
    """
    if at == "best":
        return (first.early.max(1) - second.early.max(1)).tolist()

    def ahead(one: Curves, other: Curves, k: int) -> float:
        x, y = (np.log(each.rates / (each.limits[k] if at == "share" else 1.0)) for each in (one, other))
        gaps = one.early[k] - np.interp(x, y, other.early[k], left=math.nan, right=math.nan)
        shared = gaps[~np.isnan(gaps)]
        return shared.mean().item() if len(shared) else math.nan

    return [(ahead(first, second, k) - ahead(second, first, k)) / 2 for k in range(len(first.early))]


def at_the_edge(rows: Rows) -> list[float]:
    """Return rate · λ_max/2 at the end of the runs whose rate is above the limit at the start, and did not diverge."""
    found = [(row["rate"] / 2 * row["λ_max"][0], row["rate"] / 2 * row["λ_max"][-1], row) for row in rows["runs"]]
    return [end for start, end, row in found if start > 1 and row["accuracy"][-1] is not None]


def plot(rows: Rows) -> MplFigure:
    figure, ((by_rate, by_share), (over_time, best)) = subplots(2, 2, width=9.0, height=7.0)
    for place, (name, found) in enumerate(curves(rows).items()):
        line, dot = ("-", "o") if place < len(COLORS) else ("--", "s")
        for axis, unit in ((by_rate, 1.0), (by_share, found.limit())):
            axis.semilogx(found.rates / unit, found.early.mean(0), line, label=LABELS[name])
        best.loglog(found.limit(), found.best_rate(), dot, label=LABELS[name])
        runs = [row for row in rows["runs"] if row["objective"] == name and row["accuracy"][-1] is not None]
        for row in sorted(runs, key=lambda row: abs(math.log(row["rate"] / (10 * found.limit()))))[:1]:
            steps = np.linspace(0, 1, len(row["λ_max"]))
            over_time.semilogy(steps, [row["rate"] / 2 * each for each in row["λ_max"]], line, label=LABELS[name])
    by_rate.set(xlabel="learning rate", ylabel="early accuracy in %", title="at equal rate")
    by_share.set(
        xlabel="rate · λ_max/2 at the start", ylabel="early accuracy in %", title="at equal share of the limit"
    )
    over_time.set(
        xlabel="share of the training", ylabel="rate · λ_max/2", title="the rate nearest to ten times the limit"
    )
    best.set(xlabel="2/λ_max at the start", ylabel="best learning rate", title="rate of the highest late accuracy")
    best.plot(best.get_xlim(), best.get_xlim(), color="gray", linewidth=0.6)
    over_time.axhline(1.0, color="gray", linewidth=0.6)
    by_share.axvline(1.0, color="gray", linewidth=0.6)
    best.legend(fontsize=7)
    return figure


def evaluate_claims(rows: Rows) -> Verdicts:
    found, edge = curves(rows), at_the_edge(rows)
    inside = mean(EDGE[0] < each < EDGE[1] for each in edge)
    rate, share = (
        pstdev(math.log10(x.best_rate() / (x.limit() if in_share else 1.0)) for x in found.values())
        for in_share in (False, True)
    )

    def spread(k: int, in_share: bool) -> float:
        """Return the standard deviation over the objectives of the decades of the best rate of a seed."""
        best = ((x.rates[np.argmax(x.late[k])], x.limits[k] if in_share else 1.0) for x in found.values())
        return pstdev(math.log10(rate / unit) for rate, unit in best)

    by_seed = ([spread(k, in_share) for k in range(len(found["frossl"].limits))] for in_share in (False, True))
    gap = paired_difference(*by_seed)
    order = ""
    if rate:  # the rates differ
        correlation: Any = spearmanr([x.limit() for x in found.values()], [x.best_rate() for x in found.values()])
        order = f"; ρ = {correlation.statistic:.2f} of rate and limit"
    verdicts = {
        "edge": verdict(f"{100 * inside:.0f} % of {len(edge)} runs", inside > 0.9),
        "chosen": verdict(
            f"factors of {10**share:.1f} and {10**rate:.1f} at the rates that are best in the mean; "
            f"of the decades, by seed, {gap.format()}{order}",
            gap.exceeds(0.0),
        ),
    }
    for name, at in product([name for name in found if name != "frossl"], ("rate", "share", "best")):
        ahead = [x for x in leads(found["frossl"], found[name], at) if not math.isnan(x)]
        none = verdict("no share that both have", None, label=LABELS[name])
        lead = check_higher(ahead, [0.0] * len(ahead), scale=1.0, label=LABELS[name]) if ahead else none
        verdicts[f"{at}: {name}"] = lead
    return verdicts


RATES = tuple(10 ** (k / 2) for k in range(-8, 3))  # 1e-4 to 10
SIZES = {
    "smoke": Size(512, 8, RATES[2::2], hidden=64, outputs=32, batch=64, steps=60, objectives=("frossl", "simclr")),
    "small": Size(5120, 12, RATES, hidden=256, outputs=32, batch=256, seeds=3),
    "paper": Size(16384, 32, RATES, hidden=1024, outputs=256, batch=256, steps=3000, seeds=5),
}
