"""What happens to a view after its crop, in place on a chunk of the batch: warp, turn, colour, blur, solarisation, noise."""

from collections.abc import Callable

import torch
from jaxtyping import Float32
from torch import Tensor

from fullrank.views.affine import warp
from fullrank.views.blur import blur
from fullrank.views.color import blend_, hue_, scale_
from fullrank.views.draw import named
from fullrank.views.parameters import BLENDS, OFF, PARAMETERS
from fullrank.views.tone import noise_, solarize_

Steps = dict[str, Callable[..., Tensor]]
EAGER: Steps = {f.__name__: f for f in (blend_, scale_, hue_, solarize_, noise_)}


def apply_(
    x: Float32[Tensor, "m C s s"],
    host: Float32[Tensor, "m P"],
    device: Float32[Tensor, "m P"],
    *,
    radius: int,
    steps: Steps = EAGER,
) -> Float32[Tensor, "m C s s"]:
    """Carry out the steps that some view of the chunk has drawn; the others are the identity and cost nothing.

    Which ones, and for whom, is read from the host's copy of the parameters, so that the device is never waited for.

    Args:
        x: cropped views in [0, 1]; overwritten.
        host: the parameters, on the CPU.
        device: the same, where x is.
        radius: of the blur's kernel, in pixels.
        steps: the functions, as they are or compiled.

    >>> table = torch.zeros(1, 35)
    >>> table[..., PARAMETERS["blends"]] = torch.tensor([1.0, 0, 0] * BLENDS)
    >>> table[..., PARAMETERS["threshold"]] = 0.5
    >>> apply_(torch.ones(1, 3, 8, 8), table, table, radius=1).max()
    tensor(0.)
    """

    def drawn(name: str) -> Tensor:
        return named(host, PARAMETERS, name)

    def each(name: str) -> Tensor:
        return named(device, PARAMETERS, name).contiguous()  # a tensor of its own, so that a compiled step is compiled once

    for flag, f, name in (
        ("affine", lambda x, theta: warp(x, theta.unflatten(-1, (2, 3))), "theta"),
        ("transpose", lambda x, _: x.mT.clone(), "transpose"),
    ):
        _some_(x, drawn(flag), f, each(name))
    blends = named(device, PARAMETERS, "blends").unflatten(-1, (BLENDS, 3)).unbind(-2)
    blending = (drawn("blends").unflatten(-1, (BLENDS, 3)) != torch.tensor([1.0, 0.0, 0.0])).any(0).tolist()
    for k in range(BLENDS):
        if k == BLENDS // 2 and x.shape[-3] == 3 and drawn("hue").any():
            steps["hue_"](x, each("hue"))
        if any(blending[k][1:]):
            steps["blend_"](x, blends[k].contiguous())
        elif blending[k][0]:
            steps["scale_"](x, blends[k][..., 0].contiguous())
    _some_(x, drawn("sigma"), lambda x, sigma: blur(x, sigma, radius=radius), each("sigma"))
    if (drawn("threshold") < OFF).any():
        steps["solarize_"](x, each("threshold"))
    if drawn("std").any():
        steps["noise_"](x, each("std"), each("key"))
    return x


def _some_(x: Tensor, flag: Tensor, f: Callable[[Tensor, Tensor], Tensor], parameter: Tensor):
    """Apply f to the views whose flag is not 0."""
    index = flag.nonzero()[:, 0]
    if len(index) == len(x):
        x.copy_(f(x, parameter))
    elif len(index):
        index = move(index, x.device)
        x[index] = f(x[index], parameter[index])


def move(x: Tensor, device: torch.device) -> Tensor:
    """Move without waiting: to CUDA by way of page-locked memory.

    >>> move(torch.ones(2), torch.device("cpu"))
    tensor([1., 1.])
    """
    return x.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else x.to(device)
