"""How many dimensions FroSSL learns with its logarithms and without: the loss that is trained, (6), in a linear
network and in one with ReLUs, beside the theory.

The paper expects the logarithm to be an alternative to a weight of the terms (Section 3.1). So we vary this weight: 1
is the balanced one, `balance`, at which the gradients are those of the paper's N = 256, D = 1024. Without logarithms
the variance terms have the weight 1/D, with which both losses have the same gradient where all eigenvalues are equal.

The views are crops of at least half of the area. The network with ReLUs sees new crops at each step, and its last layer
is the linear network of the theory on the features before it: their canonical correlations predict the spectrum.
"""

from dataclasses import dataclass
from functools import partial
from itertools import product
from statistics import fmean as mean

import torch
from torch import Tensor, nn

from fullrank.evaluation.paired import PairedDifference, paired_difference
from fullrank.objectives import frossl
from fullrank.spectrum.functional import participation_ratio
from fullrank_papers.figures import networks
from fullrank_papers.figures.figure import MplFigure, Rows, Verdicts, verdict
from fullrank_papers.figures.frossl import fig2
from fullrank_papers.figures.networks import adam, relu_network
from fullrank_papers.figures.numerics import holds_for_all
from fullrank_papers.figures.pixels import load_pixels, random_crops
from fullrank_papers.plot_style import THEORY_LINE, add_theory_legend, subplots
from fullrank_papers.theory import two_view
from fullrank_papers.theory.logarithms import Loss, correlations, optimal_spectrum, spectrum

BALANCED = 4.0  # weight · D at the balanced weight
AREA = 0.5
NAMES = {True: "with logarithms", False: "without"}
POINTS = 30  # of the curve over training


@dataclass(frozen=True)
class Size:
    """Data, and training of the network with ReLUs."""

    images: int
    side: int  # larger images are resized to this number of pixels per side
    weights: tuple[float, ...]  # in units of the balanced weight
    dimensions: int = 10  # D of the linear network
    outputs: int = 32  # D of the network with ReLUs
    hidden: int = 256
    batch: int = 256
    steps: int = 1500
    seeds: int = 3


def make_loss(weight: float, *, log: bool, dimensions: int) -> Loss:
    """Return the loss at a weight in units of the balanced one."""
    return Loss(BALANCED * weight / dimensions, variance=1.0 if log else 1 / dimensions, log=log)


def measured_ratio(Z: Tensor) -> float:
    """Return the participation ratio D²/F, with F = ‖ZᵀZ‖² of columns of unit norm, as in the loss."""
    Y = nn.functional.normalize(Z - Z.mean(0), dim=0)
    return Z.shape[1] ** 2 / (Y.mT @ Y).square().sum().item()


def compute(size: Size, *, data: str | None, seed: int) -> Rows:
    linear = fig2.make_views(size.images, area=AREA, side=size.side, data=data, seed=seed)
    X, _ = load_pixels(data, size.images, seed=seed, side=size.side)
    rows: Rows = {"linear": [], "network": []}
    for weight, log in product(size.weights, NAMES):
        numbers = {"weight": weight, "log": log}
        rows["linear"].append(numbers | minimize(linear, weight, log=log, size=size, seed=seed))
        for run in range(size.seeds):
            found = train(X, weight, log=log, size=size, seed=seed + run)
            rows["network"].append(numbers | {"seed": seed + run} | found)
    return rows


def minimize(X: Tensor, weight: float, *, log: bool, size: Size, seed: int) -> Rows:
    """Return the spectrum at the lowest minimum that L-BFGS finds from three starts, and the theory's."""
    loss, G = make_loss(weight, log=log, dimensions=size.dimensions), two_view.moments(X)
    rho, directions = correlations(G)

    def descend(start: int) -> Tensor:
        A = torch.randn(size.dimensions, len(rho), generator=torch.Generator().manual_seed(seed + start)).to(G)
        A.requires_grad_()  # weights of the canonical directions, of variance 1
        search = torch.optim.LBFGS([A], max_iter=200, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            search.zero_grad()
            value = loss(A @ directions.mT, G)
            value.backward()
            return value

        search.step(closure)  # pyright: ignore[reportArgumentType]
        return A.detach() @ directions.mT

    W = min(map(descend, range(3)), key=lambda W: loss(W, G).item())
    m = spectrum(W, G, directions)
    predicted = optimal_spectrum(loss, rho, dimensions=size.dimensions)
    curves = {name: x[: size.dimensions].tolist() for name, x in (("rho", rho), ("m", m), ("predicted", predicted))}
    return curves | {"ratio": measured_ratio(X[0] @ W.mT), "predicted_ratio": participation_ratio(predicted).item()}


def train(X: Tensor, weight: float, *, log: bool, size: Size, seed: int) -> Rows:
    """Train a network with two hidden layers of ReLUs on new crops, and return the participation ratio of its
    embeddings of four crops of each image, that which the theory gives for the last layer on its hidden features, and
    that of the batches over training.
    """
    D, loss, curve = size.outputs, make_loss(weight, log=log, dimensions=size.outputs), []
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        network = relu_network(X.shape[1], hidden=size.hidden, outputs=D)
        batches = (
            random_crops(X[torch.randint(len(X), (size.batch,))], area=AREA, seed=size.steps * seed + step).float()
            for step in range(size.steps)
        )
        criterion = partial(frossl, invariance=loss.weight * size.batch, variance=loss.variance, log=log)
        for step, Z in enumerate(networks.train(network, criterion, batches, *adam(network, size.steps))):
            if step % max(size.steps // POINTS, 1) == 0:
                curve.append([step, measured_ratio(Z[0])])
    network.eval()
    with torch.no_grad():
        crops = torch.cat([random_crops(X, area=AREA, seed=-1 - k) for k in range(4)], 1)
        H = torch.stack([network[:-1](view.float()) for view in crops]).double()
        G = two_view.moments(H - H.mean(1, keepdim=True))
        ratio = measured_ratio(network(crops[0].float()).double())
        predicted = optimal_spectrum(loss, correlations(G, tolerance=1e-6)[0], dimensions=D)
    return {"ratio": ratio, "predicted_ratio": participation_ratio(predicted).item(), "curve": curve}


def plot(rows: Rows) -> MplFigure:
    figure, ((modes, linear), (network, curves)) = subplots(2, 2, width=8.0, height=6.0)
    colors = {True: "C0", False: "C1"}
    most = max(row["weight"] for row in rows["linear"])
    for row in rows["linear"]:
        if row["weight"] in (1.0, 2.0, most) and row["log"]:
            label = f"{row['weight']:g} times the balanced weight"
            modes.plot(row["rho"], row["m"], "o", markersize=4, label=label)
            modes.plot(row["rho"], row["predicted"], **THEORY_LINE)
    modes.set(
        xlabel="canonical correlation ρ_j of the views",
        ylabel="share m_j of the direction",
        title="Linear network, with logarithms",
    )
    add_theory_legend(modes, "theory")
    for axis, part, title in ((linear, "linear", "Linear network"), (network, "network", "Network with ReLUs")):
        for log, color in colors.items():
            points = summarize(rows, part, log=log)
            axis.plot(list(points), [measured for measured, _ in points.values()], "o-", color=color, label=NAMES[log])
            axis.plot(list(points), [predicted for _, predicted in points.values()], **THEORY_LINE)
        axis.axvline(1.0, color="gray", linewidth=0.6)
        axis.set_xscale("log", base=2)
        axis.set(xlabel="weight / balanced weight", ylabel="participation ratio", title=title, ylim=(0, None))
        add_theory_legend(axis, "theory")
    for row in rows["network"]:
        if row["weight"] in (1.0, most) and row["seed"] == rows["network"][0]["seed"]:
            label = f"{NAMES[row['log']]}, weight {row['weight']:g}"
            style = {"linestyle": "-" if row["weight"] == 1 else ":", "color": colors[row["log"]]}
            curves.plot(*zip(*row["curve"], strict=True), **style, label=label)
    curves.set(xlabel="step", ylabel="participation ratio", title="Network with ReLUs, over training", ylim=(0, None))
    curves.legend(fontsize=7, loc="center right")
    return figure


def summarize(rows: Rows, part: str, *, log: bool) -> dict[float, tuple[float, float]]:
    """Return, by weight, the measured and the predicted participation ratio, means over the seeds."""
    found: dict[float, list[tuple[float, float]]] = {}
    for row in rows[part]:
        if row["log"] == log:
            found.setdefault(row["weight"], []).append((row["ratio"], row["predicted_ratio"]))
    return {weight: (mean(a for a, _ in pairs), mean(b for _, b in pairs)) for weight, pairs in found.items()}


def evaluate_claims(rows: Rows) -> Verdicts:
    linear, network = ({log: summarize(rows, part, log=log) for log in NAMES} for part in ("linear", "network"))
    gaps = {weight: lost_dimensions(rows, weight) for weight in network[True] if weight > 1}
    error = max(abs(a - b) / b for by_weight in linear.values() for a, b in by_weight.values())
    off = {k: max(abs(a / b - 1) for a, b in (each[k] for each in network.values())) for k in network[True]}
    near = max(x for weight, x in off.items() if weight <= 2)
    text = ", ".join(
        f"{network[True][k][0]:.1f} and {network[False][k][0]:.1f} at {k:g} times ({gap.format()})"
        for k, gap in gaps.items()
    )
    return {
        "fewer": verdict(text, holds_for_all(gap.exceeds(0.0) for gap in gaps.values())),
        "optimum": verdict(f"{100 * error:.1f} %", error < 0.05),
        "network": verdict(f"{100 * near:.0f} %; at all weights {100 * max(off.values()):.0f} %", near < 0.05),
    }


def lost_dimensions(rows: Rows, weight: float) -> PairedDifference:
    """Return the participation ratio without logarithms minus that with them, paired by seed."""
    runs = [row for row in rows["network"] if row["weight"] == weight]
    return paired_difference(*([row["ratio"] for row in runs if row["log"] == log] for log in (False, True)))


SIZES = {
    "smoke": Size(images=512, side=8, weights=(1.0, 4.0), outputs=8, hidden=64, batch=128, steps=300, seeds=3),
    "small": Size(images=4096, side=16, weights=(0.25, 0.5, 1.0, 2.0, 4.0)),
    "paper": Size(images=16384, side=32, weights=(0.25, 0.5, 1.0, 2.0, 4.0, 8.0), hidden=1024, steps=10_000),
}
