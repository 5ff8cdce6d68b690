"""What kind of images a source holds, from the headers of a few: one size or many, grey or colour, how large in memory."""

from dataclasses import dataclass

import numpy as np

from fullrank.errors import UserError
from fullrank.images.decode import orientation
from fullrank.images.decode_error import ImageDecodeError, reading
from fullrank.images.source import Images, Picture

Size = tuple[int, int]  # width, height
GREY = ("1", "L", "I", "F", "I;16", "I;16L", "I;16B", "I;16N")  # Pillow's modes


@dataclass(frozen=True)
class DatasetInfo:
    """Sizes are (width, height), side by side: the minimum is the pair of the smallest width and the smallest height.

    Attributes:
        count: Images in the source, all of them.
        channels: 1 if every sampled image is grey, the channels of arrays, else 3.
        minimum: Least width and height.
        median: Median width and height.
        maximum: Greatest width and height.
        uniform: All sampled images have one size.
        bytes_in_memory: All images as bytes: exact if `uniform`, else at the median size.
        modes: Pillow's modes of the sample (`"L"`, `"RGB"`, …; arrays as `"uint8×5"`), with how many images have each.
    """

    count: int
    channels: int
    minimum: Size
    median: Size
    maximum: Size
    uniform: bool
    bytes_in_memory: int
    modes: dict[str, int]


def dataset_info(images: Images, sample: int = 64) -> DatasetInfo:
    """Read the headers of `sample` images that lie evenly in the source.

    Raises:
        UserError: none of the sample can be read.

    >>> from fullrank.images import open_images
    >>> dataset_info(open_images("digits")["all"]).bytes_in_memory == 1797 * 8 * 8
    True
    """
    headers: list[tuple[str, int, Size]] = []
    bad: list[ImageDecodeError] = []
    for index in evenly(len(images), sample):
        try:
            headers.append(_header(images.open(index), images.name(index)))
        except ImageDecodeError as error:
            bad.append(error)
    if not headers:
        raise UserError(f"none of {len(bad)} sampled images of {images.source} can be read; the first is '{bad[0].name}': {bad[0].reason}")
    sizes = np.array([size for _, _, size in headers])
    modes = [mode for mode, _, _ in headers]
    channels = max(channels for _, channels, _ in headers)
    median = _pair(np.median(sizes, axis=0))
    return DatasetInfo(
        count=len(images),
        channels=channels,
        minimum=_pair(sizes.min(axis=0)),
        median=median,
        maximum=_pair(sizes.max(axis=0)),
        uniform=bool((sizes == sizes[0]).all()),
        bytes_in_memory=len(images) * channels * median[0] * median[1],
        modes={mode: modes.count(mode) for mode in sorted(set(modes))},
    )


def fits(dataset_info: DatasetInfo, budget_bytes: int, *, size: int | None = None) -> bool:
    """Tell whether all images fit in `budget_bytes`, resized to `size`×`size` if that is given."""
    needed = dataset_info.bytes_in_memory if size is None else dataset_info.count * dataset_info.channels * size**2
    return needed <= budget_bytes


def evenly(count: int, sample: int) -> list[int]:
    """Indices that lie evenly in `range(count)`: folders and tables are often sorted by class.

    >>> evenly(10, 4), evenly(3, 64)
    ([0, 3, 6, 9], [0, 1, 2])
    """
    return np.linspace(0, count - 1, min(count, sample)).round().astype(int).tolist()


def _header(image: Picture, name: str) -> tuple[str, int, Size]:
    """Mode, channels and size of an image, upright."""
    if isinstance(image, np.ndarray):
        if image.ndim not in (2, 3):
            raise ImageDecodeError(name, f"an array of shape {image.shape}, not (H, W) or (H, W, C)")
        channels = image.shape[2] if image.ndim == 3 else 1
        return f"{image.dtype}×{channels}", channels, (image.shape[1], image.shape[0])
    with reading(name):
        grey = image.mode in GREY and not image.has_transparency_data  # what is laid over white may have colours
        width, height = image.size
        return image.mode, 1 if grey else 3, (height, width) if orientation(image) >= 5 else (width, height)


def _pair(size: np.ndarray) -> Size:
    return int(size[0]), int(size[1])
