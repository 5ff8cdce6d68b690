"""Every random number of a batch of views, drawn at once: uniform numbers in named columns, a function of (seed, step) alone."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float64
from torch import Tensor

TRIES = 10  # torchvision's RandomResizedCrop gives up after ten boxes


def columns(**widths: int) -> dict[str, slice]:
    """Lay named columns side by side.

    >>> columns(box=4, angle=1)["angle"]
    slice(4, 5, None)
    """
    starts = [0]
    for width in widths.values():
        starts.append(starts[-1] + width)
    return {name: slice(start, start + width) for (name, width), start in zip(widths.items(), starts, strict=False)}


SINGLE = (
    *("crop", "top", "left", "affine", "angle", "shift_x", "shift_y", "zoom", "shear_x", "shear_y"),
    *("turn", "turns", "flip", "vertical_flip", "jitter", "order", "brightness", "contrast", "saturation", "hue"),
    *("grayscale", "blur", "sigma", "solarize", "noise", "key"),
)
UNIFORMS = columns(area=TRIES, ratio=TRIES, **dict.fromkeys(SINGLE, 1))
WIDTH = 2 * TRIES + len(SINGLE)


@dataclass(frozen=True)
class AugmentationParams:
    """Uniform numbers in [0, 1) for `n` samples with `V` views each; `first` is the first sample's place in the whole batch."""

    uniforms: Float64[Tensor, "V n P"]
    seed: int
    step: int
    first: int = 0

    def __len__(self) -> int:
        return self.uniforms.shape[1]

    def __getitem__(self, name: str) -> Tensor:
        """The column `name`: (V, n), or (V, n, width) where it is wider than one."""
        return named(self.uniforms, UNIFORMS, name)

    def rows(self, samples: slice) -> "AugmentationParams":
        return replace(self, uniforms=self.uniforms[:, samples], first=self.first + samples.indices(len(self))[0])

    def views(self, index: list[int]) -> "AugmentationParams":
        return replace(self, uniforms=self.uniforms[index])


def named(table: Tensor, layout: Mapping[str, slice], name: str) -> Tensor:
    """The column of that name; one column loses its axis.

    >>> named(torch.zeros(2, 5, WIDTH), UNIFORMS, "angle").shape
    torch.Size([2, 5])
    """
    where = layout[name]
    return table[..., where.start] if where.stop - where.start == 1 else table[..., where]


def draw(views: int, samples: int, *, seed: int, step: int) -> AugmentationParams:
    """Draw for the whole batch; each process then takes its rows, so that the number of processes changes nothing.

    >>> a, b = draw(2, 8, seed=0, step=1), draw(2, 8, seed=0, step=1)
    >>> bool((a.uniforms == b.uniforms).all())
    True
    """
    generator = torch.Generator().manual_seed(mix(seed, step))
    # The sample is the slow axis, so that a batch that is cut short keeps the numbers of the samples that are left.
    uniforms = torch.rand(samples, views, WIDTH, generator=generator, dtype=torch.float64)
    return AugmentationParams(uniforms=uniforms.transpose(0, 1), seed=seed, step=step)


def mix(*words: int) -> int:
    """Scramble integers into 32 bits, which is all that torch's CPU generator takes of a seed.

    h ← fmix32(h ⊕ word) for each word, with the finaliser of MurmurHash3 (Appleby 2011). It is one-to-one in the last
    word: no two steps of a run (below 2³²) share their numbers.

    >>> len({mix(7, step) for step in range(1000)})
    1000
    """
    h = 0x9E3779B9
    for word in words:
        h ^= word & 0xFFFFFFFF
        h = (h ^ h >> 16) * 0x85EBCA6B & 0xFFFFFFFF
        h = (h ^ h >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
        h ^= h >> 16
    return h
