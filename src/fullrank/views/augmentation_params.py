"""The random numbers of a batch of views: uniform numbers in named columns, a function of (seed, step) alone."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float64
from torch import Tensor

CROP_ATTEMPTS = 10  # as in torchvision's RandomResizedCrop


def column_slices(**widths: int) -> dict[str, slice]:
    """Return the slice of each named column in a table.

    >>> column_slices(box=4, angle=1)["angle"]
    slice(4, 5, None)
    """
    starts = [0]
    for width in widths.values():
        starts.append(starts[-1] + width)
    return {name: slice(start, start + width) for (name, width), start in zip(widths.items(), starts, strict=False)}


SCALARS = (
    *("crop", "top", "left", "affine", "angle", "translate_x", "translate_y", "scale", "shear_x", "shear_y"),
    *("rotate", "quarter_turns", "flip", "vertical_flip", "jitter", "jitter_order", "brightness", "contrast", "saturation", "hue"),
    *("grayscale", "blur", "sigma", "solarize", "noise", "noise_key"),
)
UNIFORMS = column_slices(area=CROP_ATTEMPTS, ratio=CROP_ATTEMPTS, **dict.fromkeys(SCALARS, 1))
WIDTH = 2 * CROP_ATTEMPTS + len(SCALARS)


@dataclass(frozen=True)
class AugmentationParams:
    """Uniform numbers in [0, 1) for `n` samples with `V` views each; `offset` is the first sample's index in the whole batch."""

    uniforms: Float64[Tensor, "V n P"]
    seed: int
    step: int
    offset: int = 0

    def __len__(self) -> int:
        return self.uniforms.shape[1]

    def __getitem__(self, name: str) -> Tensor:
        """Return the column `name`: (V, n), or (V, n, width) if it is wider than one."""
        return get_column(self.uniforms, UNIFORMS, name)

    def select_samples(self, samples: slice) -> "AugmentationParams":
        return replace(self, uniforms=self.uniforms[:, samples], offset=self.offset + samples.indices(len(self))[0])

    def select_views(self, index: list[int]) -> "AugmentationParams":
        return replace(self, uniforms=self.uniforms[index])


def get_column(table: Tensor, columns: Mapping[str, slice], name: str) -> Tensor:
    """Return the column of that name, without its axis if it has width 1.

    >>> get_column(torch.zeros(2, 5, WIDTH), UNIFORMS, "angle").shape
    torch.Size([2, 5])
    """
    column = columns[name]
    return table[..., column.start] if column.stop - column.start == 1 else table[..., column]


def make_params(views: int, samples: int, *, seed: int, step: int) -> AugmentationParams:
    """Draw the random numbers of the whole batch. Each process selects its samples, so the number of processes changes nothing.

    >>> a, b = make_params(2, 8, seed=0, step=1), make_params(2, 8, seed=0, step=1)
    >>> bool((a.uniforms == b.uniforms).all())
    True
    """
    generator = torch.Generator().manual_seed(mix(seed, step))
    # The sample is the slow axis, so that a shorter batch keeps the numbers of its samples.
    uniforms = torch.rand(samples, views, WIDTH, generator=generator, dtype=torch.float64)
    return AugmentationParams(uniforms=uniforms.transpose(0, 1), seed=seed, step=step)


def mix(*words: int) -> int:
    """Hash integers to 32 bits, the part of a seed that torch's CPU generator uses.

    h ← fmix32(h ⊕ word) for each word, with the finaliser of MurmurHash3 (Appleby 2011). The hash is one-to-one in the last
    word, so no two steps of a run (below 2³²) share their numbers.

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
