"""Where to crop: the boxes of torchvision's RandomResizedCrop, from uniform numbers that were drawn before."""

import torch
from jaxtyping import Int64
from torch import Tensor

from fullrank.views.draw import AugmentationParams
from fullrank.views.spec import ViewConfig


def boxes(draws: AugmentationParams, specs: list[ViewConfig], height: int, width: int) -> Int64[Tensor, "V n 4"]:
    """The box (top, left, height, width) of each view of each sample, for images of one size.

    Ten times an area is drawn uniformly and a ratio log-uniformly; the first pair whose rounded box fits wins, at a
    uniform integer position. If none fits: the largest central box whose ratio is allowed. A view that is not cropped
    takes the whole image.

    Args:
        draws: uniform numbers, (V, n).
        specs: the distribution of each view, length V.
        height: of the images.
        width: of the images.

    Source: torchvision, `transforms.v2.RandomResizedCrop.make_params`.

    >>> from fullrank.views.draw import draw
    >>> boxes(draw(1, 2, seed=0, step=0), [ViewConfig()], 32, 48).shape
    torch.Size([1, 2, 4])
    """
    scale = torch.tensor([s.crop.scale for s in specs], dtype=torch.float64)[:, None, :, None]  # (V, 1, 2, 1)
    ratio = torch.tensor([s.crop.ratio for s in specs], dtype=torch.float64)[:, None, :, None].log()
    area = height * width * torch.lerp(scale[:, :, 0], scale[:, :, 1], draws["area"])  # (V, n, TRIES)
    aspect = torch.lerp(ratio[:, :, 0], ratio[:, :, 1], draws["ratio"]).exp()
    h, w = (area / aspect).sqrt().round(), (area * aspect).sqrt().round()
    fits = (w >= 1) & (w <= width) & (h >= 1) & (h <= height)
    first = fits.to(torch.uint8).argmax(-1, keepdim=True)  # argmax takes the first of equals
    h, w = h.gather(-1, first)[..., 0], w.gather(-1, first)[..., 0]  # (V, n)
    top, left = (draws["top"] * (height - h + 1)).floor(), (draws["left"] * (width - w + 1)).floor()
    drawn = torch.stack([top, left, h, w], -1)
    central = torch.tensor([_central(s.crop.ratio, height, width) for s in specs], dtype=torch.float64)[:, None]
    box = torch.where(fits.any(-1, keepdim=True), drawn, central)
    cropped = draws["crop"] < torch.tensor([s.crop.probability for s in specs], dtype=torch.float64)[:, None]
    whole = torch.tensor([0, 0, height, width], dtype=torch.float64)
    return torch.where(cropped[..., None], box, whole).long()


def _central(ratio: tuple[float, float], height: int, width: int) -> tuple[int, int, int, int]:
    h, w = height, width
    if width / height < ratio[0]:
        h = round(width / ratio[0])
    elif width / height > ratio[1]:
        w = round(height * ratio[1])
    return (height - h) // 2, (width - w) // 2, h, w
