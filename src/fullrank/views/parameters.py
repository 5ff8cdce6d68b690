"""From uniform numbers to what each step needs: one float32 table in named columns, made on the CPU and moved once."""

from collections.abc import Callable
from functools import partial
from itertools import permutations

import torch
from jaxtyping import Bool, Float32
from torch import Tensor

from fullrank.views.affine import inverse_affine
from fullrank.views.draw import AugmentationParams, columns
from fullrank.views.spec import ViewConfig

BLENDS = 7  # three before the hue, three after it, grayscale
PARAMETERS = columns(flips=2, transpose=1, affine=1, theta=6, blends=3 * BLENDS, hue=1, sigma=1, threshold=1, std=1, key=1)
OFF = 2.0  # a threshold that no value reaches
ORDERS = tuple(permutations(range(4)))  # brightness, contrast, saturation, hue


def _slots(order: tuple[int, ...], hue: bool) -> list[int]:
    """The operation (3: none) that each of the six blends around the hue carries out."""
    before = order.index(3) if hue else 3
    first, second = ([i for i in order if i != 3][cut] for cut in (slice(before), slice(before, None)))
    return first + [3] * (3 - len(first)) + second + [3] * (3 - len(second))


SLOTS = torch.tensor([[_slots(order, hue) for order in ORDERS] for hue in (False, True)])  # (2, 24, 6)


def parameters(draws: AugmentationParams, specs: list[ViewConfig]) -> Float32[Tensor, "V n P"]:
    """The parameters of everything but the crop's box, which needs the size of the image.

    Args:
        draws: uniform numbers, (V, n).
        specs: the distribution of each view, length V.

    >>> from fullrank.views.draw import draw
    >>> parameters(draw(1, 4, seed=0, step=0), [ViewConfig()])[..., PARAMETERS["hue"]].shape
    torch.Size([1, 4, 1])
    """
    each = partial(_each, specs)
    flips, transpose = turns(draws, specs)
    affine, theta = _affine(draws, each, flips)
    blends, hue = _colour(draws, each)
    zero = torch.zeros(())
    sigma = torch.lerp(each(lambda s: s.blur.sigma[0]), each(lambda s: s.blur.sigma[1]), draws["sigma"])
    parts = [
        flips,
        transpose[..., None],
        affine[..., None],
        theta.flatten(-2),
        blends.flatten(-2),
        hue[..., None],
        torch.where(draws["blur"] < each(lambda s: s.blur.probability), sigma, zero)[..., None],
        torch.where(draws["solarize"] < each(lambda s: s.solarize.probability), each(lambda s: s.solarize.threshold), OFF)[..., None],
        torch.where(draws["noise"] < each(lambda s: s.noise.probability), each(lambda s: s.noise.std), zero)[..., None],
        (draws["key"] * 2**24).floor()[..., None],
    ]
    return torch.cat([part.float() for part in parts], -1)


def turns(draws: AugmentationParams, specs: list[ViewConfig]) -> tuple[Bool[Tensor, "V n 2"], Bool[Tensor, "V n"]]:
    """Quarter turns and then flips, as flips (along x, along y) and then a transposition.

    With F_x, F_y the flips and T the transposition, a turn by 90° is T F_x, by 180° F_x F_y, by 270° T F_y, and F_x T = T F_y.

    >>> from fullrank.views.draw import draw
    >>> flips, transpose = turns(draw(1, 4, seed=0, step=0), [ViewConfig(flip=1.0)])
    >>> flips[0, :, 0].all().item(), transpose.any().item()
    (True, False)
    """
    each = partial(_each, specs)
    quarters = (1 + (3 * draws["turns"]).floor()) * (draws["turn"] < each(lambda s: s.quarter_turns))
    x, y = draws["flip"] < each(lambda s: s.flip), draws["vertical_flip"] < each(lambda s: s.vertical_flip)
    transpose = quarters % 2 == 1
    flips = [
        torch.where(transpose, y, x) ^ ((quarters == 1) | (quarters == 2)),
        torch.where(transpose, x, y) ^ ((quarters == 3) | (quarters == 2)),
    ]
    return torch.stack(flips, -1), transpose


def _each(specs: list[ViewConfig], number: Callable[[ViewConfig], float]) -> Tensor:
    """One number of each view's distribution, (V, 1)."""
    return torch.tensor([float(number(s)) for s in specs], dtype=torch.float64)[:, None]


Each = Callable[[Callable[[ViewConfig], float]], Tensor]


def _affine(draws: AugmentationParams, each: Each, flips: Tensor) -> tuple[Tensor, Tensor]:
    """Whether, and the map (V, n, 2, 3) that gives the flipped result when it meets an image that is flipped already.

    A flip F after the map A is F A = (F A F) F, so the flips can be part of the crop and F A F stands in for A.
    """

    def symmetric(name: str, largest: Tensor) -> Tensor:
        return (2 * draws[name] - 1) * largest

    shift = [symmetric(f"shift_{a}", each(lambda s, k=k: s.affine.translate[k] * s.size)).round() for k, a in enumerate("xy")]
    shear = [symmetric(f"shear_{a}", each(lambda s, k=k: s.affine.shear[k])) for k, a in enumerate("xy")]
    zoom = torch.lerp(each(lambda s: s.affine.scale[0]), each(lambda s: s.affine.scale[1]), draws["zoom"])
    angle = symmetric("angle", each(lambda s: s.affine.degrees))
    theta = inverse_affine(angle, torch.stack(shift, -1), zoom, torch.stack(shear, -1))
    sign = 1 - 2 * flips.double()  # (V, n, 2): F is a diagonal of signs
    theta = theta * sign[..., None] * torch.cat([sign, torch.ones_like(sign[..., :1])], -1)[..., None, :]
    return draws["affine"] < each(lambda s: s.affine.probability), theta


def _colour(draws: AugmentationParams, each: Each) -> tuple[Tensor, Tensor]:
    """The blends (V, n, 7, 3) and the hue's shift (V, n)."""

    def factor(name: str) -> Tensor:
        half = each(lambda s: getattr(s.jitter, name))
        return torch.lerp((1 - half).clamp(min=0), 1 + half, draws[name])

    on = draws["jitter"] < each(lambda s: s.jitter.probability)
    b, c, s = (torch.where(on, factor(name), 1.0) for name in ("brightness", "contrast", "saturation"))
    hue = torch.where(on, (2 * draws["hue"] - 1) * each(lambda v: v.jitter.hue), 0.0)
    one, zero = torch.ones_like(b), torch.zeros_like(b)
    table = [(b, zero, zero), (c, zero, 1 - c), (s, 1 - s, zero), (one, zero, zero)]
    table = torch.stack([torch.stack(row, -1) for row in table], -2)  # (V, n, 4, 3)
    order = (len(ORDERS) * draws["order"]).long()
    slots = SLOTS[(hue != 0).long(), order]  # (V, n, 6)
    blends = table.gather(-2, slots[..., None].expand(*slots.shape, 3))
    grey = draws["grayscale"] < each(lambda v: v.grayscale)
    last = torch.stack([(~grey).double(), grey.double(), zero], -1)
    return torch.cat([blends, last[..., None, :]], -2), hue
