"""The spectrum watch: eigenvalues of held-out images over training, at a cost that is planned before the first step."""

import math
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from fullrank.images import Preprocess
from fullrank.methods import Method
from fullrank.methods.precision import at_least_float32
from fullrank.spectrum import Moments, Spectrum
from fullrank.spectrum.moments import float64

# Share of a run's work, counted in forward passes, that the watch may cost. Measured on CIFAR-10 it costs a sixth more than that count
# (2.4 % of the time where the count says 2.1 %: results/cifar10-small.json), so that 1.5 % stays under 2 % of the time.
SHARE = 0.015
AT_LEAST = 20  # how many spectra there are whatever the cost
AT_MOST = 100  # more than a slider can use


def plan_interval(*, steps: int, batch: int, views: int, samples: int) -> int:
    """Return how many steps lie between two spectra.

    One spectrum is a forward pass over `samples` images; one step is a forward and a backward pass (twice a forward) over
    `views` × `batch`. So a spectrum costs c = samples / (3 · views · batch) steps, and 1.5 % of the run buys ⌊0.015 · steps / c⌋.
    With one before the first step and one after the last, an interval of i steps makes 1 + ⌈steps / i⌉ of them.

    Args:
        steps: of the run.
        batch: images of a step.
        views: of each image.
        samples: held-out images of a spectrum.

    Returns:
        The smallest interval whose spectra fit into 1.5 % and are at most 100; where not even 20 fit, the largest that makes 20.

    >>> plan_interval(steps=10_000, batch=256, views=2, samples=5120)
    228
    """
    affordable = SHARE * steps * 3 * views * batch / samples
    if affordable < AT_LEAST:
        return max(steps // (AT_LEAST - 1), 1)
    return math.ceil(steps / (min(int(affordable), AT_MOST) - 1))


@dataclass(frozen=True)
class Measures:
    """What one spectrum says, in numbers."""

    effective_rank: float
    condition_number: float | None
    entropy: float
    dead_dimensions: int
    dimensions: int
    samples: int
    spread: float | None
    """Share of the mean square Σ‖z‖²/n that is not the mean's: 0 where all embeddings are equal; None where the mean is unknown."""

    @classmethod
    def of(cls, spectrum: Spectrum) -> "Measures":
        """Take the measures of a spectrum; a condition number that is not finite is None, as JSON has no infinity."""
        condition = spectrum.condition_number()
        square = None if spectrum.about_origin is None else spectrum.about_origin.trace().item()
        return cls(
            effective_rank=spectrum.effective_rank(),
            condition_number=condition if np.isfinite(condition) else None,
            entropy=spectrum.entropy(),
            dead_dimensions=spectrum.dead_dimensions(),
            dimensions=spectrum.D,
            samples=spectrum.n,
            spread=None if square is None else spectrum.eigenvalues.sum().item() / square if square > 0 else 0.0,
        )


@dataclass(frozen=True)
class Look:
    """One look at the held-out images."""

    spectra: dict[str, Spectrum]
    features: Float[Tensor, "n D_b"]
    """(n, D_b) representations in eval mode."""

    def measures(self) -> dict[str, dict[str, float | int | None]]:
        """Return the measures of each spectrum, as a row of metrics.jsonl holds them."""
        return {name: asdict(Measures.of(spectrum)) for name, spectrum in self.spectra.items()}


@torch.no_grad()
def look(method: Method, pixels: UInt8[Tensor, "n C S S"], preprocess: Preprocess, *, batch: int = 512) -> Look:
    """Measure backbone and projector on held-out images, in eval mode, streamed; the method is left as it was found.

    Where the images are fewer than the dimensions, embeddings are kept for their Gram matrix: for 359 of 2048 it takes a 27th of the time.

    Args:
        method: a `Method` with `backbone` and `projector`.
        pixels: uint8 (n, C, S, S).
        preprocess: how pixels become the network's input.
        batch: images passed at a time.
    """
    device = next(method.parameters()).device
    modes = {module: module.training for module in method.modules()}
    method.eval()
    moments: dict[str, Moments] = {}
    kept: dict[str, list[Tensor]] = {}
    features = []
    for chunk in pixels.split(batch):
        R = method.backbone(preprocess.normalize(chunk.to(device)))
        features.append(at_least_float32(R))
        for name, Z in (("backbone", R), ("projector", method.projector(R))):
            if len(pixels) < Z.shape[1]:
                kept.setdefault(name, []).append(Z)
            else:
                moments[name] = moments[name].update(Z) if name in moments else Moments.from_embeddings(Z)
    for module, mode in modes.items():
        module.training = mode
    spectra = {name: Spectrum.from_moments(m) for name, m in moments.items()}
    spectra |= {name: Spectrum.from_embeddings(torch.cat(parts)) for name, parts in kept.items()}
    return Look(spectra, torch.cat(features))


def agreement(R: Float[Tensor, "V n D"]) -> float | None:
    """Return the share of their variance that the views of one image have in common: 1 if they are equal, 0 if they are strangers.

    ρ = Σ_i Σ_{v≠w} ⟨r_vi, r_wi⟩ / ((V − 1) Σ_i Σ_v ‖r_vi‖²), centred over all: the intraclass correlation (Fisher 1925, § 38), by
    Σ_{v≠w} ⟨r_v, r_w⟩ = ‖Σ_v r_v‖² − Σ_v ‖r_v‖². Of n images, strangers give ρ = 0 ± 1/√n at most.

    Args:
        R: (V, n, D) representations of a batch.

    Returns:
        None for a single view, or where nothing varies.

    >>> R = torch.randn(1, 8, 3)
    >>> round(agreement(torch.cat([R, R])), 6), agreement(R)
    (1.0, None)
    """
    A = float64(R)
    A = A - A.mean((0, 1))
    V, square = len(A), A.square().sum()
    return None if V < 2 or not square > 0 else ((A.sum(0).square().sum() / square - 1) / (V - 1)).item()


class SpectrumFile:
    """`spectrum.npz`, rewritten whole at each look, so that a reader never finds half of one.

    Args:
        path: the file.
        after: on resume, spectra of later steps are dropped.
        before: what the file held.
    """

    def __init__(self, path: Path, *, after: int = 0, before: dict[str, np.ndarray] | None = None) -> None:
        self._path = path
        self._rows: list[dict[str, np.ndarray]] = []
        if before:
            self._rows = [{name: values[t] for name, values in before.items()} for t in np.flatnonzero(before["steps"] <= after)]

    def append(self, step: int, spectra: dict[str, Spectrum]) -> None:
        """Add the eigenvalues of one look."""
        row = {"steps": np.array(step), "samples": np.array(min(s.n for s in spectra.values()))}
        row |= {name: np.asarray(s.eigenvalues.cpu(), dtype=np.float32) for name, s in spectra.items()}
        self._rows.append(row)
        draft = self._path.with_name(".spectrum.draft.npz")
        np.savez(draft, **{name: np.stack([row[name] for row in self._rows]) for name in row})  # pyright: ignore[reportArgumentType]
        draft.replace(self._path)
