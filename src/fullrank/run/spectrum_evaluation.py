"""Evaluate the spectra of backbone and projector on held-out images, and the correlation of the views of an image."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Real
from torch import Tensor

from fullrank.models.features import restore_modes
from fullrank.evaluation.spectrum import StreamingEncoderSpectrum
from fullrank.images import Preprocess
from fullrank.methods import Method, at_least_float32
from fullrank.spectrum import Spectrum, intraclass_correlation
from fullrank.spectrum.moments import to_float64


@dataclass(frozen=True)
class SpectrumEvaluation:
    """The result of one spectrum evaluation."""

    spectra: dict[str, Spectrum]
    """The spectra of "backbone" and "projector"."""
    features: Float[Tensor, "n D_b"]
    """The representations of the images, for the online probe."""


@torch.no_grad()
def evaluate_spectrum(
    method: Method, pixels: Real[Tensor, "n C S S"], preprocess: Preprocess, *, batch_size: int = 512
) -> SpectrumEvaluation:
    """Return the spectra of backbone and projector in eval mode; the method is unchanged afterwards.

    Args:
        method: a `Method` with `backbone` and `projector`.
        pixels: uint8 or floats in [0, 1], (n, C, S, S).
        preprocess: turns pixels into the input of the backbone.
        batch_size: number of images per forward pass.
    """
    device = next(method.parameters()).device
    spectra = StreamingEncoderSpectrum(method.projector)
    features = []
    with restore_modes(method):
        method.eval()
        for chunk in pixels.split(batch_size):
            R = method.backbone(preprocess.normalize(chunk.to(device)))
            features.append(at_least_float32(R))
            spectra.update(R)
    return SpectrumEvaluation(spectra.compute(), torch.cat(features))


def variance_within_views(X: Float[Tensor, "V n D"]) -> float:
    """Return the share of the mean square of X that is variance between the images of a view: 0 if all images have the
    same output.

    Σ_v Σ_i ‖x_vi − mean_v‖² / Σ_v Σ_i ‖x_vi‖², and 0 if X is zero.

    >>> variance_within_views(torch.randn(2, 1, 3).expand(2, 8, 3)) < 1e-14, variance_within_views(torch.zeros(2, 8, 3))
    (True, 0.0)
    """
    A = to_float64(X)
    square = A.square().sum()
    return ((A - A.mean(1, keepdim=True)).square().sum() / square).item() if square > 0 else 0.0
