"""The spectrum watch: eigenvalues of held-out images over training."""

from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from fullrank.evaluation.frozen import keep_modes
from fullrank.images import Preprocess
from fullrank.methods import Method
from fullrank.methods.precision import at_least_float32
from fullrank.spectrum import Accumulator, Spectrum
from fullrank.spectrum.moments import float64


@dataclass(frozen=True)
class Measures:
    """What one spectrum says, in numbers."""

    effective_rank: float
    condition_number: float | None
    entropy: float
    collapsed_dimensions: int
    dimensions: int
    samples: int
    relative_variance: float | None
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
            collapsed_dimensions=spectrum.collapsed_dimensions(),
            dimensions=spectrum.D,
            samples=spectrum.n,
            relative_variance=None if square is None else spectrum.eigenvalues.sum().item() / square if square > 0 else 0.0,
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

    Args:
        method: a `Method` with `backbone` and `projector`.
        pixels: uint8 (n, C, S, S).
        preprocess: how pixels become the network's input.
        batch: images passed at a time.
    """
    device = next(method.parameters()).device
    spectra = {"backbone": Accumulator(), "projector": Accumulator()}
    features = []
    with keep_modes(method):
        method.eval()
        for chunk in pixels.split(batch):
            R = method.backbone(preprocess.normalize(chunk.to(device)))
            features.append(at_least_float32(R))
            spectra["backbone"].update(R)
            spectra["projector"].update(method.projector(R))
    return Look({name: accumulator.spectrum() for name, accumulator in spectra.items()}, torch.cat(features))


def intraclass_correlation(R: Float[Tensor, "V n D"]) -> float | None:
    """Return the share of their variance that the views of one image have in common: 1 if they are equal, 0 if they are strangers.

    ρ = Σ_i Σ_{v≠w} ⟨r_vi, r_wi⟩ / ((V − 1) Σ_i Σ_v ‖r_vi‖²), centred over all: the intraclass correlation (Fisher 1925, § 38), by
    Σ_{v≠w} ⟨r_v, r_w⟩ = ‖Σ_v r_v‖² − Σ_v ‖r_v‖². Of n images, strangers give ρ = 0 ± 1/√n at most.

    Args:
        R: (V, n, D) representations of a batch.

    Returns:
        None for a single view, or where nothing varies.

    >>> R = torch.randn(1, 8, 3)
    >>> round(intraclass_correlation(torch.cat([R, R])), 6), intraclass_correlation(R)
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
