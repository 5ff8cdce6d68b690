"""Projected gradient descent (11) beside the discretised flow (12) of the outputs: loss, and outputs, on half-moons.

The paper notes that (12) lags a little and does not say why. Gradient steps that are projected back follow the polar flow, whose outputs
turn 3/2 times as fast as those of (12). Narrow networks, which start with long outputs, show this; wide ones do not. C is averaged over the
samples here, since with the sum the paper's learning rate would be unstable.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.dynamics.contrastive_pairs import eigenbasis, pair_matrix
from fullrank.dynamics.trace import euler_outputs, orthonormal_weights, projected_gradient_step, stability_limit
from fullrank.reproduce.draw import THEORY, subplots
from fullrank.reproduce.dynamics.fig1 import moons
from fullrank.reproduce.figure import Claim, Figure, Rows

if TYPE_CHECKING:
    import matplotlib.figure

POINTS = 60  # of a curve that are kept
ORDER = 0.3  # tolerance of a ratio of two errors


@dataclass(frozen=True)
class Size:
    """How many networks are trained, and for how long."""

    widths: tuple[int, ...] = (10, 100, 1000)
    """Hidden units h."""
    inits: int = 5
    """Random weights at each width."""
    samples: int = 200
    """Half-moons."""
    step: float = 0.01
    """Learning rate η, for C averaged over the samples."""
    steps: int = 1200
    """Steps of (11) and of (12)."""


def descent(
    W1: Float[Tensor, "h d"], W2: Float[Tensor, "h z"], C: Float[Tensor, "d d"], V: Float[Tensor, "d d"], *, step: float, steps: int
) -> Float[Tensor, "T d z"]:
    """Return the outputs q = VᵀW1ᵀW2 at steps 0, 1, …, T − 1 of (11)."""
    q = [V.mT @ W1.mT @ W2]
    for _ in range(steps):
        W1, W2 = projected_gradient_step(W1, W2, C, learning_rate=step)
        q.append(V.mT @ W1.mT @ W2)
    return torch.stack(q)


def losses(q: Float[Tensor, "T d z"], eigenvalues: Float[Tensor, " d"]) -> Float[Tensor, " T"]:
    return (eigenvalues[:, None] * q.square()).sum((1, 2))


def arrival(loss: Float[Tensor, " T"], end: Tensor, *, fraction: float = 0.99) -> float:
    """Return the (interpolated) step at which the loss has come this fraction of the way from its start to its minimum."""
    aim = loss[0] + fraction * (end - loss[0])
    k = int((loss <= aim).nonzero()[0])
    return k - ((aim - loss[k]) / (loss[k - 1] - loss[k])).item()


def distance(p: Float[Tensor, "T d z"], q: Float[Tensor, "T d z"]) -> Float[Tensor, " T"]:
    return (p - q).flatten(1).norm(dim=1)


def compute(size: Size, *, data: str | None = None, seed: int = 0) -> Rows:
    del data
    C = pair_matrix(*moons(size.samples, seed=seed), average=True)
    eigenvalues, V = eigenbasis(C)
    thin = (size.steps * torch.linspace(0, 1, POINTS) ** 1.7).round().long().unique()  # denser where outputs move

    def trained(hidden: int, outputs: int, init: int, *, finer: int = 1) -> dict[str, Tensor]:
        """Return the outputs by (11), and by (12) of two flows from the same start."""
        W1, W2 = orthonormal_weights(2, hidden=hidden, outputs=outputs, generator=torch.Generator().manual_seed(1000 * seed + init))
        step, steps = size.step / finer, size.steps * finer
        q = descent(W1, W2, C, V, step=step, steps=steps)
        flows = {f: euler_outputs(q[0], eigenvalues, learning_rate=step, steps=steps, flow=f) for f in ("horizontal", "polar")}
        return {"descent": q, **flows}

    runs = []
    for width in size.widths:
        for init in range(size.inits):
            q = trained(width, 1, init)
            loss = {name: losses(path, eigenvalues) for name, path in q.items()}
            gap = {flow: distance(q[flow], q["descent"]) for flow in ("horizontal", "polar")}
            runs.append(
                {
                    "width": width,
                    "loss": {name: loss[name][thin].tolist() for name in ("descent", "horizontal")},
                    "q": {name: q[name][thin, :, 0].tolist() for name in ("descent", "horizontal")},
                    "arrival": {name: arrival(values, eigenvalues[0]) for name, values in loss.items()},
                    "excess": {name: (values[-1] - eigenvalues[0]).item() for name, values in loss.items()},
                    "gap": {flow: values[thin].tolist() for flow, values in gap.items()},
                    "largest": {flow: values.max().item() for flow, values in gap.items()},
                    "last": {flow: values[-1].item() for flow, values in gap.items()},
                }
            )
    coarse, fine = (trained(size.widths[0], 1, 0, finer=finer) for finer in (1, 2))
    two = trained(size.widths[0], 2, 0)
    gram = {name: path @ path.mT for name, path in two.items()}
    return {
        "eigenvalues": eigenvalues.tolist(),
        "step": size.step,
        "bounds": [stability_limit(scale * eigenvalues, outputs=1) for scale in (1, size.samples)],
        "samples": size.samples,
        "t": (thin * size.step).tolist(),
        "runs": runs,
        "order": {
            flow: (distance(coarse[flow], coarse["descent"]).max() / distance(fine[flow], fine["descent"]).max()).item()
            for flow in ("horizontal", "polar")
        },
        "two": {flow: [distance(path[flow], path["descent"])[-1].item() for path in (two, gram)] for flow in ("horizontal", "polar")},
    }


def plot(rows: Rows) -> matplotlib.figure.Figure:
    figure, axes = subplots(1, 3, width=10.0, height=3.4)
    losses, outputs, gaps = axes[0]
    widths = sorted({run["width"] for run in rows["runs"]})
    for k, width in enumerate(widths):
        for run in [run for run in rows["runs"] if run["width"] == width][:2]:
            losses.plot(rows["t"], run["loss"]["descent"], color=f"C{k}", label=f"(11), h = {width}")
            losses.plot(rows["t"], run["loss"]["horizontal"], **THEORY)
        for run in (run for run in rows["runs"] if run["width"] == width):
            outputs.plot(*zip(*run["q"]["descent"], strict=True), color=f"C{k}")
            outputs.plot(*zip(*run["q"]["horizontal"], strict=True), **THEORY)
            outputs.plot(*run["q"]["descent"][0], "o", color=f"C{k}", markersize=3)
    outputs.plot([-1, 1], [0, 0], "k*", markersize=8, linestyle="none", zorder=4)
    losses.plot([], [], **THEORY, label="(12)")
    lines = dict(zip(*reversed(losses.get_legend_handles_labels()), strict=True))
    losses.legend(lines.values(), lines.keys())
    losses.set(xlabel="t = learning rate × step", ylabel="loss", title="Loss", xlim=(0, 6))
    outputs.set(xlabel="q₁, along the lowest eigenvector", ylabel="q₂", title="Outputs, from o to ∗", xlim=(-1.1, 1.1), ylim=(-1.1, 1.1))
    outputs.set_aspect("equal")
    narrow = max((run for run in rows["runs"] if run["width"] == widths[0]), key=lambda run: run["largest"]["horizontal"])
    for flow, name in (("horizontal", "(12)"), ("polar", "(12) of the polar flow")):
        gaps.plot(rows["t"], narrow["gap"][flow], label=name)
    gaps.set(
        xlabel="t = learning rate × step", ylabel="|q − q of (11)|", title=f"Distance from (11), one start, h = {widths[0]}", xlim=(0, 6)
    )
    gaps.legend()
    return figure


def claims(rows: Rows) -> list[Claim]:
    runs, (low, _) = rows["runs"], rows["eigenvalues"]
    widths = sorted({run["width"] for run in runs})
    excess = max(run["excess"][name] for run in runs for name in ("descent", "horizontal"))
    largest = {flow: max(run["largest"][flow] for run in runs) for flow in ("horizontal", "polar")}
    typical = median(run["largest"]["horizontal"] for run in runs)
    last = max(run["last"]["horizontal"] for run in runs)

    def lag(behind: str) -> dict[int, float]:
        """By width, the time that (12) takes over that of the other."""
        return {w: median(run["arrival"]["horizontal"] / run["arrival"][behind] for run in runs if run["width"] == w) for w in widths}

    training, polar = lag("descent"), lag("polar")
    each, pure = (", ".join(f"{ratio:.3f} at h = {width}" for width, ratio in lags.items()) for lags in (training, polar))
    order, two, (bound, summed) = rows["order"], rows["two"], rows["bounds"]
    return [
        Claim(
            "(11) and (12) converge to the same final loss, λ₁",
            expected="within 1e-3 of λ₁",
            measured=f"both within {excess:.1g} of λ₁ = {low:.3f}, from {len(runs)} starts",
            holds=excess < 1e-3,
        ),
        Claim(
            "(12) decays slightly slower than (11), at all widths",
            expected="time of (12) to 99 % of the way / that of (11) > 1",
            measured=f"median {each}",
            holds=all(ratio > 1 for ratio in training.values()),
        ),
        Claim(
            "the outputs of (11) and (12) stay close to each other",
            expected="median over starts of the largest distance < 0.1",
            measured=f"{typical:.2g}, at most {largest['horizontal']:.2g}",
            holds=typical < 0.1,
        ),
        Claim(
            "and converge to the same final outputs",
            expected="distance < 1e-3",
            measured=f"{last:.1g} at t = {rows['t'][-1]:g}",
            holds=last < 1e-3,
        ),
        Claim(
            "(11) follows the polar flow, not (12): halving η halves its distance from the polar flow and leaves that from (12) as it is",
            expected="distances shrink 2 and 1 times",
            measured=f"{order['polar']:.2f} and {order['horizontal']:.2f} times, at most {largest['polar']:.2g} from the polar one",
            holds=abs(order["polar"] - 2) < ORDER and abs(order["horizontal"] - 1) < ORDER,
            corrected=True,
        ),
        Claim(
            "(12) lags behind the polar flow as it turns more slowly (rates 2 : 3), but not in wide networks, which start near q = 0",
            expected="> 1.02 times as long at the smallest width, 1 ± 0.02 at the largest",
            measured=pure,
            holds=polar[widths[0]] > 1.02 > polar[widths[-1]] > 0.98,
            corrected=True,
        ),
        Claim(
            "with two outputs, (11) and (12) end a rotation apart: they agree on qqᵀ, not on q; the polar flow agrees with (11) on q",
            expected="distance of q far above 0, of qqᵀ and of the polar flow's q about 0",
            measured=f"{two['horizontal'][0]:.2g}, {two['horizontal'][1]:.1g} and {two['polar'][0]:.1g}",
            holds=two["horizontal"][0] > 20 * two["polar"][0] and two["horizontal"][1] < 1e-3,
            corrected=True,
        ),
        Claim(
            f"η = {rows['step']:g} is stable if C is averaged, and not if C is the sum over {rows['samples']} samples",
            expected=f"η between the stable steps {summed:.2g} and {bound:.2g}",
            measured=f"{rows['step']:g}",
            holds=summed < rows["step"] < bound,
            corrected=True,
        ),
    ]


FIGURE = Figure(
    title="Fig. 3 of Esser et al. 2023, Representation Learning Dynamics",
    claim="The discretised flow (12) of the outputs stays close to gradient descent (11), and ends at the same loss and outputs.",
    sizes={"smoke": Size(widths=(10, 1000), inits=2, step=0.03, steps=300), "small": Size(), "paper": Size(inits=10)},
    compute=compute,
    plot=plot,
    claims=claims,
)
