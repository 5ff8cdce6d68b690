"""The random numbers of a batch of views: uniform numbers in named columns.

Each number is a hash of (seed, step, name of the column, view, sample). Therefore adding a column, view or sample does
not change the other numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from zlib import crc32

import numpy as np
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
    *(
        "rotate",
        "quarter_turns",
        "flip",
        "vertical_flip",
        "jitter",
        "jitter_order",
        "brightness",
        "contrast",
        "saturation",
        "hue",
    ),
    *("grayscale", "blur", "sigma", "solarize", "noise", "noise_key"),
)
WIDTHS = {"area": CROP_ATTEMPTS, "ratio": CROP_ATTEMPTS, **dict.fromkeys(SCALARS, 1)}
UNIFORMS = column_slices(**WIDTHS)


@dataclass(frozen=True)
class AugmentationParams:
    """Uniform numbers in [0, 1) for `n` samples with `V` views each; `offset` is the index of the first sample in the
    whole batch.

    Attributes:
        uniforms: The P columns are named in `UNIFORMS`.
    """

    uniforms: Float64[Tensor, "V n P"]
    seed: int
    step: int
    offset: int = 0

    def __len__(self) -> int:
        return self.uniforms.shape[1]

    def __getitem__(self, name: str) -> Tensor:
        """Return the column `name`: (V, n), or (V, n, width) if the width is above 1."""
        return get_column(self.uniforms, UNIFORMS, name)

    def select_samples(self, samples: slice) -> "AugmentationParams":
        return replace(self, uniforms=self.uniforms[:, samples], offset=self.offset + samples.indices(len(self))[0])

    def select_views(self, index: list[int]) -> "AugmentationParams":
        return replace(self, uniforms=self.uniforms[index])


def get_column(table: Tensor, columns: Mapping[str, slice], name: str) -> Tensor:
    """Return the column of that name; a column of width 1 has no axis for its width.

    >>> get_column(torch.zeros(2, 5, 50), UNIFORMS, "angle").shape
    torch.Size([2, 5])
    """
    column = columns[name]
    return table[..., column.start] if column.stop - column.start == 1 else table[..., column]


def make_params(views: int, samples: int, *, seed: int, step: int) -> AugmentationParams:
    """Draw the random numbers of the whole batch; each process selects its samples, so the number of processes does not
    matter.

    >>> a, b = make_params(2, 8, seed=0, step=1), make_params(2, 8, seed=0, step=1)
    >>> bool((a.uniforms == b.uniforms).all())
    True
    """
    return AugmentationParams(
        uniforms=hash_uniforms(WIDTHS, views, samples, seed=seed, step=step), seed=seed, step=step
    )


def hash_uniforms(
    widths: Mapping[str, int], views: int, samples: int, *, seed: int, step: int
) -> Float64[Tensor, "V n P"]:
    """Return uniform numbers in [0, 1), with 53 random bits each, for columns of the given names and widths.

    Number k of a column, for view v and sample i, is

        u = ⌊h(key ⊕ h(2³² v + i)) / 2¹¹⌋ / 2⁵³,    key = h(h(h(seed) ⊕ step) ⊕ (2³² crc32(name) + k)),

    where h is the output function of SplitMix64.

    Source: Steele, Lea and Flood 2014, Fast splittable pseudorandom number generators, with the constants of Stafford's
    Mix13.

    >>> hash_uniforms({"angle": 1, "shear": 2}, 2, 8, seed=0, step=1).shape
    torch.Size([2, 8, 3])
    """
    key = _splitmix64(_splitmix64(_hash_seed(seed) ^ np.uint64(step)) ^ _column_ids(tuple(widths.items())))
    x = _splitmix64(key[:, None, None] ^ _hash_positions(views, samples))  # (P, V, n)
    x >>= np.uint64(11)
    return torch.from_numpy(x * 2.0**-53).permute(1, 2, 0)


@lru_cache(maxsize=8)
def _column_ids(widths: tuple[tuple[str, int], ...]) -> np.ndarray:
    return np.array([(crc32(name.encode()) << 32) + k for name, width in widths for k in range(width)], dtype=np.uint64)


@lru_cache(maxsize=8)
def _hash_positions(views: int, samples: int) -> np.ndarray:
    return _splitmix64(
        (np.arange(views, dtype=np.uint64)[:, None] << np.uint64(32)) + np.arange(samples, dtype=np.uint64)
    )  # (V, n)


@lru_cache(maxsize=8)
def _hash_seed(seed: int) -> np.ndarray:
    return _splitmix64(np.array([seed & 0xFFFFFFFFFFFFFFFF], dtype=np.uint64))


def _splitmix64(x: np.ndarray) -> np.ndarray:
    """Hash in place; the arithmetic of uint64 arrays is modulo 2⁶⁴."""
    x += np.uint64(0x9E3779B97F4A7C15)
    shifted = x >> np.uint64(30)
    for factor, shift in (
        (np.uint64(0xBF58476D1CE4E5B9), np.uint64(27)),
        (np.uint64(0x94D049BB133111EB), np.uint64(31)),
    ):
        x ^= shifted
        x *= factor
        np.right_shift(x, shift, out=shifted)
    x ^= shifted
    return x
