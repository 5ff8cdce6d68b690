"""Compute the parameters of all augmentation operations from uniform random numbers, as one float32 table with named
columns.

A blend expresses brightness, contrast, saturation or grayscale as a weighted sum of x, gray(x) and the mean of gray(x).
"""

from collections.abc import Callable
from itertools import permutations

import torch
from jaxtyping import Bool, Float32
from torch import Tensor

from fullrank.views.augmentation_params import AugmentationParams, column_slices
from fullrank.views.config import ViewConfig
from fullrank.views.geometry import inverse_affine_matrix

NUM_BLENDS = 7  # three before the hue shift, three after the hue shift, and grayscale
COLUMNS = column_slices(
    flips=2, transpose=1, affine=1, theta=6, blends=3 * NUM_BLENDS, hue=1, sigma=1, threshold=1, std=1, noise_key=1
)
NO_THRESHOLD = 2.0  # larger than every value, so no value is inverted
JITTER_ORDERS = tuple(permutations(range(4)))  # 0: brightness, 1: contrast, 2: saturation, 3: hue


def _blend_operations(order: tuple[int, ...], hue: bool) -> list[int]:
    """Return the operation of each of the six blends around the hue shift; 3 is the identity."""
    before = order.index(3) if hue else 3
    first, second = ([i for i in order if i != 3][part] for part in (slice(before), slice(before, None)))
    return first + [3] * (3 - len(first)) + second + [3] * (3 - len(second))


BLEND_OPERATIONS = torch.tensor(
    [[_blend_operations(order, hue) for order in JITTER_ORDERS] for hue in (False, True)]
)  # (2, 24, 6)
ConfigGetter = Callable[[ViewConfig], float]  # returns one value of a configuration


def build_operation_table(params: AugmentationParams, configs: list[ViewConfig]) -> Float32[Tensor, "V n P"]:
    """Return the parameters of all operations except the crop, which depends on the size of the image; P columns
    (`COLUMNS`).

    Args:
        params: Uniform numbers, (V, n).
        configs: Distribution of each view, length V.

    >>> from fullrank.views.augmentation_params import make_params
    >>> build_operation_table(make_params(1, 4, seed=0, step=0), [ViewConfig()])[..., COLUMNS["hue"]].shape
    torch.Size([1, 4, 1])
    """

    def value_or_default(name: str, probability: ConfigGetter, value: Tensor, default: float) -> Tensor:
        return torch.where(params[name] < _per_view(configs, probability), value, default)[..., None]

    flips, transpose = flips_and_transpose(params, configs)
    affine, theta = _affine(params, configs, flips)
    blends, hue = _color(params, configs)
    sigma = torch.lerp(
        _per_view(configs, lambda c: c.blur.sigma[0]), _per_view(configs, lambda c: c.blur.sigma[1]), params["sigma"]
    )
    threshold, std = _per_view(configs, lambda c: c.solarize.threshold), _per_view(configs, lambda c: c.noise.std)
    columns = [
        flips,
        transpose[..., None],
        affine[..., None],
        theta.flatten(-2),
        blends.flatten(-2),
        hue[..., None],
        value_or_default("blur", lambda c: c.blur.probability, sigma, 0.0),
        value_or_default("solarize", lambda c: c.solarize.probability, threshold, NO_THRESHOLD),
        value_or_default("noise", lambda c: c.noise.probability, std, 0.0),
        (params["noise_key"] * 2**24).floor()[..., None],
    ]
    return torch.cat([column.float() for column in columns], -1)


def flips_and_transpose(
    params: AugmentationParams, configs: list[ViewConfig]
) -> tuple[Bool[Tensor, "V n 2"], Bool[Tensor, "V n"]]:
    """Express a random 90° rotation followed by random flips as flips (along x, along y) followed by a transposition.

    With F_x, F_y the flips and T the transposition, a rotation by 90° is T F_x, by 180° F_x F_y, by 270° T F_y, and F_x
    T = T F_y.

    >>> from fullrank.views.augmentation_params import make_params
    >>> flips, transpose = flips_and_transpose(make_params(1, 4, seed=0, step=0), [ViewConfig(flip=1.0)])
    >>> flips[0, :, 0].all().item(), transpose.any().item()
    (True, False)
    """
    turns = (1 + (3 * params["quarter_turns"]).floor()) * (
        params["rotate"] < _per_view(configs, lambda c: c.quarter_turns)
    )
    x = params["flip"] < _per_view(configs, lambda c: c.flip)
    y = params["vertical_flip"] < _per_view(configs, lambda c: c.vertical_flip)
    transpose = turns % 2 == 1
    flips = [
        torch.where(transpose, y, x) ^ ((turns == 1) | (turns == 2)),
        torch.where(transpose, x, y) ^ ((turns == 3) | (turns == 2)),
    ]
    return torch.stack(flips, -1), transpose


def _per_view(configs: list[ViewConfig], get: ConfigGetter) -> Tensor:
    """Return one value of the configuration of each view, (V, 1)."""
    return torch.tensor([float(get(config)) for config in configs], dtype=torch.float64)[:, None]


def _affine(params: AugmentationParams, configs: list[ViewConfig], flips: Tensor) -> tuple[Tensor, Tensor]:
    """Return whether each view is warped, and the affine matrix (V, n, 2, 3), conjugated by the flip so that the flip
    can come first.

    A flip F after the map A is F A = (F A F) F, so the crop includes the flip, and F A F replaces A.
    """

    def symmetric(name: str, limit: ConfigGetter) -> Tensor:
        return (2 * params[name] - 1) * _per_view(configs, limit)

    translate = [
        symmetric(f"translate_{a}", lambda c, k=k: c.affine.translate[k] * c.size).round() for k, a in enumerate("xy")
    ]
    shear = [symmetric(f"shear_{a}", lambda c, k=k: c.affine.shear[k]) for k, a in enumerate("xy")]
    scale = torch.lerp(
        _per_view(configs, lambda c: c.affine.scale[0]),
        _per_view(configs, lambda c: c.affine.scale[1]),
        params["scale"],
    )
    angle = symmetric("angle", lambda c: c.affine.degrees)
    theta = inverse_affine_matrix(angle, torch.stack(translate, -1), scale, torch.stack(shear, -1))
    sign = 1 - 2 * flips.double()  # (V, n, 2): the diagonal of F
    theta = theta * sign[..., None] * torch.cat([sign, torch.ones_like(sign[..., :1])], -1)[..., None, :]
    return params["affine"] < _per_view(configs, lambda c: c.affine.probability), theta


def _color(params: AugmentationParams, configs: list[ViewConfig]) -> tuple[Tensor, Tensor]:
    """Return the weights of the blends (V, n, 7, 3) and the hue shift (V, n)."""
    is_jittered = params["jitter"] < _per_view(configs, lambda c: c.jitter.probability)

    def factor(name: str) -> Tensor:
        half = _per_view(configs, lambda c: getattr(c.jitter, name))
        return torch.where(is_jittered, torch.lerp((1 - half).clamp(min=0), 1 + half, params[name]), 1.0)

    b, c, s = (factor(name) for name in ("brightness", "contrast", "saturation"))
    hue = torch.where(is_jittered, (2 * params["hue"] - 1) * _per_view(configs, lambda c: c.jitter.hue), 0.0)
    one, zero = torch.ones_like(b), torch.zeros_like(b)
    weights = [(b, zero, zero), (c, zero, 1 - c), (s, 1 - s, zero), (one, zero, zero)]
    weights = torch.stack([torch.stack(row, -1) for row in weights], -2)  # (V, n, 4, 3)
    order = (len(JITTER_ORDERS) * params["jitter_order"]).long()
    operations = BLEND_OPERATIONS[(hue != 0).long(), order]  # (V, n, 6)
    blends = weights.gather(-2, operations[..., None].expand(*operations.shape, 3))
    is_gray = params["grayscale"] < _per_view(configs, lambda c: c.grayscale)
    grayscale = torch.stack([(~is_gray).double(), is_gray.double(), zero], -1)
    return torch.cat([blends, grayscale[..., None, :]], -2), hue
