"""The random numbers of a batch of views: uniform numbers in named columns.

Each number is a hash of (seed, step, name of the column, view, sample). Therefore adding a column, view or sample does
not change the other numbers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from operator import attrgetter
from zlib import crc32

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from fullrank.views.config import ViewConfig

CROP_ATTEMPTS = 10  # as in torchvision's RandomResizedCrop


def column_slices(**widths: int) -> dict[str, slice]:
    """Return the slice of each named column in a table.

    >>> column_slices(box=4, angle=1)["angle"]
    slice(4, 5, None)
    """
    ends = accumulate(widths.values())
    return {name: slice(end - width, end) for (name, width), end in zip(widths.items(), ends, strict=True)}


SCALARS = (
    *("crop", "top", "left", "affine", "angle", "translate_x", "translate_y", "scale", "shear_x", "shear_y"),
    *("rotate", "quarter_turns", "flip", "vertical_flip", "jitter", "jitter_order", "brightness", "contrast"),
    *("saturation", "hue", "grayscale", "blur", "sigma", "solarize", "noise", "noise_key"),
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
    uniforms = hash_uniforms(WIDTHS, views, samples, seed=seed, step=step)
    return AugmentationParams(uniforms=uniforms, seed=seed, step=step)


def config_values(configs: Sequence[ViewConfig], name: str) -> Float64[Tensor, "V 1 *k"]:
    """Return a number of the configuration of each view by its dotted name: (V, 1), or (V, 1, 2) for a pair.

    >>> config_values([ViewConfig()], "blur.sigma").shape
    torch.Size([1, 1, 2])
    """
    return torch.tensor([attrgetter(name)(config) for config in configs], dtype=torch.float64)[:, None]


def in_range(configs: Sequence[ViewConfig], name: str, u: Float64[Tensor, "V n"]) -> Float64[Tensor, "V n"]:
    """Return the values at u in [0, 1) of the range of each view, a pair of its configuration.

    >>> in_range([ViewConfig()], "blur.sigma", torch.tensor([[0.0, 1.0]]).double())
    tensor([[0.1000, 2.0000]], dtype=torch.float64)
    """
    low, high = config_values(configs, name).unbind(-1)
    return torch.lerp(low, high, u)


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
    view, sample = np.arange(views, dtype=np.uint64)[:, None], np.arange(samples, dtype=np.uint64)
    return _splitmix64((view << np.uint64(32)) + sample)  # (V, n)


@lru_cache(maxsize=8)
def _hash_seed(seed: int) -> np.ndarray:
    return _splitmix64(np.array([seed & 0xFFFFFFFFFFFFFFFF], dtype=np.uint64))


def _splitmix64(x: np.ndarray) -> np.ndarray:
    """Hash in place; the arithmetic of uint64 arrays is modulo 2⁶⁴."""
    x += np.uint64(0x9E3779B97F4A7C15)
    shifted = x >> np.uint64(30)
    for factor, shift in ((0xBF58476D1CE4E5B9, 27), (0x94D049BB133111EB, 31)):
        x ^= shifted
        x *= np.uint64(factor)
        np.right_shift(x, np.uint64(shift), out=shifted)
    x ^= shifted
    return x
