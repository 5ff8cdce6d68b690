"""Remarks 1 and 2, for which the paper has no figure: losses that collapse the outputs of a linear network u = Θx, and
losses that do not.

Remark 1: regression decouples into one problem per output. Remark 2 argues that other losses are similar: InfoNCE and
the cosine loss decouple too, and so collapse as loss (1) does; the spectral contrastive loss does not. Gaussian data
and sizes are ours. The final rank under the cosine loss depends on the data: it is 1 if there is a direction in which
each sample has the sign of its positive, as with few samples.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.objectives import spectral_contrastive, total
from fullrank_papers.figures.figure import MplFigure, Rows, Verdict, Verdicts, verdict
from fullrank_papers.figures.numerics import normal, uncentered_rank
from fullrank_papers.plot_style import THEORY_LINE, plot_runs, subplots
from fullrank_papers.theory.contrastive_pairs import pair_matrix, unconstrained_weights
from fullrank_papers.theory.flow import gradient_descent, gradient_flow
from fullrank_papers.theory.objectives import contrastive_linear, infonce_squared

INPUTS, OUTPUTS = 6, 4
DATA_STD = (2.0, 1.2, 1.1, 1.0, 0.9, 0.8)  # standard deviations of the data
WEAK, STRONG = 0.3, 4.0  # standard deviations of the augmentation, as shares of the data's
UNCHANGED = 2  # directions without strong augmentation
FLOW_TIME = 5.0  # time of the flows with a closed form
LEARNING_RATE, EVERY, POINTS = 0.02, 25, 40  # of gradient descent; steps between recorded points; recorded points

# A function of (Θ,).
Loss = Callable[[tuple[Tensor, ...]], Tensor]


@dataclass(frozen=True)
class Size:
    """Data and training."""

    samples: int  # number of anchors n; losses are means over them
    starts: int  # number of random initialisations of Θ


def compute(size: Size, *, data: str | None, seed: int) -> Rows:
    """Train with every loss from the same starts: as a flow if there is a closed form, else by gradient descent."""
    n, rng = size.samples, torch.Generator().manual_seed(seed)
    X, noise, X_neg = (normal(n, INPUTS, rng=rng) * torch.tensor(DATA_STD) for _ in range(3))
    X, X_neg = X - X.mean(0), X_neg - X_neg.mean(0)
    weak = torch.stack([X, X + WEAK * noise])
    strong = torch.stack([X, X + torch.tensor([WEAK] * UNCHANGED + [STRONG] * (INPUTS - UNCHANGED)) * noise])
    Y = X @ normal(INPUTS, OUTPUTS, rng=rng) + normal(n, OUTPUTS, rng=rng)
    starts = [normal(OUTPUTS, INPUTS, rng=rng) / 5 for _ in range(size.starts)]

    fit, G, C = torch.linalg.lstsq(X, Y).solution.mT, X.mT @ X / n, pair_matrix(weak[0], weak[1], X_neg, average=True)
    with_closed_form: dict[str, tuple[Loss, Callable[[Tensor, Tensor], Tensor]]] = {
        "regression": (regression(X, Y), lambda W, t: fit + unconstrained_weights(W - fit, G / 2, t)),
        "contrastive": (
            lambda W: total(contrastive_linear(weak[0] @ W[0].mT, weak[1] @ W[0].mT, X_neg @ W[0].mT)) / n,
            lambda W, t: unconstrained_weights(W, C, t),
        ),
    }
    without_closed_form: dict[str, Loss] = {
        "InfoNCE": lambda W: total(infonce_squared(weak @ W[0].mT)) / n,
        "InfoNCE, strong": lambda W: total(infonce_squared(strong @ W[0].mT)) / n,
        "spectral": lambda W: total(spectral_contrastive(weak @ W[0].mT)),
        "cosine": lambda W: -torch.cosine_similarity(weak[0] @ W[0].mT, weak[1] @ W[0].mT, dim=-1).mean(),
    }
    losses: Rows = {}
    t = torch.linspace(0, FLOW_TIME, POINTS + 1, dtype=torch.float64)
    for name, (loss, closed) in with_closed_form.items():
        paths = [gradient_flow(loss, (W,), t)[0] for W in starts]
        losses[name] = measure_ranks(t, paths, X, loss) | {"theory": ranks([closed(W, t) for W in starts], X)}
    steps = range(0, POINTS * EVERY + 1, EVERY)
    for name, loss in without_closed_form.items():
        paths = [gradient_descent(loss, (W,), learning_rate=LEARNING_RATE, steps=steps)[0] for W in starts]
        losses[name] = measure_ranks(LEARNING_RATE * torch.tensor(steps, dtype=torch.float64), paths, X, loss)
    joint = gradient_flow(with_closed_form["regression"][0], (starts[0],), t)[0]
    separate = torch.cat([gradient_flow(regression(X, Y[:, [k]]), (starts[0][[k]],), t)[0] for k in range(OUTPUTS)], 1)
    return {"losses": losses, "separate": (joint - separate).abs().max().item(), "fitted": ranks([fit[None]], X)[0][0]}


def regression(X: Float[Tensor, "n d"], Y: Float[Tensor, "n z"]) -> Loss:
    """Return the loss ½ |Θx − y|², averaged over samples."""
    return lambda W: (X @ W[0].mT - Y).square().sum() / (2 * len(X))


def measure_ranks(
    t: Float[Tensor, " T"], paths: list[Float[Tensor, "T z d"]], X: Float[Tensor, "n d"], loss: Loss
) -> Rows:
    """Return the times, the effective ranks of every start, and the coupling of outputs at the first start."""
    return {"t": t.tolist(), "rank": ranks(paths, X), "coupling": coupling(loss, paths[0][0])}


def ranks(paths: Sequence[Float[Tensor, "T z d"]], X: Float[Tensor, "n d"]) -> list[list[float]]:
    """Return the effective rank of the outputs XΘᵀ for each start and time."""
    return [uncentered_rank(X @ path.mT).tolist() for path in paths]


def coupling(loss: Loss, Theta: Float[Tensor, "z d"]) -> float:
    """Return the share of the Hessian's norm between different outputs: 0 if outputs evolve independently."""
    H = torch.autograd.functional.hessian(lambda W: loss((W,)), Theta)
    assert isinstance(H, Tensor)
    blocks = H.square().sum((1, 3))  # (z, z)
    return ((blocks.sum() - blocks.trace()) / blocks.sum()).clamp(min=0).sqrt().item()


def plot(rows: Rows) -> MplFigure:
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
            result = rows["losses"][name]
            width = 2.5 if "theory" in result else 1.2  # visible below the theory
            plot_runs(panel, result["t"], result["rank"], color=f"C{k}", alpha=0.7, linewidth=width, label=label)
            plot_runs(panel, result["t"], result.get("theory", ()), **THEORY_LINE, label="closed form")
        panel.set(title=title, xlabel="t = learning rate × step", ylim=(0.4, OUTPUTS + 0.1))
        panel.legend(loc={"Regression": "lower right", "Loss (1)": "upper right"}.get(title, "lower left"))
    axes[0].axhline(rows["fitted"], color="0.6", linewidth=0.8, zorder=0)
    axes[0].set(ylabel=f"effective rank of {OUTPUTS} outputs")
    return figure


def evaluate_claims(rows: Rows) -> Verdicts:
    losses, fitted = rows["losses"], rows["fitted"]
    ends = {name: [rank[-1] for rank in result["rank"]] for name, result in losses.items()}
    coupled = {name: result["coupling"] for name, result in losses.items()}
    highest, lowest, strong = max(ends["InfoNCE"]), min(ends["regression"]), ends["InfoNCE, strong"]
    error = max(
        abs(a - b)
        for name in ("regression", "contrastive")
        for measured, theory in zip(losses[name]["rank"], losses[name]["theory"], strict=True)
        for a, b in zip(measured, theory, strict=True)
    )

    def decoupled(name: str, what: str, holds: bool = True) -> Verdict:
        return verdict(f"{coupled[name]:.2f}, {what}", coupled[name] < 1e-9 and holds)

    cosine = f"effective rank down to {min(ends['cosine']):.2f} at t = {losses['cosine']['t'][-1]:g}"
    return {
        "regression": decoupled(
            "regression", f"and weights that differ by {rows['separate']:.0e}", rows["separate"] < 1e-6
        ),
        "contrastive": decoupled(
            "contrastive", f"at most {max(ends['contrastive']):.3f}", max(ends["contrastive"]) < 1.05
        ),
        "infonce": decoupled("InfoNCE", f"at least {min(ends['InfoNCE']):.2f} of {OUTPUTS}", highest < 1.05),
        "cosine": decoupled("cosine", cosine),
        "spectral": verdict(
            f"{coupled['spectral']:.2f}, effective rank at least {min(ends['spectral']):.2f}",
            coupled["spectral"] > 0.01,
        ),
        "fit": verdict(
            f"{lowest:.2f} to {max(ends['regression']):.2f}, closed forms within {max(error, 1e-6):.0e}",
            lowest > fitted - 0.05 and max(ends["regression"]) < fitted + 0.05 and error < 1e-4,
        ),
        "strong": verdict(
            f"{min(strong):.2f} to {max(strong):.2f}", min(strong) > UNCHANGED - 0.3 and max(strong) < UNCHANGED + 0.05
        ),
    }


SIZES = {
    "smoke": Size(samples=24, starts=1),
    "small": Size(samples=64, starts=4),
    "paper": Size(samples=128, starts=10),
}
