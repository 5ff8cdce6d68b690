"""Rotation, translation, zoom and shear: the inverse matrix that torchvision makes, for a batch, and the warp that applies it."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F


def inverse_affine(
    angle: Float[Tensor, "*b"],
    shift: Float[Tensor, "*b 2"],
    zoom: Float[Tensor, "*b"],
    shear: Float[Tensor, "*b 2"],
) -> Float[Tensor, "*b 2 3"]:
    """Where each output pixel comes from, in coordinates from the image's centre.

    The inverse of T(shift) · R(angle) · zoom · Shear_y · Shear_x; angles in degrees.

    Source: torchvision, `transforms.functional._get_inverse_affine_matrix`, with the centre at the origin.

    >>> angle, zoom = torch.tensor(90.0), torch.tensor(2.0)
    >>> inverse_affine(angle, torch.tensor([4.0, 0.0]), zoom, torch.zeros(2)).round(decimals=4) + 0.0
    tensor([[ 0.0000,  0.5000,  0.0000],
            [-0.5000,  0.0000,  2.0000]])
    """
    angle, (shear_x, shear_y) = angle.deg2rad(), shear.deg2rad().unbind(-1)
    a = (angle - shear_y).cos() / shear_y.cos()
    c = (angle - shear_y).sin() / shear_y.cos()
    b = -a * shear_x.tan() - angle.sin()
    d = -c * shear_x.tan() + angle.cos()  # a d - b c = 1
    linear = torch.stack([d, -b, -c, a], -1).unflatten(-1, (2, 2)) / zoom[..., None, None]
    return torch.cat([linear, -linear @ shift[..., None]], -1)


def warp(x: Float[Tensor, "m C s s"], theta: Float[Tensor, "m 2 3"]) -> Float[Tensor, "m C s s"]:
    """Sample each image where `theta` (in pixels from the centre) says: bilinear, 0 outside.

    >>> x = torch.rand(1, 3, 8, 8)
    >>> half_turn = torch.tensor([[[-1.0, 0.0, 0.0], [0.0, -1.0, 0.0]]])
    >>> torch.allclose(warp(x, half_turn), x.flip(-1, -2), atol=1e-5)
    True
    """
    unit = torch.tensor([1, 1, 2 / x.shape[-1]], dtype=x.dtype).to(x.device, non_blocking=True)  # pixels → [-1, 1]
    grid = F.affine_grid(theta * unit, list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
