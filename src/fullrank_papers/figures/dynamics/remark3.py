"""Remark 3 says that a fixed projector A cannot save u = AΘx from collapse; Jing et al. 2022 report that one saves the
representation.

Neither paper draws a figure. We run a factorial experiment (loss, constraint, network, projector) to find what each
verdict depends on. The loss sees the embedding u; A is applied to the representation r.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from statistics import fmean, pvariance
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.objectives.terms import total
from fullrank_papers.figures.figure import MplFigure, Rows, Verdicts, verdict
from fullrank_papers.figures.numerics import normal, uncentered_rank
from fullrank_papers.plot_style import THEORY_LINE, add_theory_legend, subplots
from fullrank_papers.theory.contrastive_pairs import pair_matrix
from fullrank_papers.theory.fixed_projector import collapsed_weights, projected_weights
from fullrank_papers.theory.flow import gradient, gradient_descent, gradient_descent_iterates
from fullrank_papers.theory.objectives import alignment_linear, contrastive_linear, infonce_squared

Weights = tuple[Tensor, ...]

LOSSES: dict[str, Callable[[Tensor], Tensor]] = {
    "contrastive (1)": lambda u: total(contrastive_linear(*u)),
    "alignment (2)": lambda u: total(alignment_linear(*u[:2])),
    "InfoNCE": lambda u: total(infonce_squared(u[:2])),
}
CONSTRAINTS: dict[str, Callable[[Tensor], Tensor]] = {
    "free": lambda u: u,
    "one norm": lambda u: u / u[0].square().sum(-1).mean().sqrt(),  # Frobenius
    "unit rows": lambda u: u / u.norm(dim=-1, keepdim=True),
    "orthonormal": lambda u: u @ torch.linalg.inv(torch.linalg.cholesky(u[0].mT @ u[0] / len(u[0]))).mT,
}
NETWORKS: dict[str, Callable[[Weights, Tensor], Tensor]] = {
    "linear": lambda p, x: x @ p[0].mT,
    "residual": lambda p, x: x @ p[0].mT @ (torch.eye(len(p[1])) + p[1].mT),
    "residual, ReLU": lambda p, x: x @ p[0].mT + (x @ p[0].mT @ p[1].mT).relu() @ p[2].mT,
}
FACTORS = ("loss", "constraint", "network", "projector")
# Weights can rotate, so an orthogonal projector equals none, and a sub-vector equals any other projector of its rank.
PROJECTORS = ("none", "low rank")


@dataclass(frozen=True)
class Size:
    """Data, networks and training.

    Attributes:
        inputs: d = h: dimensions of inputs, hidden layer and representation; in half of the inputs the augmentation is
            stronger than the data.
    """

    inputs: int = 8
    rank: int = 3  # k of the projector
    samples: int = 64  # number of pairs n
    draws: int = 1  # number of random choices of data, starts and projectors; each cell is their mean
    steps: int = 600  # steps of gradient descent
    learning_rate: float = 0.05  # for the mean of the loss over the samples
    networks: tuple[str, ...] = tuple(NETWORKS)


@dataclass(frozen=True)
class Problem:
    """Data, a projector, and the initial weights of each network."""

    x: Float[Tensor, "3 n d"]  # anchors, positives, negatives
    A: Float[Tensor, "k h"]
    starts: dict[str, Weights]

    @staticmethod
    def sample(size: Size, seed: int) -> "Problem":
        """Return a random problem."""
        n, d, rng = size.samples, size.inputs, torch.Generator().manual_seed(seed)
        images = normal(n, d, rng=rng) * torch.linspace(1.4, 0.7, d, dtype=torch.float64)
        noise = torch.where(torch.arange(d) % 2 == 0, 0.1, 2.0)
        x = torch.stack([images, images + noise * normal(n, d, rng=rng), images[torch.randperm(n, generator=rng)]])
        x -= images.mean(0)
        W1, W2, W3 = (0.5 * normal(d, width, rng=rng) / width**0.5 for width in (d, d, 2 * d))
        starts = {"linear": (W1,), "residual": (W1, W2), "residual, ReLU": (W1, normal(2 * d, d, rng=rng) / d**0.5, W3)}
        return Problem(x, torch.linalg.qr(normal(d, size.rank, rng=rng))[0].mT, starts)

    def projector(self, name: str) -> Float[Tensor, "k h"]:
        """Return the matrix A of a projector of `PROJECTORS`."""
        return self.A if name == "low rank" else torch.eye(self.A.shape[1], dtype=torch.float64)


def compute(size: Size, *, data: str | None, seed: int) -> Rows:
    """Train every cell of the factorial experiment, and record two of them over time."""
    problems = [Problem.sample(size, seed + i) for i in range(size.draws)]
    cells = []
    for name in product(LOSSES, CONSTRAINTS, size.networks, PROJECTORS):
        ends = [train_cell(problem, size, *name) for problem in problems]
        cells.append(dict(zip(FACTORS, name, strict=True)) | {key: fmean(end[key] for end in ends) for key in ends[0]})
    rows: Rows = {"inputs": size.inputs, "rank": size.rank, "cells": cells, "learning_rate": size.learning_rate}
    rows["shares"] = {y: variance_shares(cells, y) for y in ("u above 1", "r")}
    return rows | train_paths(problems[0], size) | {"gradient": first_layer_gradient_ranks(problems[0])}


def train_cell(
    problem: Problem, size: Size, loss: str, constraint: str, network: str, projector: str
) -> dict[str, float]:
    """Train one network. Return ranks of u and r, and how far the part of r outside A's rows moved, and its share of
    augmentation noise.
    """
    A, start, forward, end = problem.projector(projector), problem.starts[network], NETWORKS[network], ()
    loss_of = make_loss(problem, A, loss, constraint, network)
    for step, end in enumerate(gradient_descent_iterates(loss_of, start, learning_rate=size.learning_rate)):
        if step == size.steps or max(w.abs().max() for w in end) > 1e8:
            break  # the losses (1) and (2) have no minimum
    r0, r = forward(start, problem.x), forward(end, problem.x)
    outside = torch.eye(A.shape[1], dtype=torch.float64) - A.mT @ A
    before, after = r0 @ outside, r @ outside
    has_outside, u = projector != "none", centered_rank(CONSTRAINTS[constraint](r @ A.mT)[0])
    return {
        "u": u,
        "u above 1": (u - 1) / (len(A) - 1),
        "r": centered_rank(r[0]),
        "moved": ((after - before).norm() / before.norm()).item() if has_outside else 0.0,
        "noise before": noise_share(before) if has_outside else 0.0,
        "noise after": noise_share(after) if has_outside else 0.0,
    }


def make_loss(problem: Problem, A: Tensor, loss: str, constraint: str, network: str) -> Callable[[Weights], Tensor]:
    return lambda p: LOSSES[loss](CONSTRAINTS[constraint](NETWORKS[network](p, problem.x) @ A.mT)) / problem.x.shape[1]


def centered_rank(Z: Float[Tensor, "n D"]) -> float:
    return uncentered_rank((Z - Z.mean(0)) / Z.abs().max()).item()


def noise_share(r: Float[Tensor, "3 n h"]) -> float:
    """Return ½ E‖r(x) − r(x⁺)‖² over the variance of r(x): the share that does not depend on the image."""
    return ((r[0] - r[1]).square().sum() / 2 / (r[0] - r[0].mean(0)).square().sum()).item()


def train_paths(problem: Problem, size: Size) -> Rows:
    """Return the ranks over time of two linear networks behind A, by gradient descent and by theory: under loss (1),
    with the closed form, and under loss (1) of W = AΘ divided by ‖W‖², with its limit.
    """
    A, C, start = problem.A, pair_matrix(*problem.x, average=True), problem.starts["linear"]

    def ranks(loss: Callable[[Weights], Tensor], rate: float, steps: range, theory: Callable[..., Tensor]) -> Rows:
        Theta = gradient_descent(loss, start, learning_rate=rate, steps=steps)[0]
        t = rate * torch.tensor(steps, dtype=torch.float64)
        expected = output_ranks(problem, theory(Theta[0], t))
        return {"t": t.tolist()} | output_ranks(problem, Theta) | {f"{key}, theory": x for key, x in expected.items()}

    def one_norm(p: Weights) -> Tensor:
        W = A @ p[0]
        return (W @ C @ W.mT).trace() / W.square().sum()

    free, closed = make_loss(problem, A, "contrastive (1)", "free", "linear"), partial(projected_weights, A=A, X=-2 * C)
    rate, steps = size.learning_rate / 10, range(0, 10 * size.steps + 1, size.steps // 5)  # the flow conserves the norm
    return {
        "free": ranks(free, 0.002, range(0, 2001, 25), lambda Theta, t: closed(Theta, t=t)),
        "one norm": ranks(one_norm, rate, steps, lambda Theta, t: collapsed_weights(Theta, A, -2 * C)[None]),
    }


def output_ranks(problem: Problem, Theta: Float[Tensor, "T h d"]) -> dict[str, list[float]]:
    return {
        "u": [centered_rank(problem.x[0] @ (problem.A @ now).mT) for now in Theta],
        "r": [centered_rank(problem.x[0] @ now.mT) for now in Theta],
    }


def first_layer_gradient_ranks(problem: Problem) -> dict[str, int]:
    """Return the rank of the first layer's gradient at the start, under InfoNCE of unit rows."""
    ranks = {}
    for network, start in problem.starts.items():
        slope = gradient(make_loss(problem, problem.A, "InfoNCE", "unit rows", network), start)[0]
        ranks[network] = int(torch.linalg.matrix_rank(slope, rtol=1e-9))
    return ranks


def variance_shares(cells: list[dict], y: str) -> dict[str, float]:
    """Return shares of the variance of y over all cells: of each factor alone, and of all factors but the network
    together.
    """
    groupings = {f: (f,) for f in FACTORS} | {"all but network": tuple(f for f in FACTORS if f != "network")}
    shares = {}
    for name, factors in groupings.items():
        groups = defaultdict(list)
        for cell in cells:
            groups[tuple(cell[factor] for factor in factors)].append(cell[y])
        means = [fmean(group) for group in groups.values()]  # all groups have the same number of cells
        shares[name] = pvariance(means) / pvariance([cell[y] for cell in cells])
    return shares


def plot(rows: Rows) -> MplFigure:
    """Draw two trajectories with theory, the final ranks of all cells, their causes, and the noise in r outside A's
    rows.
    """
    figure, axes = subplots(2, 3, width=11.5, height=7.5)
    for ax, name in zip(axes[0], ("free", "one norm"), strict=False):
        path = rows[name]
        for key, label in (("r", "representation r = Θx"), ("u", "embedding u = Ar")):
            ax.plot(path["t"], path[key], label=label)
        ax.set(xlabel="t = learning rate × step", ylabel="effective rank", ylim=(0.8, None))
        ax.set_title(f"loss (1), {name}, linear, A of low rank")
    for key in ("r", "u"):
        axes[0, 0].plot(rows["free"]["t"], rows["free"][f"{key}, theory"], **THEORY_LINE)
        axes[0, 1].axhline(rows["one norm"][f"{key}, theory"][0], **THEORY_LINE)
    add_theory_legend(axes[0, 0], "closed form; on the right, its limit", loc="upper right")

    names = list(rows["shares"]["r"])
    for offset, key, label in ((-0.2, "r", "of r"), (0.2, "u above 1", "of u")):
        places = [i + offset for i in range(len(names))]
        axes[0, 2].barh(places, [rows["shares"][key][name] for name in names], 0.38, label=label)
    axes[0, 2].set(title="causes of the final rank", xlabel="share of its variance over all networks", xlim=(0, 1.05))
    axes[0, 2].set_yticks(range(len(names)), names)
    axes[0, 2].invert_yaxis()
    axes[0, 2].legend(loc="upper right")

    plot_table(axes[1, 0], rows, "u", f"final effective rank of u (of {rows['inputs']}, low rank: of {rows['rank']})")
    plot_table(axes[1, 1], rows, "r", "final effective rank of r")
    axes[1, 1].set_yticks([])

    networks = list(dict.fromkeys(cell["network"] for cell in rows["cells"]))
    bars = (
        (-0.27, "noise before", "free", "at the start"),
        (0, "noise after", "unit rows", "trained, unit rows"),
        (0.27, "noise after", "free", "trained, free"),
    )
    for offset, key, constraint, label in bars:
        levels = {"loss": "InfoNCE", "constraint": constraint, "projector": "low rank"}
        heights = [fmean(select_cells(rows, key, network=network, **levels)) for network in networks]
        axes[1, 2].bar([i + offset for i in range(len(networks))], heights, 0.25, label=label)
    axes[1, 2].set(title="r outside A's rows, under InfoNCE", ylabel="share of the augmentation's noise")
    axes[1, 2].margins(y=0.3)
    axes[1, 2].set_xticks(range(len(networks)), networks)
    axes[1, 2].legend()
    return figure


def plot_table(ax: Any, rows: Rows, key: str, title: str) -> None:
    """Draw a table of mean values: losses and constraints as rows, networks and projectors as columns."""
    columns = list(dict.fromkeys((cell["network"], cell["projector"]) for cell in rows["cells"]))
    lines = list(dict.fromkeys((cell["loss"], cell["constraint"]) for cell in rows["cells"]))
    values = {tuple(cell[factor] for factor in FACTORS): cell[key] for cell in rows["cells"]}
    table = [[values[*line, *column] for column in columns] for line in lines]
    ax.set_title(title)
    ax.imshow(table, aspect="auto", cmap="cividis", vmin=1, vmax=rows["inputs"])
    for (i, line), j in product(enumerate(table), range(len(columns))):
        color = "white" if line[j] < 0.45 * rows["inputs"] else "black"
        ax.text(j, i, f"{line[j]:.1f}", ha="center", va="center", fontsize=7, color=color)
    labels = [f"{network}\n{projector}".replace(", ", ",\n") for network, projector in columns]
    ax.set_xticks(range(len(columns)), labels, fontsize=6)
    ax.set_yticks(range(len(lines)), [f"{loss}, {constraint}" for loss, constraint in lines], fontsize=7)


def select_cells(rows: Rows, key: str, **levels: str | tuple[str, ...]) -> list[float]:
    """Return one value of each cell with these levels of the factors."""
    chosen = {factor: (level,) if isinstance(level, str) else level for factor, level in levels.items()}
    return [cell[key] for cell in rows["cells"] if all(cell[factor] in level for factor, level in chosen.items())]


def evaluate_claims(rows: Rows) -> Verdicts:
    k, d, ranks, shares = rows["rank"], rows["inputs"], rows["gradient"], rows["shares"]

    def mean(key: str, constraint: str, **levels: Any) -> float:
        return fmean(select_cells(rows, key, loss="InfoNCE", constraint=constraint, **levels))

    losses = {"loss": tuple(LOSSES)[:2], "constraint": ("free", "one norm")}
    linear = losses | {"network": "linear", "projector": "low rank"}
    u, u_infonce = select_cells(rows, "u", **linear), select_cells(rows, "u", **linear | {"loss": "InfoNCE"})
    simclr = {"loss": "InfoNCE", "constraint": "unit rows"}
    low_rank, none = (select_cells(rows, "r", **simclr, projector=name) for name in ("low rank", "none"))
    free, unit_rows = (
        mean("r", c, projector="low rank") - mean("r", c, projector="none") for c in ("free", "unit rows")
    )
    r_free = select_cells(rows, "r", **linear | {"constraint": "free"})
    r_one, theory = rows["one norm"]["r"][-1], rows["one norm"]["r, theory"][0]
    moved = select_cells(rows, "moved", network="linear", projector="low rank")
    residual = {"network": tuple(n for n in NETWORKS if n != "linear"), "projector": "low rank"}
    before, after_unit = (mean(key, "unit rows", **residual) for key in ("noise before", "noise after"))
    after = mean("noise after", "free", **residual)
    explained = {y: shares[y]["all but network"] for y in ("r", "u above 1")}
    return {
        "remark3": verdict(f"at most {max(u):.2f} of {k}", max(u) < 1.5),
        "other_losses": verdict(f"{min(u_infonce):.2f} to {max(u_infonce):.2f} of {k}", max(u_infonce) < 1.5),
        "jing": verdict(
            f"{fmean(low_rank):.2f} instead of {fmean(none):.2f} of {d} on average",
            all(a > b for a, b in zip(low_rank, none, strict=True)),
        ),
        "gradient_relu": verdict(f"{ranks['residual, ReLU']}", ranks["residual, ReLU"] == d),
        "gradient_linear": verdict(f"{ranks['residual']}", ranks["residual"] == k),
        "one_norm": verdict(f"{r_one:.2f}", abs(r_one / theory - 1) < 0.05, theory=theory),
        "free": verdict(f"at most {max(r_free):.2f}", max(r_free) < 1.5),
        "infonce": verdict(f"{free:+.1f} free, {unit_rows:+.1f} with unit rows", free < unit_rows / 2),
        "outside": verdict(f"{max(moved):.0e}", max(moved) < 1e-6),
        "noise": verdict(f"from {before:.2f} to {after:.2f}, with unit rows to {after_unit:.2f}", after < before / 2),
        "causes": verdict(f"{explained['r']:.2f} of r, {explained['u above 1']:.2f} u", min(explained.values()) > 0.9),
    }


SIZES = {
    "smoke": Size(samples=32, steps=100, learning_rate=0.1, networks=("linear", "residual")),
    "small": Size(draws=3),
    "paper": Size(inputs=32, rank=8, samples=256, draws=5, steps=2000),
}
