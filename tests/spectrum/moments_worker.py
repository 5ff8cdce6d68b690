"""The spectrum of moments that several processes merge, each with a part of the embeddings of its own size."""

import torch

from fullrank.distributed import rank
from fullrank.spectrum import Moments, Spectrum, StreamingSpectrum

CUTS = (0, 41, 47, 150, 200)


def embeddings():
    rng = torch.Generator().manual_seed(0)
    scales = torch.logspace(0, -4, 12, dtype=torch.float64)
    return torch.randn(200, 12, generator=rng, dtype=torch.float64) * scales + 30


def main(fabric):
    part = embeddings()[CUTS[rank()] : CUTS[rank() + 1]]
    moments = Moments.from_batches(part.split(7)).all_reduce()
    spectrum = Spectrum.from_moments(moments)
    values = {"eigenvalues": spectrum.eigenvalues, "singular_values": spectrum.singular_values}
    streaming = StreamingSpectrum()
    streaming.update(part)
    values["streamed"] = streaming.compute().eigenvalues
    return values | {"n": spectrum.n, "rounding": moments.rounding}
