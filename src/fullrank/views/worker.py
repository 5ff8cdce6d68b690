"""The crop where images are decoded: from a photo of any size to small uint8 views, in a worker process."""

import numpy as np
import torch
from jaxtyping import Bool, Int64, UInt8
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate

MODES = {1: "L", 3: "RGB", 4: "RGBA"}
GAP = 2.0  # a JPEG is decoded at a fraction of its size while boxes keep this many times the view's side, as Pillow's thumbnails


def side(image: Image.Image | np.ndarray) -> tuple[int, int]:
    """Height and width.

    >>> side(np.zeros((3, 5, 1), dtype=np.uint8))
    (3, 5)
    """
    return (image.height, image.width) if isinstance(image, Image.Image) else (image.shape[0], image.shape[1])


def pixels(image: Image.Image | np.ndarray, *, channels: int, shrink: float) -> UInt8[Tensor, "H W C"]:
    """Decode, a JPEG up to `shrink` times smaller, which is several times faster (H, W are then those of the smaller image).

    Args:
        image: a Pillow image, decoded or not, or an array (H, W, C) of uint8.
        channels: that the views have.
        shrink: how many times smaller a JPEG may be.

    >>> pixels(Image.new("RGB", (5, 3)), channels=1, shrink=1.0).shape
    torch.Size([3, 5, 1])
    """
    if isinstance(image, Image.Image):
        if shrink >= 2:
            image.draft(MODES[channels], (int(image.width / shrink), int(image.height / shrink)))
        image = np.array(image if image.mode == MODES[channels] else image.convert(MODES[channels]))
    array = image.reshape(*image.shape[:2], -1)
    assert array.shape[-1] == channels, f"an image has {array.shape[-1]} channels, its views have {channels}"
    return torch.from_numpy(array)


def cut(
    image: UInt8[Tensor, "H W C"], box: Int64[Tensor, "V 4"], flips: Bool[Tensor, "V 2"], *, size: int
) -> UInt8[Tensor, "V C size size"]:
    """Crop boxes (top, left, height, width), resize them (antialiased bilinear, within one grey level of Pillow) and flip them.

    >>> image = torch.full((6, 8, 3), 7, dtype=torch.uint8)
    >>> cut(image, torch.tensor([[0, 0, 6, 8]]), torch.tensor([[True, False]]), size=2).unique()
    tensor([7], dtype=torch.uint8)
    """
    out = torch.empty(len(box), image.shape[-1], size, size, dtype=torch.uint8)
    for view, (top, left, height, width), flip in zip(out, box.tolist(), flips.tolist(), strict=True):
        part = image[top : top + height, left : left + width].permute(2, 0, 1)[None]
        part = interpolate(part, size=(size, size), mode="bilinear", antialias=True)[0]
        view.copy_(part.flip([axis for axis, on in zip((-1, -2), flip, strict=True) if on]))
    return out
