"""Strong augmentation collapses one linear layer: its singular values against the augmentation amplitude k on 8 of 16 dimensions.

The paper names no threshold. It lies at k* = 2 Var: at 1 where the data's scatter Σ_ij(x_i − x_j)(x_i − x_j)ᵀ is N²I, as here, and at 1/N
where it is NI, as printed, so that every amplitude of the figure would be above it. The dashed curve is for augmentation of all directions.
"""

from dataclasses import dataclass
from itertools import islice
from statistics import linear_regression, mean

import torch
from torch import Tensor

from fullrank.dynamics.augmentation_strength import gaussian_equilibrium
from fullrank.dynamics.infonce import train_infonce
from fullrank.dynamics.infonce_alignment import svd
from fullrank.reproduce.directclr.toy import DIMENSIONS, batches, generator, normal
from fullrank.reproduce.draw import THEORY, subplots
from fullrank.reproduce.figure import Claim, Figure, Rows

AUGMENTED = 8
VARIANCE = 0.5  # so that Σ_ij(x_i − x_j)(x_i − x_j)ᵀ/N² = 2 Var = 1


@dataclass(frozen=True)
class Size:
    """How much is trained."""

    N: int
    """Samples of a batch."""
    steps: int
    learning_rate: float
    """Of the loss as a mean over the batch."""
    amplitudes: tuple[float, ...]
    """k, in ascending order."""


def second_moments(k: float, augmented: int) -> Tensor:
    """Of the shifts x′ − x: k on the last `augmented` dimensions."""
    return torch.cat([torch.zeros(DIMENSIONS - augmented), torch.full((augmented,), k)]).double()


def compute(size: Size, *, data: str | None, seed: int) -> Rows:
    def spectrum(k: float, augmented: int, *, variance: float = VARIANCE) -> list[float]:
        rng = generator(seed, 1)
        start = [normal(DIMENSIONS, DIMENSIONS, rng=rng) / DIMENSIONS**0.5]
        pairs = batches(size.N, second_moments(k, augmented), rng=rng, variance=variance)
        (W,) = train_infonce(start, pairs, learning_rate=size.learning_rate / size.N, steps=[size.steps])
        return svd(W[0]).S.tolist()

    def rate(k: float) -> float:
        """How fast small weights grow along the augmented dimensions."""
        steps, small = 100, 1e-3 * torch.eye(DIMENSIONS, dtype=torch.float64)
        pairs = batches(size.N, second_moments(k, AUGMENTED), rng=generator(seed, 2), variance=VARIANCE)
        (W,) = train_infonce([small], islice(pairs, steps), learning_rate=0.01 / size.N, steps=[steps])
        augmented = W[0][:, -AUGMENTED:]
        return mean((svd(augmented).S / 1e-3).log().tolist()) / (0.01 * steps)

    grid = torch.linspace(size.amplitudes[0], size.amplitudes[-1], 200, dtype=torch.float64)
    return {
        "N": size.N,
        "t": size.learning_rate / size.N * size.steps,
        "k": list(size.amplitudes),
        "block": [spectrum(k, AUGMENTED) for k in size.amplitudes],
        "all": [spectrum(k, DIMENSIONS) for k in size.amplitudes],
        "rates": [rate(k) for k in size.amplitudes],
        "printed": spectrum(size.amplitudes[0], AUGMENTED, variance=1 / (2 * size.N)),
        "theory": {"k": grid.tolist(), "w": gaussian_equilibrium(grid, variance=VARIANCE).tolist()},
    }


def plot(rows: Rows):
    from matplotlib import colormaps

    figure, ((spectra, values),) = subplots(1, 2, height=3.4)
    index = range(1, DIMENSIONS + 1)

    colors = colormaps["viridis"]([0.9 * i / (len(rows["k"]) - 1) for i in range(len(rows["k"]))])
    for k, spectrum, color in zip(rows["k"], rows["block"], colors, strict=True):
        spectra.semilogy(index, spectrum, ".-", color=color, label=f"k = {k:g}")
    spectra.set(
        xlabel="index of the singular value",
        ylabel="singular value of W",
        title=f"After training to t = {rows['t']:.3g} (learning rate × step)",
        ylim=(1e-6, None),
    )
    spectra.legend(loc="lower left", ncols=2)
    for name, label, count in (("block", "8 of 16 dimensions augmented (the paper's)", AUGMENTED), ("all", "all 16 augmented", DIMENSIONS)):
        lowest = [spectrum[-count:] for spectrum in rows[name]]
        (line,) = values.plot(rows["k"], [mean(s) for s in lowest], ".-", label=label)
        values.fill_between(rows["k"], [s[-1] for s in lowest], [s[0] for s in lowest], color=line.get_color(), alpha=0.2, linewidth=0)
    values.plot(rows["theory"]["k"], rows["theory"]["w"], **THEORY, label="equilibrium of a Gaussian, all augmented, N → ∞")
    values.axvline(1, color="gray", linewidth=0.8, linestyle=":")
    values.text(1.03, 1.0, "k* = 2 Var = 1", color="gray")
    values.set(xlabel="augmentation amplitude k", ylabel="singular values of augmented directions", title="Mean and range of the lowest")
    values.legend()
    return figure


def claims(rows: Rows) -> list[Claim]:
    def lowest(spectrum: list[float]) -> float:
        """The largest of the 8 that the augmentation may take, in parts of the largest of all."""
        return spectrum[-AUGMENTED] / spectrum[0]

    slope, intercept = linear_regression(rows["k"], rows["rates"])
    threshold = -intercept / slope
    strong, weak, printed = rows["block"][-1], rows["block"][0], rows["printed"]
    kept = [s for k, s in zip(rows["k"], rows["block"], strict=True) if k < 1]
    lost = [s for k, s in zip(rows["k"], rows["block"], strict=True) if k > 1.4]
    return [
        Claim(
            f"strong augmentation (k = {rows['k'][-1]:g}) makes the 8 singular values of the augmented block vanish",
            expected="below 0.01 of the largest",
            measured=f"{lowest(strong):.2g}",
            holds=lowest(strong) < 0.01,
        ),
        Claim(
            f"weak augmentation (k = {rows['k'][0]:g}) leaves all 16",
            expected="the smallest above 0.1 of the largest",
            measured=f"{weak[-1] / weak[0]:.2g}",
            holds=weak[-1] / weak[0] > 0.1,
        ),
        Claim(
            f"with the data's scatter equal to NI, as printed, k = {rows['k'][0]:g} leaves all 16 as well",
            expected="the smallest above 0.1 of the largest",
            measured=f"{printed[-1] / printed[0]:.2g}, the threshold being 1/(N − 1) = {1 / (rows['N'] - 1):.2g}",
            holds=printed[-1] / printed[0] > 0.1,
        ),
        Claim(
            "small weights grow at the rate k* − k, k* = 2 Var, in the time of the mean loss: they shrink above k*",
            expected="k* = 1 ± 0.1, slope −1 ± 0.1",
            measured=f"k* = {threshold:.3f}, slope {slope:.3f}",
            holds=abs(threshold - 1) < 0.1 and abs(slope + 1) < 0.1,
            corrected=True,
        ),
        Claim(
            "after training, all singular values are left below k*, and the 8 are gone well above it",
            expected="all > 0.05 for k < 1, the 8 < 0.05 for k > 1.4",
            measured=f"at least {min(s[-1] for s in kept):.2g}, at most {max(s[-AUGMENTED] for s in lost):.2g}",
            holds=min(s[-1] for s in kept) > 0.05 and max(s[-AUGMENTED] for s in lost) < 0.05,
            corrected=True,
        ),
    ]


FIGURE = Figure(
    title="Fig. 3 of Jing et al. 2022, DirectCLR",
    claim="Strong augmentation makes singular values of a linear layer vanish.",
    sizes={
        "smoke": Size(N=64, steps=300, learning_rate=0.3, amplitudes=(0.25, 0.75, 2.0)),
        "small": Size(N=128, steps=3000, learning_rate=0.1, amplitudes=(0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0)),
        "paper": Size(N=128, steps=10_000, learning_rate=0.1, amplitudes=(0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0)),
    },
    compute=compute,
    plot=plot,
    claims=claims,
)
