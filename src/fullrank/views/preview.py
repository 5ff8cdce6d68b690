"""A picture of the views: each row shows one image, followed by the views of the image."""

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from fullrank.views.transform import MultiViewTransform

PADDING = 3  # pixels between cells


def preview(
    images: Sequence[Image.Image | np.ndarray] | Tensor,
    transform: MultiViewTransform,
    *,
    seed: int = 0,
    step: int = 0,
    side: int = 96,
) -> Image.Image:
    """Return a grid of images and their views before normalisation.

    Args:
        images: Decoded images with the transform's channels, one per row: Pillow images, arrays (H, W, C), or a tensor
            (n, C, H, W); arrays and tensors are uint8, or floats in [0, 1].
        transform: Computes the views.
        seed: Seed of the views.
        step: Training step of the views.
        side: Side of a cell in pixels; images are resized to fit into the cell, and enlarged without smoothing.

    >>> from fullrank.views.config import ViewConfig
    >>> transform = MultiViewTransform(ViewConfig(size=8), mean=(0.5,), std=(0.25,), channels=1)
    >>> preview([np.zeros((20, 30, 1), dtype=np.uint8)] * 4, transform, side=16).size
    (54, 73)
    """
    if isinstance(images, Tensor):
        images = list(images.permute(0, 2, 3, 1).cpu().numpy())
    params, crops = transform.make_params(seed, step, len(images)), []
    for i, image in enumerate(images):
        pixels, of_one = torch.from_numpy(_with_channels(image)), params.select_samples(slice(i, i + 1))
        crops.append(transform.crop_image(pixels, transform.get_crop_boxes(of_one, *pixels.shape[:2]), of_one))
    batches = transform.augment([torch.stack(_same_type(crop), 1) for crop in zip(*crops, strict=True)], params)
    cell = side + PADDING
    grid = Image.new("RGB", ((transform.count + 1) * cell - PADDING, len(images) * cell - PADDING), "white")
    for i, image in enumerate(images):
        views = [_denormalize(view, transform) for x in batches for view in x[:, i]]
        for k, picture in enumerate((_to_rgb(_with_channels(image)), *views)):
            grid.paste(_fit(picture, side), (k * cell, i * cell))
    return grid


def _with_channels(image: Image.Image | np.ndarray) -> np.ndarray:
    pixels = np.array(image)
    return pixels.reshape(*pixels.shape[:2], -1)


def _same_type(crops: Sequence[Tensor]) -> list[Tensor]:
    """Return the crops as uint8 if all are, else all as floats in [0, 1]."""
    if all(crop.dtype == torch.uint8 for crop in crops):
        return list(crops)
    return [crop if crop.is_floating_point() else crop / 255 for crop in crops]


def _denormalize(x: Tensor, transform: MultiViewTransform) -> Image.Image:
    x = x.cpu() * transform.std[:, None, None] + transform.mean[:, None, None]
    return _to_rgb(x.mul(255).round().clamp(0, 255).to(torch.uint8).permute(1, 2, 0).numpy())


def _to_rgb(image: np.ndarray) -> Image.Image:
    """Return an RGB image: one channel is repeated, two channels become red and green, of more than three, the first
    three are used.
    """
    if image.dtype != np.uint8:
        image = np.round(image * 255).clip(0, 255).astype(np.uint8)
    if image.shape[-1] == 2:
        image = np.concatenate([image, np.zeros_like(image[..., :1])], -1)
    pixels = image[..., 0] if image.shape[-1] == 1 else np.ascontiguousarray(image[..., :3])
    return Image.fromarray(pixels).convert("RGB")


def _fit(image: Image.Image, side: int) -> Image.Image:
    """Fit the image into a white square: enlarge it without smoothing, or shrink it bilinearly."""
    enlarge = max(image.size) <= side
    image = ImageOps.contain(image, (side, side), Image.Resampling.NEAREST if enlarge else Image.Resampling.BILINEAR)
    return ImageOps.pad(image, (side, side), color="white")
