"""Remark 3 says that a fixed projector A cannot save u = AΘx from collapse; Jing et al. 2022 report that one saves the representation.

Neither paper draws this. A factorial experiment (loss, constraint, network, projector) finds what the verdict on each depends on. The
embedding u is what the loss sees; the representation r is what A is applied to.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.dynamics.contrastive_pairs import pair_matrix
from fullrank.dynamics.fixed_projector import collapsed, projected_weights
from fullrank.dynamics.flow import gradient, iterates
from fullrank.objectives.terms import total
from fullrank.objectives.theory import alignment_linear, contrastive_linear, infonce_squared
from fullrank.reproduce.draw import THEORY, subplots
from fullrank.reproduce.figure import Claim, Figure, Rows
from fullrank.spectrum.functional import effective_rank

if TYPE_CHECKING:
    import matplotlib.figure

Weights = dict[str, Tensor]


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
    "linear": lambda p, x: x @ p["Theta"].mT,
    "residual": lambda p, x: x @ p["W1"].mT @ (torch.eye(len(p["W2"])) + p["W2"].mT),
    "residual, ReLU": lambda p, x: x @ p["W1"].mT + (x @ p["W1"].mT @ p["W2"].mT).relu() @ p["W3"].mT,
}
FACTORS = ("loss", "constraint", "network", "projector")
PROJECTORS = ("none", "low rank")
"""These two are enough: an orthogonal projector is as good as none, a sub-vector as any other of its rank, since weights may rotate."""


@dataclass(frozen=True)
class Size:
    """How many networks, and how large."""

    inputs: int = 8
    """d, and h as many: dimensions of inputs, hidden layer and representation; the augmentation drowns half of the inputs."""
    rank: int = 3
    """k, of the projector."""
    samples: int = 64
    """n pairs."""
    draws: int = 1
    """data, starts and projectors drawn; each cell is their mean."""
    steps: int = 600
    """of gradient descent."""
    learning_rate: float = 0.05
    """of the loss's mean over the samples."""
    networks: tuple[str, ...] = tuple(NETWORKS)


@dataclass(frozen=True)
class Draw:
    """Data, a projector, and where each network starts."""

    x: Float[Tensor, "3 n d"]
    """Anchors, positives, negatives."""
    A: Float[Tensor, "k h"]
    starts: dict[str, Weights]

    @staticmethod
    def of(size: Size, seed: int) -> Draw:
        rng = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=rng, dtype=torch.float64)

        n, d = size.samples, size.inputs
        images = normal(n, d) * torch.linspace(1.4, 0.7, d, dtype=torch.float64)
        noise = torch.where(torch.arange(d) % 2 == 0, 0.1, 2.0)
        x = torch.stack([images, images + noise * normal(n, d), images[torch.randperm(n, generator=rng)]])
        x -= images.mean(0)
        W1, W2, W3 = 0.5 * normal(d, d) / d**0.5, 0.5 * normal(d, d) / d**0.5, 0.5 * normal(d, 2 * d) / (2 * d) ** 0.5
        starts = {
            "linear": {"Theta": W1},
            "residual": {"W1": W1, "W2": W2},
            "residual, ReLU": {"W1": W1, "W2": normal(2 * d, d) / d**0.5, "W3": W3},
        }
        return Draw(x, torch.linalg.qr(normal(d, size.rank))[0].mT, starts)

    def projector(self, name: str) -> Float[Tensor, "k h"]:
        return self.A if name == "low rank" else torch.eye(self.A.shape[1], dtype=torch.float64)


def compute(size: Size, *, data: str | None, seed: int) -> Rows:
    """Train every cell of the factorial experiment, and follow two of them through time."""
    draws = [Draw.of(size, seed + i) for i in range(size.draws)]
    names = list(product(LOSSES, CONSTRAINTS, size.networks, PROJECTORS))
    cells = []
    for name in names:
        ends = [_cell(draw, size, *name) for draw in draws]
        mean = {key: sum(end[key] for end in ends) / len(ends) for key in ends[0]}
        cells.append(dict(zip(FACTORS, name, strict=True)) | mean)
    rows: Rows = {"inputs": size.inputs, "rank": size.rank, "cells": cells, "learning_rate": size.learning_rate}
    rows["shares"] = {y: _shares(cells, y) for y in ("u kept", "r")}
    return rows | {"free": _free(draws[0]), "one norm": _one_norm(draws[0], size), "gradient": _gradient_ranks(draws[0])}


def _cell(draw: Draw, size: Size, loss: str, constraint: str, network: str, projector: str) -> dict[str, float]:
    """Train one network. What A does not see of r is the rest: how far it moved, and how much of it is noise of the augmentation."""
    A, start, forward, bound = draw.projector(projector), draw.starts[network], NETWORKS[network], CONSTRAINTS[constraint]
    end = start
    for step, now in enumerate(iterates(_loss(draw, A, loss, constraint, network), start, learning_rate=size.learning_rate)):
        end = now
        if step == size.steps or max(w.abs().max() for w in now.values()) > 1e8:  # the losses (1) and (2) have no minimum
            break
    r0, r = forward(start, draw.x), forward(end, draw.x)
    hidden = torch.eye(A.shape[1], dtype=torch.float64) - A.mT @ A
    before, after = r0 @ hidden, r @ hidden
    rest, u = projector != "none", _rank(bound(r @ A.mT)[0])
    return {
        "u": u,
        "u kept": (u - 1) / (len(A) - 1),
        "r": _rank(r[0]),
        "moved": ((after - before).norm() / before.norm()).item() if rest else 0.0,
        "noise before": _noise(before) if rest else 0.0,
        "noise after": _noise(after) if rest else 0.0,
    }


def _loss(draw: Draw, A: Tensor, loss: str, constraint: str, network: str) -> Callable[[Weights], Tensor]:
    return lambda p: LOSSES[loss](CONSTRAINTS[constraint](NETWORKS[network](p, draw.x) @ A.mT)) / draw.x.shape[1]


def _rank(Z: Float[Tensor, "n D"]) -> float:
    return effective_rank(torch.linalg.svdvals((Z - Z.mean(0)) / Z.abs().max()).square()).item()


def _noise(rest: Float[Tensor, "3 n h"]) -> float:
    """½ E‖r(x) − r(x⁺)‖² over the variance of r(x): what in r is not of the image."""
    return ((rest[0] - rest[1]).square().sum() / 2 / (rest[0] - rest[0].mean(0)).square().sum()).item()


def _free(draw: Draw) -> dict[str, list[float]]:
    """Loss (1), free, linear, low rank: gradient descent beside the closed form."""
    rate, every = 0.002, 25
    path = iterates(_loss(draw, draw.A, "contrastive (1)", "free", "linear"), draw.starts["linear"], learning_rate=rate)
    Theta = torch.stack([p["Theta"] for step, p in zip(range(2001), path, strict=False) if step % every == 0])
    t = torch.arange(len(Theta), dtype=torch.float64) * rate * every
    theory = projected_weights(Theta[0], draw.A, -2 * pair_matrix(*draw.x, average=True), t)
    return {"t": t.tolist()} | _ranks(draw, Theta) | {f"{key}, theory": ranks for key, ranks in _ranks(draw, theory).items()}


def _one_norm(draw: Draw, size: Size) -> dict[str, list[float]]:
    """Loss (1), its scale taken out of the weights W = AΘ, linear, low rank: gradient descent beside where theory has it end."""
    C, rate = pair_matrix(*draw.x, average=True), size.learning_rate / 10  # large steps inflate the norm, which the flow conserves

    def loss(p: Weights) -> Tensor:
        W = draw.A @ p["Theta"]
        return (W @ C @ W.mT).trace() / W.square().sum()

    path = iterates(loss, draw.starts["linear"], learning_rate=rate)
    steps = 10 * size.steps
    every = steps // 50
    Theta = torch.stack([p["Theta"] for step, p in zip(range(steps + 1), path, strict=False) if step % every == 0])
    end = _ranks(draw, collapsed(Theta[0], draw.A, -2 * C)[None])
    t = (torch.arange(len(Theta)) * rate * every).tolist()
    return {"t": t} | _ranks(draw, Theta) | {f"{key}, theory": ranks for key, ranks in end.items()}


def _ranks(draw: Draw, Theta: Float[Tensor, "T h d"]) -> dict[str, list[float]]:
    return {"u": [_rank(draw.x[0] @ (draw.A @ now).mT) for now in Theta], "r": [_rank(draw.x[0] @ now.mT) for now in Theta]}


def _gradient_ranks(draw: Draw) -> dict[str, int]:
    """How many dimensions the gradient has that enters the first layer, at the start, under InfoNCE of unit rows."""
    ranks = {}
    for network, start in draw.starts.items():
        first = next(iter(start))
        slope = gradient(_loss(draw, draw.A, "InfoNCE", "unit rows", network), start)[first]
        ranks[network] = int(torch.linalg.matrix_rank(slope, rtol=1e-9))
    return ranks


def _shares(cells: list[dict], y: str) -> dict[str, float]:
    """Shares of the variance of y over all cells: of each factor alone, and of all but the network together."""
    alone = [(factor,) for factor in FACTORS]
    groupings = {" ".join(factors): factors for factors in alone} | {"all but network": tuple(f for f in FACTORS if f != "network")}
    whole = torch.tensor([cell[y] for cell in cells]).var(correction=0)
    shares = {}
    for name, factors in groupings.items():
        groups = defaultdict(list)
        for cell in cells:
            groups[tuple(cell[factor] for factor in factors)].append(cell[y])
        means = torch.tensor([sum(group) / len(group) for group in groups.values()])  # of equally many cells each
        shares[name] = (means.var(correction=0) / whole).item()
    return shares


def plot(rows: Rows) -> matplotlib.figure.Figure:
    """Two trajectories with theory, the ranks that all cells end with, what decides them, and what becomes of the rest of r."""
    figure, axes = subplots(2, 3, width=11.5, height=7.5)
    for ax, name in zip(axes[0], ("free", "one norm"), strict=False):
        path = rows[name]
        for key, label in (("r", "representation r = Θx"), ("u", "embedding u = Ar")):
            ax.plot(path["t"], path[key], label=label)
        ax.set(
            title=f"loss (1), {name}, linear, A of low rank", xlabel="t = learning rate × step", ylabel="effective rank", ylim=(0.8, None)
        )
    for key in ("r", "u"):
        axes[0, 0].plot(rows["free"]["t"], rows["free"][f"{key}, theory"], **THEORY)
        axes[0, 1].axhline(rows["one norm"][f"{key}, theory"][0], **THEORY)
    axes[0, 0].plot([], [], **THEORY, label="closed form; on the right, its limit")
    axes[0, 0].legend(loc="upper right")

    shares = rows["shares"]
    names = list(shares["r"])
    for offset, (key, label) in zip((-0.2, 0.2), (("r", "of r"), ("u kept", "of u")), strict=True):
        axes[0, 2].barh([i + offset for i in range(len(names))], [shares[key][name] for name in names], 0.38, label=label)
    axes[0, 2].set(title="what decides the rank at the end", xlabel="share of its variance over all networks", xlim=(0, 1.05))
    axes[0, 2].set_yticks(range(len(names)), names)
    axes[0, 2].invert_yaxis()
    axes[0, 2].legend(loc="upper right")

    for ax, key in ((axes[1, 0], "u"), (axes[1, 1], "r")):
        _table(ax, rows, key)
        ax.set_title(f"effective rank of {key} at the end")
    axes[1, 0].set_title(f"effective rank of u (of {rows['inputs']}, low rank: of {rows['rank']})")
    axes[1, 1].set_yticks([])

    networks = list(dict.fromkeys(cell["network"] for cell in rows["cells"]))
    bars = (
        ("noise before", "free", "at the start"),
        ("noise after", "unit rows", "trained, unit rows"),
        ("noise after", "free", "trained, free"),
    )
    for offset, (key, constraint, label) in zip((-0.27, 0, 0.27), bars, strict=True):
        heights = [_mean(rows, key, network=network, loss="InfoNCE", constraint=constraint, projector="low rank") for network in networks]
        axes[1, 2].bar([i + offset for i in range(len(networks))], heights, 0.25, label=label)
    axes[1, 2].set(title="what A does not see of r, under InfoNCE", ylabel="share of the augmentation's noise")
    axes[1, 2].margins(y=0.3)
    axes[1, 2].set_xticks(range(len(networks)), networks)
    axes[1, 2].legend()
    return figure


def _table(ax: Any, rows: Rows, key: str) -> None:
    """Losses and constraints down, networks and projectors across."""
    columns = list(dict.fromkeys((cell["network"], cell["projector"]) for cell in rows["cells"]))
    lines = list(dict.fromkeys((cell["loss"], cell["constraint"]) for cell in rows["cells"]))
    values = [
        [_mean(rows, key, loss=loss, constraint=constraint, network=network, projector=projector) for network, projector in columns]
        for loss, constraint in lines
    ]
    ax.imshow(values, aspect="auto", cmap="cividis", vmin=1, vmax=rows["inputs"])
    for i, line in enumerate(values):
        for j, value in enumerate(line):
            ax.text(j, i, f"{value:.1f}", ha="center", va="center", fontsize=7, color="white" if value < 0.45 * rows["inputs"] else "black")
    labels = [f"{network}\n{projector}".replace(", ", ",\n") for network, projector in columns]
    ax.set_xticks(range(len(columns)), labels, fontsize=6)
    ax.set_yticks(range(len(lines)), [f"{loss}, {constraint}" for loss, constraint in lines], fontsize=7)


def _some(rows: Rows, key: str, **levels: str | tuple[str, ...]) -> list[float]:
    """The cells of these levels of the factors."""
    return [cell[key] for cell in rows["cells"] if all(cell[f] in ([v] if isinstance(v, str) else v) for f, v in levels.items())]


def _mean(rows: Rows, key: str, **levels: str | tuple[str, ...]) -> float:
    found = _some(rows, key, **levels)
    return sum(found) / len(found)


def claims(rows: Rows) -> list[Claim]:
    """Of both papers, and what separates them."""
    linear_losses, k, d = tuple(LOSSES)[:2], rows["rank"], rows["inputs"]
    bare = {"loss": linear_losses, "constraint": ("free", "one norm"), "network": "linear", "projector": "low rank"}
    u, u_infonce = _some(rows, "u", **bare), _some(rows, "u", **bare | {"loss": "InfoNCE"})
    simclr = {"loss": "InfoNCE", "constraint": "unit rows"}
    kept, lost = (_some(rows, "r", **simclr, projector=name) for name in ("low rank", "none"))
    gains = {
        c: _mean(rows, "r", **simclr | {"constraint": c}, projector="low rank")
        - _mean(rows, "r", **simclr | {"constraint": c}, projector="none")
        for c in ("free", "unit rows")
    }
    r_free = _some(rows, "r", **bare | {"constraint": "free"})
    r_one, theory = rows["one norm"]["r"][-1], rows["one norm"]["r, theory"][0]
    moved = _some(rows, "moved", network="linear", projector="low rank")
    residual = {"network": tuple(n for n in NETWORKS if n != "linear"), "projector": "low rank"}
    before, bounded = (_mean(rows, key, **simclr, **residual) for key in ("noise before", "noise after"))
    after = _mean(rows, "noise after", loss="InfoNCE", constraint="free", **residual)
    ranks, shares = rows["gradient"], rows["shares"]
    return [
        Claim(
            "Remark 3: u = AΘx with a fixed A of low rank collapses to one dimension under the losses (1) and (2)",
            expected="effective rank < 1.5",
            measured=f"at most {max(u):.2f} of {k}",
            holds=max(u) < 1.5,
        ),
        Claim(
            "Remark 2: so it does under InfoNCE",
            expected="effective rank < 1.5",
            measured=f"{min(u_infonce):.2f} to {max(u_infonce):.2f} of {k}",
            holds=max(u_infonce) < 1.5,
        ),
        Claim(
            "Jing et al., Sec. 6: under InfoNCE of unit rows, a fixed projector of low rank keeps r from collapsing",
            expected="r of higher rank than without, in every network",
            measured=f"{sum(kept) / len(kept):.2f} instead of {sum(lost) / len(lost):.2f} of {d} on average",
            holds=all(a > b for a, b in zip(kept, lost, strict=True)),
        ),
        Claim(
            "Jing et al., Fig. 10: a gradient of low rank is of full rank once it has passed the residual block, which has a ReLU",
            expected=f"rank {d}",
            measured=f"{ranks['residual, ReLU']}",
            holds=ranks["residual, ReLU"] == d,
        ),
        Claim(
            "without the ReLU it keeps the projector's rank: A(I + W₂) is a trained projector of k rows",
            expected=f"rank {k}",
            measured=f"{ranks['residual']}",
            holds=ranks["residual"] == k,
            corrected=True,
        ),
        Claim(
            "both papers are right: under (1) with one norm, u ends with one dimension, r with that and all that A does not see",
            expected=f"effective rank {theory:.2f} of r, within 5 %",
            measured=f"{r_one:.2f}",
            holds=abs(r_one / theory - 1) < 0.05,
            corrected=True,
        ),
        Claim(
            "with a free scale r collapses as well, since what grows without bound outweighs what is frozen",
            expected="effective rank < 1.5",
            measured=f"at most {max(r_free):.2f}",
            holds=max(r_free) < 1.5,
            corrected=True,
        ),
        Claim(
            "under InfoNCE, too, a projector of low rank raises the rank of r only where the scale is bounded, as by unit rows",
            expected="free, less than half of the gain with unit rows",
            measured=f"{gains['free']:+.1f} free, {gains['unit rows']:+.1f} with unit rows",
            holds=gains["free"] < gains["unit rows"] / 2,
            corrected=True,
        ),
        Claim(
            "what A does not see of r = Θx stays at its random start under every loss: this rank is kept, not learned",
            expected="relative change < 1e-6, the rounding error of weights that grow to 1e8",
            measured=f"{max(moved):.0e}",
            holds=max(moved) < 1e-6,
            corrected=True,
        ),
        Claim(
            "with a residual block, what A does not see of r is trained too: it loses noise of the augmentation under InfoNCE",
            expected="less than half of it left with a free scale",
            measured=f"from {before:.2f} to {after:.2f}, with unit rows to {bounded:.2f}",
            holds=after < before / 2,
            corrected=True,
        ),
        Claim(
            "loss, constraint and projector decide which ranks are kept, not the residual connection",
            expected="more than 0.9 of the variance of ranks",
            measured=f"{shares['r']['all but network']:.2f} of r, {shares['u kept']['all but network']:.2f} of u",
            holds=min(shares[y]["all but network"] for y in ("r", "u kept")) > 0.9,
            corrected=True,
        ),
    ]


FIGURE = Figure(
    title="Remark 3 of Esser et al. 2023 against Sec. 6 of Jing et al. 2022: can a fixed projector prevent collapse?",
    claim="Esser et al.: embeddings of a fixed projector collapse all the same; Jing et al.: a fixed low-rank projector prevents collapse.",
    sizes={
        "smoke": Size(samples=32, steps=100, learning_rate=0.1, networks=("linear", "residual")),
        "small": Size(draws=3),
        "paper": Size(inputs=32, rank=8, samples=256, draws=5, steps=2000),
    },
    compute=compute,
    plot=plot,
    claims=claims,
)
