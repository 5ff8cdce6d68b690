"""Which losses leave the outputs of a linear network u = Θx apart, and which collapse them: Remarks 1 and 2, for which there is no figure.

Remark 1: regression decouples into one problem for each output. Remark 2, which argues that the losses look alike: InfoNCE and the cosine
loss decouple too and so collapse as loss (1) does; the spectral contrastive loss does not. Gaussian data and sizes are ours.
Where the cosine loss ends depends on the data: at rank 1 if there is a direction in which each sample has the sign of its positive, as
happens with few samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.dynamics.contrastive_pairs import pair_matrix, unconstrained
from fullrank.dynamics.flow import descend, flow
from fullrank.objectives import contrastive_linear, infonce_squared, spectral_contrastive
from fullrank.objectives.terms import total
from fullrank.reproduce.draw import THEORY, subplots
from fullrank.reproduce.figure import Claim, Figure, Rows
from fullrank.spectrum.functional import effective_rank

if TYPE_CHECKING:
    import matplotlib.figure

INPUTS, OUTPUTS = 6, 4
SPREAD = (2.0, 1.2, 1.1, 1.0, 0.9, 0.8)  # standard deviations of the data
WEAK, STRONG = 0.3, 4.0  # those of the augmentation, as shares of the data's
KEPT = 2  # directions that the strong augmentation leaves alone
SHORT = 5.0  # time that is enough where closed forms are known
LEARNING_RATE, EVERY, POINTS = 0.02, 25, 40  # of gradient descent, and how much is recorded

Loss = Callable[[tuple[Tensor, ...]], Tensor]
"""Of Θ alone, in a tuple."""


@dataclass(frozen=True)
class Size:
    """How much is computed."""

    samples: int
    """Anchors n; losses are means over them."""
    starts: int
    """Random initialisations of Θ."""


def compute(size: Size, *, data: str | None, seed: int) -> Rows:
    """Follow every loss from the same starts: as flows where there is a closed form, by gradient descent where there is none."""
    rng = torch.Generator().manual_seed(seed)

    def normal(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, dtype=torch.float64, generator=rng)

    n = size.samples
    X, noise, X_neg = (normal(n, INPUTS) * torch.tensor(SPREAD) for _ in range(3))
    X, X_neg = X - X.mean(0), X_neg - X_neg.mean(0)
    weak = torch.stack([X, X + WEAK * noise])
    strong = torch.stack([X, X + torch.tensor([WEAK] * KEPT + [STRONG] * (INPUTS - KEPT)) * noise])
    Y = X @ normal(INPUTS, OUTPUTS) + normal(n, OUTPUTS)
    starts = [normal(OUTPUTS, INPUTS) / 5 for _ in range(size.starts)]

    fit, G, C = torch.linalg.lstsq(X, Y).solution.mT, X.mT @ X / n, pair_matrix(weak[0], weak[1], X_neg, average=True)
    solved: dict[str, tuple[Loss, Callable[[Tensor, Tensor], Tensor]]] = {
        "regression": (regression(X, Y), lambda W, t: fit + unconstrained(W - fit, G / 2, t)),
        "contrastive": (
            lambda W: total(contrastive_linear(weak[0] @ W[0].mT, weak[1] @ W[0].mT, X_neg @ W[0].mT)) / n,
            lambda W, t: unconstrained(W, C, t),
        ),
    }
    others: dict[str, Loss] = {
        "InfoNCE": lambda W: total(infonce_squared(weak @ W[0].mT)) / n,
        "InfoNCE, strong": lambda W: total(infonce_squared(strong @ W[0].mT)) / n,
        "spectral": lambda W: total(spectral_contrastive(weak @ W[0].mT)),
        "cosine": lambda W: -torch.cosine_similarity(weak[0] @ W[0].mT, weak[1] @ W[0].mT, dim=-1).mean(),
    }
    losses: Rows = {}
    t = torch.linspace(0, SHORT, POINTS + 1, dtype=torch.float64)
    for name, (loss, closed) in solved.items():
        paths = [flow(loss, (W,), t)[0] for W in starts]
        losses[name] = watch(t, paths, X, loss) | {"theory": ranks([closed(W, t) for W in starts], X)}
    t_long = LEARNING_RATE * torch.arange(0, POINTS * EVERY + 1, EVERY, dtype=torch.float64)
    for name, loss in others.items():
        steps = range(0, POINTS * EVERY + 1, EVERY)
        losses[name] = watch(t_long, [descend(loss, (W,), learning_rate=LEARNING_RATE, steps=steps)[0] for W in starts], X, loss)
    together = flow(solved["regression"][0], (starts[0],), t)[0]
    alone = torch.cat([flow(regression(X, Y[:, [k]]), (starts[0][[k]],), t)[0] for k in range(OUTPUTS)], 1)
    return {"losses": losses, "alone": (together - alone).abs().max().item(), "fitted": ranks([fit[None]], X)[0][0]}


def regression(X: Float[Tensor, "n d"], Y: Float[Tensor, "n z"]) -> Loss:
    """½ |Θx − y|², the mean over samples."""
    return lambda W: (X @ W[0].mT - Y).square().sum() / (2 * len(X))


def watch(t: Float[Tensor, " T"], paths: list[Float[Tensor, "T z d"]], X: Float[Tensor, "n d"], loss: Loss) -> Rows:
    """Times, effective ranks of every start, and how much the loss couples outputs at the first."""
    return {"t": t.tolist(), "rank": ranks(paths, X), "coupling": coupling(loss, paths[0][0])}


def ranks(paths: Sequence[Float[Tensor, "T z d"]], X: Float[Tensor, "n d"]) -> list[list[float]]:
    """Effective rank of the outputs XΘᵀ at each time, of each start."""
    return [effective_rank(torch.linalg.svdvals(X @ path.mT).square()).tolist() for path in paths]


def coupling(loss: Loss, Theta: Float[Tensor, "z d"]) -> float:
    """The share of the Hessian's norm that lies between different outputs: 0 where each evolves by itself."""
    H = torch.autograd.functional.hessian(lambda W: loss((W,)), Theta)
    assert isinstance(H, Tensor)
    blocks = H.square().sum((1, 3))  # (z, z)
    return ((blocks.sum() - blocks.trace()) / blocks.sum()).clamp(min=0).sqrt().item()


def plot(rows: Rows) -> matplotlib.figure.Figure:
    """Draw the effective rank of the outputs over time: regression, loss (1), and the losses of Remark 2."""
    figure, (axes,) = subplots(1, 3, sharey=True)
    panels = {
        "Regression": {"regression": "½ |u − y|²"},
        "Loss (1)": {"contrastive": "uᵀ(u⁻ − u⁺)"},
        "Losses of Remark 2": {
            "InfoNCE": "InfoNCE",
            "InfoNCE, strong": "InfoNCE, strong augmentation",
            "spectral": "spectral contrastive",
            "cosine": "cosine",
        },
    }
    for panel, (title, losses) in zip(axes, panels.items(), strict=True):
        for k, (name, label) in enumerate(losses.items()):
            found = rows["losses"][name]
            width = 2.5 if "theory" in found else 1.2  # to be seen below the theory
            for number, rank in enumerate(found["rank"]):
                panel.plot(found["t"], rank, color=f"C{k}", alpha=0.7, linewidth=width, label=label if number == 0 else None)
            for number, rank in enumerate(found.get("theory", ())):
                panel.plot(found["t"], rank, **THEORY, label="closed form" if number == 0 else None)
        panel.set(title=title, xlabel="t = learning rate × step", ylim=(0.4, OUTPUTS + 0.1))
        panel.legend(loc={"Regression": "lower right", "Loss (1)": "upper right"}.get(title, "lower left"))
    axes[0].axhline(rows["fitted"], color="0.6", linewidth=0.8, zorder=0)
    axes[0].set(ylabel=f"effective rank of {OUTPUTS} outputs")
    return figure


def claims(rows: Rows) -> list[Claim]:
    """Hold couplings and final ranks against the remarks."""
    losses = rows["losses"]
    coupled = {name: found["coupling"] for name, found in losses.items()}
    last = {name: [rank[-1] for rank in found["rank"]] for name, found in losses.items()}
    error = max(
        abs(a - b)
        for name in ("regression", "contrastive")
        for found, theory in zip(losses[name]["rank"], losses[name]["theory"], strict=True)
        for a, b in zip(found, theory, strict=True)
    )
    return [
        Claim(
            "regression decouples: outputs learn together as each learns alone (Remark 1)",
            expected="share of the Hessian between outputs 0",
            measured=f"{coupled['regression']:.2f}, and weights that differ by {rows['alone']:.0e}",
            holds=rows["alone"] < 1e-6 and coupled["regression"] < 1e-9,
        ),
        Claim(
            "loss (1) decouples too, and the outputs collapse to one dimension (Proposition 1)",
            expected="share 0, effective rank 1",
            measured=f"{coupled['contrastive']:.2f}, at most {max(last['contrastive']):.3f}",
            holds=coupled["contrastive"] < 1e-9 and max(last["contrastive"]) < 1.05,
        ),
        Claim(
            "InfoNCE decouples, and so collapses (Remark 2)",
            expected="share 0, effective rank 1",
            measured=f"{coupled['InfoNCE']:.2f}, at least {min(last['InfoNCE']):.2f} of {OUTPUTS}",
            holds=coupled["InfoNCE"] < 1e-9 and max(last["InfoNCE"]) < 1.05,
        ),
        Claim(
            "the same argument holds for the cosine loss, here without a predictor (Remark 2)",
            expected="share 0",
            measured=f"{coupled['cosine']:.2f}, effective rank down to {min(last['cosine']):.2f} at t = {losses['cosine']['t'][-1]:g}",
            holds=coupled["cosine"] < 1e-9,
        ),
        Claim(
            "the spectral contrastive loss keeps outputs coupled (Remark 2)",
            expected="share > 0.01",
            measured=f"{coupled['spectral']:.2f}, effective rank at least {min(last['spectral']):.2f}",
            holds=coupled["spectral"] > 0.01,
        ),
        Claim(
            "decoupling alone does not collapse: regression ends at the rank of the best fit, and closed forms give the ranks at all times",
            expected=f"effective rank {rows['fitted']:.2f}",
            measured=f"{min(last['regression']):.2f} to {max(last['regression']):.2f}, closed forms within {max(error, 1e-6):.0e}",
            holds=max(abs(rank - rows["fitted"]) for rank in last["regression"]) < 0.05 and error < 1e-4,
            corrected=True,
        ),
        Claim(
            f"InfoNCE loses the directions in which augmentation is stronger than the data: where it is strong, all but {KEPT}",
            expected=f"effective rank {KEPT}",
            measured=f"{min(last['InfoNCE, strong']):.2f} to {max(last['InfoNCE, strong']):.2f}",
            holds=all(KEPT - 0.3 < rank < KEPT + 0.05 for rank in last["InfoNCE, strong"]),
            corrected=True,
        ),
    ]


FIGURE = Figure(
    title="Remarks 1 and 2 of Esser et al. 2023, Representation Learning Dynamics",
    claim="Outputs decouple under regression, under loss (1) and under InfoNCE alike; without targets that collapses them.",
    sizes={
        "smoke": Size(samples=24, starts=1),
        "small": Size(samples=64, starts=4),
        "paper": Size(samples=128, starts=10),
    },
    compute=compute,
    plot=plot,
    claims=claims,
)
