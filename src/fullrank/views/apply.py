"""The operations after the crop, in place on a chunk of the batch: affine, rotation, colour, blur, solarisation,
noise.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float32
from torch import Tensor

from fullrank.views.augmentation_params import get_column
from fullrank.views.color import adjust_brightness_, adjust_hue_, blend_, solarize_
from fullrank.views.filters import gaussian_blur, gaussian_noise_
from fullrank.views.geometry import warp
from fullrank.views.operations import COLUMNS, NO_THRESHOLD, NUM_BLENDS

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

    def on_device(name: str) -> Tensor:
        return get_column(
            device_table, COLUMNS, name
        ).contiguous()  # every input is contiguous, so that torch compiles a function only once

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
