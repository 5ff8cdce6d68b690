"""Does the kernel at initialisation predict when a trained network learns its modes?

Networks with ReLUs and BatchNorm learn from crops. Their tangent kernel at the start gives modes, and the time at which
a kernel machine learns each. The eigenvalue of the embeddings in a mode is recorded over training; a mode is learned
when it reaches half of its value at the end. A mode that has this from the start, or that still grows at the end, does
not count.

The theory is that of Barlow Twins without normalisation. VICReg has no normalisation either. The eigenvalues of the
other objectives, which normalise, are of embeddings whose dimensions have a variance of 1 in the mean.
"""

import math
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from scipy.stats import gmean, spearmanr
from torch import Tensor

from fullrank.objectives import OBJECTIVES, Terms, total
from fullrank.objectives.algebra import centered
from fullrank_papers.figures import networks
from fullrank_papers.figures.figure import MplFigure, Rows, Verdicts, verdict
from fullrank_papers.figures.networks import draw_batches, relu_network
from fullrank_papers.figures.pixels import load_pixels, random_crops
from fullrank_papers.plot_style import subplots
from fullrank_papers.theory.objectives import barlow_linear
from fullrank_papers.theory.sharpness import sharpness
from fullrank_papers.theory.stepwise import crossing_times, stability_limit
from fullrank_papers.theory.tangent_kernel import center_views, kernel_modes, mode_powers, tangent_kernel

LABELS = {"barlow_linear": "Barlow Twins without normalisation", "vicreg": "VICReg", "barlow_twins": "Barlow Twins"}
LABELS |= {"frossl": "FroSSL", "simclr": "SimCLR"}
FREE = ("barlow_linear", "vicreg")  # of a free scale
STARTS = {"small": 0.01, "usual": 1.0}  # factor of the last layer's initial weights
SHARE = 0.1  # of the largest stable learning rate
ADAM_RATE = 1e-3
DRAWS, RECORDS, DIRECTIONS = 4, 60, 4
SETTLED = 0.9  # share of an eigenvalue at the end that it has one fifth of the steps before
CLOSE = 1.3  # a ratio of steps
FEW = 5  # a rank correlation of fewer modes says nothing


@dataclass(frozen=True)
class Size:
    """Data, sizes and training of the networks."""

    images: int = 2048
    points: int = 128  # images of the kernel, a pair of crops each
    side: int = 12  # larger images are resized to this number of pixels per side
    hidden: int = 256
    outputs: int = 32
    modes: int = 16
    batch: int = 128
    steps: int = 2000
    seeds: int = 3
    objectives: tuple[str, ...] = tuple(LABELS)


def barlow(Z: Float[Tensor, "2 N D"]) -> Terms:
    """Return the loss of `theory.stepwise`: Barlow Twins without normalisation, with both orders of the views."""
    Z = centered(Z) / (2 * Z.shape[1]) ** 0.5
    return barlow_linear(torch.cat([Z, Z.flip(0)], dim=1))


def compute(size: Size, *, data: str | None, seed: int) -> Rows:
    X, _ = load_pixels(data, size.images, seed=seed, side=size.side)
    crops = torch.stack([random_crops(X, area=0.5, seed=seed + k) for k in range(DRAWS)]).float()
    points = random_crops(X[: size.points], area=0.5, seed=seed + DRAWS).float()
    runs = []
    for objective, start, optimizer, run in product(size.objectives, STARTS, ("SGD", "Adam"), range(size.seeds)):
        found = train(crops, points, objective, STARTS[start], optimizer, size=size, seed=seed + run)
        runs.append({"objective": objective, "start": start, "optimizer": optimizer, "seed": seed + run} | found)
    return {"runs": runs}


def train(
    crops: Float[Tensor, "K 2 n M"],
    points: Float[Tensor, "2 m M"],
    objective: str,
    scale: float,
    optimizer: str,
    *,
    size: Size,
    seed: int,
) -> Rows:
    """Return γ of the modes, the learning rate, and the eigenvalues of the embeddings at some steps."""
    loss = barlow if objective == "barlow_linear" else OBJECTIVES[objective]
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        network = relu_network(points.shape[2], hidden=size.hidden, outputs=size.outputs)
        directions = torch.nn.functional.normalize(torch.randn(DIRECTIONS, size.outputs), dim=1)
    weights = list(network.parameters())
    with torch.no_grad():
        weights[-1].mul_(scale)
    Z = torch.cat([network(view) for view in points])
    gamma, modes = kernel_modes(center_views(tangent_kernel(Z, weights, directions).detach().double()), size.modes)

    def powers() -> list[float]:
        with torch.no_grad():
            Z = centered(torch.stack([network(view) for view in points]).double()).flatten(0, 1)
        Z = Z if objective in FREE else Z / Z.square().mean().sqrt()
        return mode_powers(Z, gamma, modes).tolist()

    rate = ADAM_RATE
    if optimizer == "SGD" and objective == "barlow_linear":
        rate = SHARE * stability_limit(gamma)
    elif optimizer == "SGD":
        first = torch.stack([network(view[: size.batch]) for view in crops[0]])
        rate = SHARE * 2 / sharpness(total(loss(first)), weights)
    kinds = {"SGD": torch.optim.SGD, "Adam": torch.optim.Adam}
    steps, found = [0], [powers()]
    marks = {round(step) for step in np.geomspace(1, size.steps, RECORDS)}
    batches = draw_batches(crops, size=size.batch, steps=size.steps, generator=torch.Generator().manual_seed(seed))
    for step, _ in enumerate(networks.train(network, loss, batches, kinds[optimizer](weights, lr=rate)), start=1):
        if step in marks:
            steps.append(step)
            found.append(powers())
    return {"gamma": gamma.tolist(), "rate": rate, "steps": steps, "eigenvalues": found}


def learned(run: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Return the predicted and the measured learning steps of the modes that a run has learned: their eigenvalue at the
    start is below half of that at the end, and no longer grows in the last fifth of the steps, in the mean.
    """
    values, gamma = torch.tensor(run["eigenvalues"]).double(), torch.tensor(run["gamma"]).double()
    steps = torch.tensor(run["steps"])
    before, last = (
        values[part].mean(0)
        for part in ((steps > 0.6 * steps[-1]) & (steps <= 0.8 * steps[-1]), steps > 0.8 * steps[-1])
    )
    late = (values[0] < last / 2) & (before > SETTLED * last)
    predicted = -values[0].clamp(min=1e-30).log() / (8 * gamma * run["rate"])
    measured = crossing_times(steps.double(), values / last)
    return predicted[late].numpy(), measured[late].numpy()


def rank_correlations(rows: Rows, *group: str) -> list[float]:
    """Return Spearman's ρ of predicted and measured steps for each run with an objective, a start and an optimizer;
    NaN of fewer than `FEW` modes.
    """
    found = []
    for predicted, measured in (learned(run) for run in select(rows, *group)):
        correlation: Any = spearmanr(predicted, measured) if len(predicted) >= FEW else None
        found.append(correlation.statistic.item() if correlation else math.nan)
    return found


def select(rows: Rows, *group: str) -> list[Rows]:
    """Return the runs with an objective and, if they are given, a start and an optimizer."""
    keys = ("objective", "start", "optimizer")
    return [run for run in rows["runs"] if all(run[key] == value for key, value in zip(keys, group, strict=False))]


def plot(rows: Rows) -> MplFigure:
    objectives = list(dict.fromkeys(run["objective"] for run in rows["runs"]))
    figure, ((steps, times), (late, curves)) = subplots(2, 2, width=9.0, height=7.0)
    free = select(rows, "barlow_linear", "small", "SGD")
    for axis, runs in ((steps, free), (curves, select(rows, "frossl", "usual", "SGD"))):
        for run in runs[:1]:
            for k, values in enumerate(list(zip(*run["eigenvalues"], strict=True))[:8]):
                axis.semilogx(run["steps"][1:], values[1:], color=f"C{k}", label=f"mode {k + 1}")
    for run in free[:1]:
        for k, step in enumerate(learned(run)[0][:8]):
            steps.axvline(step, color=f"C{k}", linestyle=":", linewidth=0.8)
    steps.set(xlabel="step (dotted: predicted)", ylabel="eigenvalue", title="not normalised, small start")
    curves.set(xlabel="step", ylabel="eigenvalue", title="FroSSL, usual start")
    for objective, start in ((name, start) for name in FREE for start in STARTS):
        pairs = [learned(run) for run in select(rows, objective, start, "SGD")]
        predicted, measured = (np.concatenate(each) for each in zip(*pairs, strict=True)) if pairs else ([], [])
        times.loglog(predicted, measured, "o", markersize=3, label=f"{LABELS[objective]}, {start} start")
    times.plot(times.get_xlim(), times.get_xlim(), color="gray", linewidth=0.6)
    times.set(xlabel="predicted step", ylabel="measured step", title="SGD")
    times.legend(fontsize=6, loc="upper left")
    for start in STARTS:
        shares = [
            np.mean([len(learned(run)[0]) / len(run["gamma"]) for run in select(rows, name, start, "SGD")])
            for name in objectives
        ]
        late.plot(shares, range(len(objectives)), "o", label=f"{start} start")
    late.set_yticks(range(len(objectives)), [LABELS[name] for name in objectives])
    late.set(xlabel="share of the modes that are learned, not there from the start", xlim=(-0.05, 1.05), title="SGD")
    late.legend(fontsize=7)
    return figure


def evaluate_claims(rows: Rows) -> Verdicts:
    verdicts = {}
    for objective, label in LABELS.items():
        if objective in FREE:
            for start, optimizer in product(STARTS, ("SGD", "Adam")):
                found = rank_correlations(rows, objective, start, optimizer)
                holds = None if not found or any(map(math.isnan, found)) else min(found) > 0.5
                text = "ρ = " + ", ".join(f"{rho:.2f}" for rho in found)
                verdicts[f"order: {objective}, {start}, {optimizer}"] = verdict(
                    text, holds, label=label, start=start, optimizer=optimizer
                )
        elif runs := select(rows, objective):
            counts = [len(learned(run)[0]) for run in runs]
            text = f"{min(counts)} to {max(counts)} of {len(runs[0]['gamma'])}"
            verdicts[f"present: {objective}"] = verdict(text, max(counts) < len(runs[0]["gamma"]) / 2, label=label)
    pairs = [learned(run) for run in select(rows, "barlow_linear", "small", "SGD")]
    ratios = [float(gmean(measured[:FEW] / predicted[:FEW])) for predicted, measured in pairs if len(predicted)]
    enough = all(len(predicted) >= FEW for predicted, _ in pairs) and len(pairs) > 0
    close = all(1 / CLOSE < ratio < CLOSE for ratio in ratios) if enough else None
    verdicts["times"] = verdict(", ".join(f"{ratio:.2f}" for ratio in ratios), close)
    return verdicts


SMALL = ("barlow_linear", "frossl")
SIZES = {
    "smoke": Size(512, 48, 8, hidden=64, outputs=16, modes=6, steps=600, seeds=1, objectives=SMALL),
    "small": Size(),
    "paper": Size(16384, points=512, side=32, hidden=1024, outputs=64, modes=32, batch=256, steps=20000, seeds=5),
}
