"""A picture of what the network will see: a row for each image, the image first and then its views."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from fullrank.views.views import MultiViewTransform

GAP = 3  # pixels between cells


def preview(
    images: Sequence[Image.Image | np.ndarray] | Tensor,
    views: MultiViewTransform,
    *,
    seed: int = 0,
    step: int = 0,
    side: int = 96,
    path: Path | None = None,
) -> Image.Image:
    """Draw a grid of images and their views, the normalisation undone.

    Args:
        images: Pillow images or arrays (H, W, C) of uint8, or a tensor (n, C, H, W) of uint8; a row each.
        views: what to draw from.
        seed: of the views.
        step: of training, whose views are shown.
        side: of a cell in pixels; images are fitted into it, enlarged without smoothing.
        path: where to write the picture as well.

    >>> from fullrank.views.spec import ViewConfig
    >>> views = MultiViewTransform(ViewConfig(size=8), mean=(0.5,), std=(0.25,), channels=1)
    >>> preview([np.zeros((20, 30, 1), dtype=np.uint8)] * 4, views, side=16).size
    (54, 73)
    """
    if isinstance(images, Tensor):
        images = list(images.permute(0, 2, 3, 1).cpu().numpy())
    draws = views.draw(seed, step, len(images))
    crops = zip(*(views.crops(image, draws, i) for i, image in enumerate(images)), strict=True)
    sizes = views.finish([torch.stack(crop, 1) for crop in crops], draws)
    cell = side + GAP
    grid = Image.new("RGB", ((views.count + 1) * cell - GAP, len(images) * cell - GAP), "white")
    for i, image in enumerate(images):
        pictures = [_fit(_picture(image), side)]
        pictures += [_fit(_shown(view, views), side) for x in sizes for view in x[:, i]]
        for k, picture in enumerate(pictures):
            grid.paste(picture, (k * cell, i * cell))
    if path is not None:
        grid.save(path)
    return grid


def _shown(x: Tensor, views: MultiViewTransform) -> Image.Image:
    x = x.cpu() * views.std[:, None, None] + views.mean[:, None, None]
    return _picture(x.mul(255).round().clamp(0, 255).to(torch.uint8).permute(1, 2, 0).numpy())


def _picture(image: Image.Image | np.ndarray) -> Image.Image:
    """Grey stays grey; of other numbers of channels the first three are shown as RGB, two as red and green."""
    if isinstance(image, Image.Image):
        return image.convert("RGB")
    image = image.reshape(*image.shape[:2], -1)
    if image.shape[-1] == 2:
        image = np.concatenate([image, np.zeros_like(image[..., :1])], -1)
    return Image.fromarray(image[..., 0] if image.shape[-1] == 1 else np.ascontiguousarray(image[..., :3])).convert("RGB")


def _fit(image: Image.Image, side: int) -> Image.Image:
    """Enlarge without smoothing, shrink with it, keep the shape, and centre on white."""
    enlarge = max(image.size) <= side
    image = ImageOps.contain(image, (side, side), Image.Resampling.NEAREST if enlarge else Image.Resampling.BILINEAR)
    return ImageOps.pad(image, (side, side), color="white")
