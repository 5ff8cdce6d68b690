"""The spectrum watch: eigenvalues of held-out images over training."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from fullrank.evaluation.frozen import restore_modes
from fullrank.images import Preprocess
from fullrank.methods import Method
from fullrank.methods.precision import at_least_float32
from fullrank.spectrum import Accumulator, Spectrum
from fullrank.spectrum.moments import float64


@dataclass(frozen=True)
class Look:
    """One look at the held-out images."""

    spectra: dict[str, Spectrum]
    features: Float[Tensor, "n D_b"]
    """(n, D_b) representations in eval mode."""


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
    with restore_modes(method):
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
