"""Crop boxes, resized crops, flips and affine warps of batches of images."""

import torch
from jaxtyping import Bool, Float, Int64, Real
from torch import Tensor
from torch.nn import functional as F

from fullrank.views.augmentation_params import AugmentationParams, config_values
from fullrank.views.config import ViewConfig


def crop_boxes(
    params: AugmentationParams, configs: list[ViewConfig], height: int, width: int
) -> Int64[Tensor, "V n 4"]:
    """Return the crop box (top, left, height, width) of each view of each sample, for images of one size.

    Each of ten attempts draws an area uniformly and a ratio log-uniformly. The box is the first rounded box that fits
    into the image, at a uniform integer position. If no box fits, the result is the largest central box with an allowed
    ratio. Without a crop, the box is the whole image.

    Args:
        params: Uniform numbers, (V, n).
        configs: Distribution of each view, length V.
        height: Height of the images.
        width: Width of the images.

    Source: torchvision, `transforms.v2.RandomResizedCrop.make_params`.

    >>> from fullrank.views.augmentation_params import make_params
    >>> crop_boxes(make_params(1, 2, seed=0, step=0), [ViewConfig()], 32, 48).shape
    torch.Size([1, 2, 4])
    """
    scale = config_values(configs, "crop.scale")[..., None, :]  # (V, 1, 1, 2)
    ratio = config_values(configs, "crop.ratio")[..., None, :].log()
    area = height * width * torch.lerp(scale[..., 0], scale[..., 1], params["area"])  # (V, n, CROP_ATTEMPTS)
    aspect = torch.lerp(ratio[..., 0], ratio[..., 1], params["ratio"]).exp()
    h, w = (area / aspect).sqrt().round(), (area * aspect).sqrt().round()
    fits = (w >= 1) & (w <= width) & (h >= 1) & (h <= height)
    first = fits.to(torch.uint8).argmax(-1, keepdim=True)  # argmax returns the first maximum
    h, w = h.gather(-1, first)[..., 0], w.gather(-1, first)[..., 0]  # (V, n)
    top, left = (params["top"] * (height - h + 1)).floor(), (params["left"] * (width - w + 1)).floor()
    central = torch.tensor([_central_box(config.crop.ratio, height, width) for config in configs]).double()[:, None]
    box = torch.where(fits.any(-1, keepdim=True), torch.stack([top, left, h, w], -1), central)
    is_cropped = params["crop"] < config_values(configs, "crop.probability")
    whole = torch.tensor([0, 0, height, width], dtype=torch.float64)
    return torch.where(is_cropped[..., None], box, whole).long()


def _central_box(ratio: tuple[float, float], height: int, width: int) -> tuple[int, int, int, int]:
    h, w = height, width
    if width / height < ratio[0]:
        h = max(round(width / ratio[0]), 1)
    elif width / height > ratio[1]:
        w = max(round(height * ratio[1]), 1)
    return (height - h) // 2, (width - w) // 2, h, w


def resize_weights(
    start: Float[Tensor, "*b"], length: Float[Tensor, "*b"], flip: Bool[Tensor, "*b"], *, size: int, full: int
) -> Float[Tensor, "*b size full"]:
    """Return the weights that resize the interval [start, start + length) of an axis of `full` pixels to `size` pixels.

    w_ij ∝ max(0, 1 - |j + ½ - c_i| / r) inside the interval, rows summing to 1, with centres c_i = start + (i + ½)
    length / size and support r = max(1, length / size): bilinear, antialiased when the image shrinks. A flip reverses
    the rows.

    Source: the triangle filter of `torch.nn.functional.interpolate(mode="bilinear", antialias=True)` and of Pillow.

    >>> resize_weights(torch.tensor([0.0]), torch.tensor([4.0]), torch.tensor([False]), size=2, full=4)[0, 0]
    tensor([0.4286, 0.4286, 0.1429, 0.0000])
    """
    step = (length / size)[..., None]
    i = torch.arange(size, device=start.device, dtype=start.dtype)
    i = torch.where(flip[..., None], size - 1 - i, i)
    centre = start[..., None] + (i + 0.5) * step  # (*b, size)
    j = torch.arange(full, device=start.device, dtype=start.dtype) + 0.5
    w = (1 - (j - centre[..., None]).abs() / step[..., None].clamp(min=1)).clamp(min=0)
    inside = (start[..., None] < j) & (j < (start + length)[..., None])  # (*b, full)
    w = w * inside[..., None, :]
    return w / w.sum(-1, keepdim=True)


def resized_crop(
    images: Real[Tensor, "n C H W"], box: Float[Tensor, "V n 4"], flips: Float[Tensor, "V n 2"], *, size: int
) -> Float[Tensor, "V n C size size"]:
    """Crop, resize (antialiased bilinear) and flip V views of each image in two batched matrix products; values in [0,
    1].

    Crop, resize and flip together are one linear map of the rows and one linear map of the columns: out = Wy · x · Wxᵀ.

    Args:
        images: Images of one size, uint8 or floats in [0, 1].
        box: Top, left, height, width in pixels.
        flips: 1 if the view is flipped, along x and along y.
        size: Side of the views.

    >>> whole = torch.tensor([[[0.0, 0.0, 4.0, 4.0]]])
    >>> resized_crop(torch.full((1, 3, 4, 4), 255, dtype=torch.uint8), whole, torch.zeros(1, 1, 2), size=2).unique()
    tensor([1.])
    """
    n, C, H, W = images.shape
    V = len(box)
    top, left, height, width = box.transpose(0, 1).unbind(-1)  # (n, V): the views of a sample are adjacent
    flip_x, flip_y = flips.transpose(0, 1).bool().unbind(-1)
    Wy = resize_weights(top, height, flip_y, size=size, full=H) / (1 if images.is_floating_point() else 255)
    Wx = resize_weights(left, width, flip_x, size=size, full=W)
    x = images.transpose(1, 2).to(Wy.dtype, memory_format=torch.contiguous_format).reshape(n, H, C * W)
    x = Wy.reshape(n, V * size, H) @ x  # (n, V·size, C·W): each image is read only once for all of its views
    x = x.view(n * V, size * C, W) @ Wx.reshape(n * V, size, W).mT
    return x.view(n, V, size, C, size).permute(1, 0, 3, 2, 4)


def resized_crop_of_one(
    image: Real[Tensor, "H W C"], boxes: Int64[Tensor, "V 4"], flips: Bool[Tensor, "V 2"], *, size: int
) -> Real[Tensor, "V C size size"]:
    """Crop boxes (top, left, height, width) of one image, resize them and flip them; the result has the type of the
    image.

    Values of uint8 differ from Pillow's by at most 1.

    >>> image = torch.full((6, 8, 3), 7, dtype=torch.uint8)
    >>> resized_crop_of_one(image, torch.tensor([[0, 0, 6, 8]]), torch.tensor([[True, False]]), size=2).unique()
    tensor([7], dtype=torch.uint8)
    """
    out = torch.empty(len(boxes), image.shape[-1], size, size, dtype=image.dtype)
    for view, (top, left, height, width), flip in zip(out, boxes.tolist(), flips.tolist(), strict=True):
        crop = image[top : top + height, left : left + width].permute(2, 0, 1)[None]
        crop = F.interpolate(crop, size=(size, size), mode="bilinear", antialias=True)[0]
        view.copy_(crop.flip([axis for axis, is_flipped in zip((-1, -2), flip, strict=True) if is_flipped]))
    return out


def inverse_affine_matrix(
    angle: Float[Tensor, "*b"],
    translate: Float[Tensor, "*b 2"],
    scale: Float[Tensor, "*b"],
    shear: Float[Tensor, "*b 2"],
) -> Float[Tensor, "*b 2 3"]:
    """Return the inverse of T(translate) · R(angle) · scale · Shear_y · Shear_x; angles in degrees.

    The matrix maps the coordinates of each output pixel to coordinates of the input, both relative to the centre of the
    image.

    Source: torchvision, `transforms.functional._get_inverse_affine_matrix`, with the centre at the origin.

    >>> angle, scale = torch.tensor(90.0), torch.tensor(2.0)
    >>> inverse_affine_matrix(angle, torch.tensor([4.0, 0.0]), scale, torch.zeros(2)).round(decimals=4) + 0.0
    tensor([[ 0.0000,  0.5000,  0.0000],
            [-0.5000,  0.0000,  2.0000]])
    """
    angle, (shear_x, shear_y) = angle.deg2rad(), shear.deg2rad().unbind(-1)
    a = (angle - shear_y).cos() / shear_y.cos()
    c = (angle - shear_y).sin() / shear_y.cos()
    b = -a * shear_x.tan() - angle.sin()
    d = -c * shear_x.tan() + angle.cos()  # a d - b c = 1
    linear = torch.stack([d, -b, -c, a], -1).unflatten(-1, (2, 2)) / scale[..., None, None]
    return torch.cat([linear, -linear @ translate[..., None]], -1)


def warp(x: Float[Tensor, "m C s s"], theta: Float[Tensor, "m 2 3"]) -> Float[Tensor, "m C s s"]:
    """Warp each image: output pixel p has the value of the input at theta · (p, 1), in pixels from the centre;
    bilinear, 0 outside.

    >>> x = torch.rand(1, 3, 8, 8)
    >>> half_turn = torch.tensor([[[-1.0, 0.0, 0.0], [0.0, -1.0, 0.0]]])
    >>> torch.allclose(warp(x, half_turn), x.flip(-1, -2), atol=1e-5)
    True
    """
    unit = torch.tensor([1, 1, 2 / x.shape[-1]], dtype=x.dtype).to(x.device, non_blocking=True)  # pixels → [-1, 1]
    grid = F.affine_grid(theta * unit, list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
