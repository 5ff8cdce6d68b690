"""Merge the moments of several processes with unequal parts of the embeddings, and save the spectrum. Arguments: RANK
WORLD FOLDER."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist

from fullrank.spectrum import Moments, Spectrum

CUTS = (0, 41, 47, 150, 200)


def embeddings():
    rng = torch.Generator().manual_seed(0)
    return (
        torch.randn(200, 12, generator=rng, dtype=torch.float64) * torch.logspace(0, -4, 12, dtype=torch.float64) + 30
    )


if __name__ == "__main__":
    rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world)
    part = embeddings()[CUTS[rank] : CUTS[rank + 1]]
    moments = Moments.from_batches(part.split(7)).all_reduce()
    spectrum = Spectrum.from_moments(moments)
    result = {
        "n": spectrum.n,
        "eigenvalues": spectrum.eigenvalues,
        "singular_values": spectrum.singular_values,
        "rounding": moments.rounding,
    }
    torch.save(result, folder / f"{rank}.pt")
    dist.destroy_process_group()
