"""Fig. 3: projected gradient descent (11) and the discretised flow (12) of the outputs: loss and outputs, on
half-moons.

The paper notes that (12) is slightly slower, and does not say why. Gradient steps that are projected back follow the
polar flow, and its outputs rotate 3/2 times as fast as those of (12). Narrow networks, which start with long outputs,
show this; wide ones do not. C is averaged over the samples here, because with the sum the paper's learning rate would
be unstable.
"""

from dataclasses import dataclass
from itertools import accumulate, repeat
from statistics import median

import torch
from jaxtyping import Float
from scipy.stats import quantile_test
from torch import Tensor

from fullrank_papers.figures.dynamics.fig1 import half_moons
from fullrank_papers.figures.figure import MplFigure, Rows, Verdicts, verdict
from fullrank_papers.figures.numerics import spread
from fullrank_papers.plot_style import THEORY_LINE, add_theory_legend, plot_runs, subplots
from fullrank_papers.theory.contrastive_pairs import eigenbasis, pair_matrix
from fullrank_papers.theory.trace import euler_outputs, orthonormal_weights, projected_gradient_step, stability_limit

POINTS = 60  # stored points per curve
DRAWN = 5  # starts per width whose curves are stored
ORDER_TOLERANCE = 0.3  # for a ratio of two errors
FLOWS = ("horizontal", "polar")


@dataclass(frozen=True)
class Size:
    """Data and training."""

    widths: tuple[int, ...] = (10, 100, 1000)  # hidden units h
    starts: int = 40  # random initialisations per width
    samples: int = 200  # number of half-moon samples
    learning_rate: float = 0.01  # η, for C averaged over the samples
    steps: int = 1200  # number of steps of (11) and of (12)


def convergence_step(loss: Float[Tensor, " T"], end: Tensor) -> float:
    """Return the (interpolated) step at which the loss has covered 99 % of the way from its start to its minimum."""
    target = loss[0] + 0.99 * (end - loss[0])
    k = int((loss <= target).nonzero()[0])
    return k - ((target - loss[k]) / (loss[k - 1] - loss[k])).item()


def distance(p: Float[Tensor, "T d z"], q: Float[Tensor, "T d z"]) -> Float[Tensor, " T"]:
    """Return the Frobenius norm of p − q at each time."""
    return (p - q).flatten(1).norm(dim=1)


def compute(size: Size, *, data: str | None = None, seed: int = 0) -> Rows:
    C = pair_matrix(*half_moons(size.samples, seed=seed), average=True)
    eigenvalues, V = eigenbasis(C)
    stored = (size.steps * torch.linspace(0, 1, POINTS) ** 1.7).round().long().unique()  # more points at the start

    def train_paths(hidden: int, outputs: int, start: int, *, finer: int = 1) -> dict[str, Tensor]:
        """Return the outputs by (11), and by (12) for two flows, from the same start."""
        rng = torch.Generator().manual_seed(1000 * seed + start)
        weights = orthonormal_weights(2, hidden=hidden, outputs=outputs, generator=rng)
        rate, steps = size.learning_rate / finer, size.steps * finer
        path = accumulate(
            repeat(C, steps), lambda W, C: projected_gradient_step(*W, C, learning_rate=rate), initial=weights
        )
        q = torch.stack([V.mT @ W1.mT @ W2 for W1, W2 in path])
        return {"descent": q} | {
            f: euler_outputs(q[0], eigenvalues, learning_rate=rate, steps=steps, flow=f) for f in FLOWS
        }

    runs = []
    for width in size.widths:
        for start in range(size.starts):
            q = train_paths(width, 1, start)
            loss = {name: (eigenvalues[:, None] * path.square()).sum((1, 2)) for name, path in q.items()}  # tr(qᵀΛq)
            gap = {flow: distance(q[flow], q["descent"]) for flow in FLOWS}
            run = {
                "width": width,
                "convergence_step": {name: convergence_step(values, eigenvalues[0]) for name, values in loss.items()},
                "excess": {name: (values[-1] - eigenvalues[0]).item() for name, values in loss.items()},
                "largest_gap": {flow: values.max().item() for flow, values in gap.items()},
                "last_gap": {flow: values[-1].item() for flow, values in gap.items()},
            }
            if start < DRAWN:
                run["curves"] = {
                    "loss": {name: loss[name][stored].tolist() for name in ("descent", "horizontal")},
                    "q": {name: q[name][stored, :, 0].tolist() for name in ("descent", "horizontal")},
                    "gap": {flow: values[stored].tolist() for flow, values in gap.items()},
                }
            runs.append(run)
    coarse, fine = (train_paths(size.widths[0], 1, 0, finer=finer) for finer in (1, 2))
    two = train_paths(size.widths[0], 2, 0)
    gram = {name: path @ path.mT for name, path in two.items()}
    return {
        "eigenvalues": eigenvalues.tolist(),
        "learning_rate": size.learning_rate,
        "bounds": [stability_limit(scale * eigenvalues, outputs=1) for scale in (1, size.samples)],
        "samples": size.samples,
        "t": (stored * size.learning_rate).tolist(),
        "runs": runs,
        "order": {
            flow: (distance(coarse[flow], coarse["descent"]).max() / distance(fine[flow], fine["descent"]).max()).item()
            for flow in FLOWS
        },
        "two_outputs": {flow: [distance(p[flow], p["descent"])[-1].item() for p in (two, gram)] for flow in FLOWS},
    }


def plot(rows: Rows) -> MplFigure:
    figure, axes = subplots(1, 3, width=10.0, height=3.4)
    losses, outputs, gaps = axes[0]
    widths = sorted({run["width"] for run in rows["runs"]})
    for k, width in enumerate(widths):
        runs = [run["curves"] for run in rows["runs"] if run["width"] == width and "curves" in run]
        descent = [run["loss"]["descent"] for run in runs[:2]]
        plot_runs(losses, rows["t"], descent, color=f"C{k}", label=f"(11), h = {width}")
        plot_runs(losses, rows["t"], [run["loss"]["horizontal"] for run in runs[:2]], **THEORY_LINE)
        for run in runs:
            outputs.plot(*zip(*run["q"]["descent"], strict=True), color=f"C{k}")
            outputs.plot(*zip(*run["q"]["horizontal"], strict=True), **THEORY_LINE)
            outputs.plot(*run["q"]["descent"][0], "o", color=f"C{k}", markersize=3)
    outputs.plot([-1, 1], [0, 0], "k*", markersize=8, linestyle="none", zorder=4)
    add_theory_legend(losses, "(12)")
    losses.set(xlabel="t = learning rate × step", ylabel="loss", title="Loss", xlim=(0, 6))
    outputs.set(xlabel="q₁, along the lowest eigenvector", ylabel="q₂", title="Outputs, from o to ∗", aspect="equal")
    outputs.set(xlim=(-1.1, 1.1), ylim=(-1.1, 1.1))
    drawn = (run for run in rows["runs"] if run["width"] == widths[0] and "curves" in run)
    narrow = max(drawn, key=lambda run: run["largest_gap"]["horizontal"])
    for flow, name in (("horizontal", "(12)"), ("polar", "(12) of the polar flow")):
        gaps.plot(rows["t"], narrow["curves"]["gap"][flow], label=name)
    gaps.set(xlabel="t = learning rate × step", ylabel="|q − q of (11)|", xlim=(0, 6))
    gaps.set_title(f"Distance from (11), one start, h = {widths[0]}")
    gaps.legend()
    return figure


def evaluate_claims(rows: Rows) -> Verdicts:
    runs, lowest, eta = rows["runs"], rows["eigenvalues"][0], rows["learning_rate"]
    widths = sorted({run["width"] for run in runs})
    excess = max(run["excess"][name] for run in runs for name in ("descent", "horizontal"))
    largest = {flow: max(run["largest_gap"][flow] for run in runs) for flow in FLOWS}
    typical = median(run["largest_gap"]["horizontal"] for run in runs)
    last = max(run["last_gap"]["horizontal"] for run in runs)

    def time_ratios(other: str) -> tuple[dict[int, list[float]], str]:
        """Return, by width, the time that (12) takes divided by that of the other, for each start; and their text."""
        steps = {w: [run["convergence_step"] for run in runs if run["width"] == w] for w in widths}
        found = {w: [step["horizontal"] / step[other] for step in of_width] for w, of_width in steps.items()}
        spreads = ", ".join(f"{spread(ratios, 3)} at h = {w}" for w, ratios in found.items())
        return found, f"medians with 5 % to 95 % of the starts: {spreads}, from {len(found[widths[0]])} starts each"

    (to_descent, descent_text), (to_polar, polar_text) = time_ratios("descent"), time_ratios("polar")
    medians = {w: median(ratios) for w, ratios in to_polar.items()}
    intervals = [quantile_test(ratios).confidence_interval() for ratios in to_descent.values()]
    lows, highs = zip(*intervals, strict=True)
    slower = True if min(lows) > 1 else False if min(highs) <= 1 else None
    order, two, (bound, bound_of_sum) = rows["order"], rows["two_outputs"], rows["bounds"]
    return {
        "loss": verdict(f"both within {excess:.1g} of λ₁ = {lowest:.3f}, from {len(runs)} starts", excess < 1e-3),
        "slower": verdict(descent_text, slower),
        "close": verdict(f"{typical:.2g}, at most {largest['horizontal']:.2g}", typical < 0.1),
        "end": verdict(f"{last:.1g} at t = {rows['t'][-1]:g}", last < 1e-3),
        "polar": verdict(
            "{polar:.2f} and {horizontal:.2f} times, ".format(**order)
            + f"at most {largest['polar']:.2g} from the polar one",
            abs(order["polar"] - 2) < ORDER_TOLERANCE and abs(order["horizontal"] - 1) < ORDER_TOLERANCE,
        ),
        "rotation": verdict(polar_text, medians[widths[0]] > 1.02 > medians[widths[-1]] > 0.98),
        "two_outputs": verdict(
            f"{two['horizontal'][0]:.2g}, {two['horizontal'][1]:.1g} and {two['polar'][0]:.1g}",
            two["horizontal"][0] > 20 * two["polar"][0] and two["horizontal"][1] < 1e-3,
        ),
        "stable": verdict(f"{eta:g}", bound_of_sum < eta < bound),
    }


SIZES = {
    "smoke": Size(widths=(10, 1000), starts=8, learning_rate=0.03, steps=300),
    "small": Size(),
    "paper": Size(starts=100),
}
