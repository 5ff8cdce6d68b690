"""The spectrum of embeddings: streaming moments, the eigenvalues of their covariance, and the numbers that sum them up."""

from fullrank.spectrum.moments import Moments
from fullrank.spectrum.spectrum import Spectrum

__all__ = ["Moments", "Spectrum"]
