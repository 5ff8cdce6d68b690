"""The operations after the crop: their parameters, computed from uniform random numbers as one float32 table with
named columns, and their application, in place on a chunk of the batch.

A blend expresses brightness, contrast, saturation or grayscale as a weighted sum of x, gray(x) and the mean of gray(x).
"""

from collections.abc import Callable
from itertools import permutations

import torch
from jaxtyping import Bool, Float32
from torch import Tensor

from fullrank.views.augmentation_params import AugmentationParams, column_slices, config_values, get_column, in_range
from fullrank.views.color import adjust_brightness_, adjust_hue_, blend_, solarize_
from fullrank.views.config import ViewConfig
from fullrank.views.filters import gaussian_blur, gaussian_noise_
from fullrank.views.geometry import inverse_affine_matrix, warp

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

    def where(name: str, value: Tensor, default: float) -> Tensor:
        return torch.where(params[name] < config_values(configs, f"{name}.probability"), value, default)[..., None]

    flips, transpose = flips_and_transpose(params, configs)
    affine, theta = _affine(params, configs, flips)
    blends, hue = _color(params, configs)
    sigma = in_range(configs, "blur.sigma", params["sigma"])
    columns = [
        flips,
        transpose[..., None],
        affine[..., None],
        theta.flatten(-2),
        blends.flatten(-2),
        hue[..., None],
        where("blur", sigma, 0.0),
        where("solarize", config_values(configs, "solarize.threshold"), NO_THRESHOLD),
        where("noise", config_values(configs, "noise.std"), 0.0),
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
    turned = params["rotate"] < config_values(configs, "quarter_turns")
    turns = (1 + (3 * params["quarter_turns"]).floor()) * turned
    x, y = (params[name] < config_values(configs, name) for name in ("flip", "vertical_flip"))
    transpose = turns % 2 == 1
    flips = [
        torch.where(transpose, y, x) ^ ((turns == 1) | (turns == 2)),
        torch.where(transpose, x, y) ^ ((turns == 3) | (turns == 2)),
    ]
    return torch.stack(flips, -1), transpose


def _affine(params: AugmentationParams, configs: list[ViewConfig], flips: Tensor) -> tuple[Tensor, Tensor]:
    """Return whether each view is warped, and the affine matrix (V, n, 2, 3), conjugated by the flip so that the flip
    can come first.

    A flip F after the map A is F A = (F A F) F, so the crop includes the flip, and F A F replaces A.
    """

    def symmetric(*names: str) -> Tensor:
        """Return numbers in (−1, 1), (V, n, len(names))."""
        return 2 * torch.stack([params[name] for name in names], -1) - 1

    limits = {name: config_values(configs, f"affine.{name}") for name in ("degrees", "translate", "shear")}
    size = config_values(configs, "size")[..., None]
    theta = inverse_affine_matrix(
        symmetric("angle")[..., 0] * limits["degrees"],
        (symmetric("translate_x", "translate_y") * (limits["translate"] * size)).round(),
        in_range(configs, "affine.scale", params["scale"]),
        symmetric("shear_x", "shear_y") * limits["shear"],
    )
    sign = 1 - 2 * flips.double()  # (V, n, 2): the diagonal of F
    theta = theta * sign[..., None] * torch.cat([sign, torch.ones_like(sign[..., :1])], -1)[..., None, :]
    return params["affine"] < config_values(configs, "affine.probability"), theta


def _color(params: AugmentationParams, configs: list[ViewConfig]) -> tuple[Tensor, Tensor]:
    """Return the weights of the blends (V, n, 7, 3) and the hue shift (V, n)."""
    is_jittered = params["jitter"] < config_values(configs, "jitter.probability")

    def factor(name: str) -> Tensor:
        half = config_values(configs, f"jitter.{name}")
        return torch.where(is_jittered, torch.lerp((1 - half).clamp(min=0), 1 + half, params[name]), 1.0)

    b, c, s = (factor(name) for name in ("brightness", "contrast", "saturation"))
    hue = torch.where(is_jittered, (2 * params["hue"] - 1) * config_values(configs, "jitter.hue"), 0.0)
    one, zero = torch.ones_like(b), torch.zeros_like(b)
    weights = [(b, zero, zero), (c, zero, 1 - c), (s, 1 - s, zero), (one, zero, zero)]
    weights = torch.stack([torch.stack(row, -1) for row in weights], -2)  # (V, n, 4, 3)
    order = (len(JITTER_ORDERS) * params["jitter_order"]).long()
    operations = BLEND_OPERATIONS[(hue != 0).long(), order]  # (V, n, 6)
    blends = weights.gather(-2, operations[..., None].expand(*operations.shape, 3))
    is_gray = params["grayscale"] < config_values(configs, "grayscale")
    grayscale = torch.stack([(~is_gray).double(), is_gray.double(), zero], -1)
    return torch.cat([blends, grayscale[..., None, :]], -2), hue


Functions = dict[str, Callable[..., Tensor]]
EAGER: Functions = {f.__name__: f for f in (blend_, adjust_brightness_, adjust_hue_, solarize_, gaussian_noise_)}


def apply_operations_(
    x: Float32[Tensor, "m C s s"],
    host_table: Float32[Tensor, "m P"],
    device_table: Float32[Tensor, "m P"],
    *,
    blur_radius: int,
    functions: Functions = EAGER,
) -> Float32[Tensor, "m C s s"]:
    """Apply each operation that at least one view of the chunk uses.

    The copy of the table on the CPU decides which operations run on which views, so the CPU never waits for the device.

    Args:
        x: Cropped views in [0, 1]; overwritten.
        host_table: Parameters of the operations, on the CPU; the P columns are named in `COLUMNS`.
        device_table: The same table on the device of x.
        blur_radius: Radius of the blur's kernel, in pixels.
        functions: Eager or compiled functions, by name.

    >>> table = torch.zeros(1, max(column.stop for column in COLUMNS.values()))
    >>> table[..., COLUMNS["blends"]] = torch.tensor([1.0, 0, 0] * NUM_BLENDS)
    >>> table[..., COLUMNS["threshold"]] = 0.5
    >>> apply_operations_(torch.ones(1, 3, 8, 8), table, table, blur_radius=1).max()
    tensor(0.)
    """

    def on_host(name: str) -> Tensor:
        return get_column(host_table, COLUMNS, name)

    def on_device(name: str) -> Tensor:  # contiguous, so that torch compiles a function only once
        return get_column(device_table, COLUMNS, name).contiguous()

    _apply_where_(on_host("affine"), x, lambda x, theta: warp(x, theta.unflatten(-1, (2, 3))), on_device("theta"))
    _apply_where_(on_host("transpose"), x, lambda x, _: x.mT.clone(), on_device("transpose"))
    blends = get_column(device_table, COLUMNS, "blends").unflatten(-1, (NUM_BLENDS, 3)).unbind(-2)
    is_changed = (on_host("blends").unflatten(-1, (NUM_BLENDS, 3)) != torch.tensor([1.0, 0.0, 0.0])).any(0).tolist()
    for k in range(NUM_BLENDS):
        if k == NUM_BLENDS // 2 and x.shape[-3] == 3 and on_host("hue").any():
            functions["adjust_hue_"](x, on_device("hue"))
        if any(is_changed[k][1:]):
            functions["blend_"](x, blends[k].contiguous())
        elif is_changed[k][0]:
            functions["adjust_brightness_"](x, blends[k][..., 0].contiguous())
    _apply_where_(on_host("sigma"), x, lambda x, sigma: gaussian_blur(x, sigma, radius=blur_radius), on_device("sigma"))
    if (on_host("threshold") < NO_THRESHOLD).any():
        functions["solarize_"](x, on_device("threshold"))
    if on_host("std").any():
        functions["gaussian_noise_"](x, on_device("std"), on_device("noise_key"))
    return x


def _apply_where_(flag: Tensor, x: Tensor, f: Callable[[Tensor, Tensor], Tensor], parameter: Tensor):
    """Apply f in place to the views that have a nonzero flag."""
    index = flag.nonzero()[:, 0]
    if len(index) == len(x):
        x.copy_(f(x, parameter))
    elif len(index):
        index = to_device(index, x.device)
        x[index] = f(x[index], parameter[index])


def to_device(x: Tensor, device: torch.device) -> Tensor:
    """Copy a CPU tensor to the device without waiting; copies to CUDA use pinned memory.

    >>> to_device(torch.ones(2), torch.device("cpu"))
    tensor([1., 1.])
    """
    return x.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else x.to(device)
