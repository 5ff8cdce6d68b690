"""Fig. 3: strong augmentation collapses one linear layer: its singular values against the augmentation strength k on 8
of 16 dimensions.

The paper names no threshold. It is k* = 2 Var: 1 if the data's scatter Σ_ij(x_i − x_j)(x_i − x_j)ᵀ is N²I, as here, and
1/N if it is NI, as printed; then every strength in the figure would be above it. The dashed curve is for augmentation
of all directions.
"""

from dataclasses import dataclass
from itertools import islice
from statistics import linear_regression, mean

import torch
from torch import Tensor

from fullrank_papers.figures.directclr.toy_models import DIMENSIONS, ToySize, sample_batches, seeded_generator
from fullrank_papers.figures.figure import MplFigure, Rows, Verdicts, verdict
from fullrank_papers.figures.numerics import normal
from fullrank_papers.plot_style import THEORY_LINE, color_scale, subplots
from fullrank_papers.theory.augmentation_strength import gaussian_equilibrium
from fullrank_papers.theory.infonce import train_infonce

AUGMENTED = 8
VARIANCE = 0.5  # so that Σ_ij(x_i − x_j)(x_i − x_j)ᵀ/N² = 2 Var = 1


@dataclass(frozen=True)
class Size(ToySize):
    strengths: tuple[float, ...]  # augmentation strengths k, in ascending order


def second_moments(k: float, augmented: int) -> Tensor:
    """Return the second moments of the shifts x′ − x: k on the last `augmented` dimensions, else 0."""
    return torch.cat([torch.zeros(DIMENSIONS - augmented), torch.full((augmented,), k)]).double()


def compute(size: Size, *, data: str | None, seed: int) -> Rows:
    def train_spectrum(k: float, augmented: int, *, variance: float = VARIANCE) -> list[float]:
        rng = seeded_generator(seed, 1)
        start = [normal(DIMENSIONS, DIMENSIONS, rng=rng) / DIMENSIONS**0.5]
        pairs = sample_batches(size.N, second_moments(k, augmented), rng=rng, variance=variance)
        (W,) = train_infonce(start, pairs, learning_rate=size.rate, steps=[size.steps])
        return torch.linalg.svdvals(W[0]).tolist()

    def growth_rate(k: float) -> float:
        """Return the rate at which small weights grow along the augmented dimensions."""
        steps, small = 100, 1e-3 * torch.eye(DIMENSIONS, dtype=torch.float64)
        pairs = sample_batches(size.N, second_moments(k, AUGMENTED), rng=seeded_generator(seed, 2), variance=VARIANCE)
        (W,) = train_infonce([small], islice(pairs, steps), learning_rate=0.01 / size.N, steps=[steps])
        augmented = W[0][:, -AUGMENTED:]
        return mean((torch.linalg.svdvals(augmented) / 1e-3).log().tolist()) / (0.01 * steps)

    grid = torch.linspace(size.strengths[0], size.strengths[-1], 200, dtype=torch.float64)
    return {
        "N": size.N,
        "t": size.end,
        "k": list(size.strengths),
        "block": [train_spectrum(k, AUGMENTED) for k in size.strengths],
        "all": [train_spectrum(k, DIMENSIONS) for k in size.strengths],
        "rates": [growth_rate(k) for k in size.strengths],
        "printed": train_spectrum(size.strengths[0], AUGMENTED, variance=1 / (2 * size.N)),
        "theory": {"k": grid.tolist(), "w": gaussian_equilibrium(grid, variance=VARIANCE).tolist()},
    }


def plot(rows: Rows) -> MplFigure:
    figure, ((spectra, values),) = subplots(1, 2, height=3.4)
    index = range(1, DIMENSIONS + 1)

    for k, spectrum, color in zip(rows["k"], rows["block"], color_scale(len(rows["k"])), strict=True):
        spectra.semilogy(index, spectrum, ".-", color=color, label=f"k = {k:g}")
    spectra.set(
        xlabel="index of the singular value",
        ylabel="singular value of W",
        title=f"After training to t = {rows['t']:.3g} (learning rate × step)",
        ylim=(1e-6, None),
    )
    spectra.legend(loc="lower left", ncols=2)
    for name, label, count in (
        ("block", "8 of 16 dimensions augmented (paper)", AUGMENTED),
        ("all", "all 16 augmented", DIMENSIONS),
    ):
        lowest = [spectrum[-count:] for spectrum in rows[name]]
        (line,) = values.plot(rows["k"], [mean(s) for s in lowest], ".-", label=label)
        values.fill_between(
            rows["k"], [s[-1] for s in lowest], [s[0] for s in lowest], color=line.get_color(), alpha=0.2, linewidth=0
        )
    values.plot(
        rows["theory"]["k"], rows["theory"]["w"], **THEORY_LINE, label="equilibrium of a Gaussian, all augmented, N → ∞"
    )
    values.axvline(1, color="gray", linewidth=0.8, linestyle=":")
    values.text(1.03, 1.0, "k* = 2 Var = 1", color="gray")
    values.set(
        xlabel="augmentation strength k",
        ylabel="singular values of augmented directions",
        title="Mean and range of the lowest",
    )
    values.legend()
    return figure


def evaluate_claims(rows: Rows) -> Verdicts:
    slope, intercept = linear_regression(rows["k"], rows["rates"])
    threshold = -intercept / slope
    strong = rows["block"][-1][-AUGMENTED] / rows["block"][-1][0]
    weak, printed = (spectrum[-1] / spectrum[0] for spectrum in (rows["block"][0], rows["printed"]))
    below = min(s[-1] for k, s in zip(rows["k"], rows["block"], strict=True) if k < 1)
    above = max(s[-AUGMENTED] for k, s in zip(rows["k"], rows["block"], strict=True) if k > 1.4)
    return {
        "strong": verdict(f"{strong:.2g}", strong < 0.01, k=rows["k"][-1]),
        "weak": verdict(f"{weak:.2g}", weak > 0.1),
        "printed": verdict(f"{printed:.2g}; the threshold is 1/(N − 1) = {1 / (rows['N'] - 1):.2g}", printed > 0.1),
        "rate": verdict(f"k* = {threshold:.3f}, slope {slope:.3f}", abs(threshold - 1) < 0.1 and abs(slope + 1) < 0.1),
        "after": verdict(f"at least {below:.2g}, at most {above:.2g}", below > 0.05 and above < 0.05),
    }


STRENGTHS = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0)
SIZES = {
    "smoke": Size(N=64, steps=300, learning_rate=0.3, strengths=(0.25, 0.75, 2.0)),
    "small": Size(N=128, steps=3000, learning_rate=0.1, strengths=STRENGTHS),
    "paper": Size(N=128, steps=10_000, learning_rate=0.1, strengths=STRENGTHS),
}
