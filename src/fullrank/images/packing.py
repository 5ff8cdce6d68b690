"""A packed file: all images of a source at one size, decoded to 8 or 16 bits, which a run reads through a memory
map.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from jaxtyping import UInt
from safetensors import SafetensorError, safe_open

from fullrank.errors import UserError, printable
from fullrank.files import atomic_write, check_suffix
from fullrank.images.bit_depth import find_bit_depth
from fullrank.images.dataset_info import dataset_info
from fullrank.images.decode_errors import DecodeErrors, ImageDecodeError
from fullrank.images.files import check_regular
from fullrank.images.load import decode_chunks
from fullrank.images.pixel_values import to_8_bits, to_16_bits
from fullrank.images.preprocess import Preprocess
from fullrank.images.reading import MAX_PIXELS, OpenOptions
from fullrank.images.source import MAX_CLASSES, Images
from fullrank.images.source_uri import open_images
from fullrank.images.splits import ALL

FORMAT = "fullrank images 1"
HEADER_BYTES = 1024  # of the JSON header, which is written last
CHUNK = 256  # number of images that are decoded at a time
REMEDY = "write it again with fullrank pack SOURCE --size S --out FILE.safetensors"


def pack(
    source: str | Path,
    *,
    out: str | Path,
    size: int = 256,
    channels: int = 0,
    bits: int = 0,
    workers: int = 0,
    decode_errors: DecodeErrors | None = None,
    overwrite: bool = False,
    notify: Callable[[str], Any] = lambda line: None,
    **options: Unpack[OpenOptions],
) -> Path:
    """Write all images of a source into one file, which is a source again.

    The shorter side of each image is resized to `size` and the centre is cropped, as `Preprocess` does. Splits, labels,
    groups, classes and names are kept. The file is a safetensors file with the tensors `pixels` (n, size, size, C),
    `labels` and `groups` (n,) int64, and `text`, JSON in UTF-8 with names, classes and splits. The pixels are uint8, or
    uint16 for images of 16 bits or floats. Images are written as they are decoded, so memory does not limit their
    number.

    Args:
        source: the source URI, see `open_images`.
        out: the file to write, `.safetensors`.
        size: side of the packed images in pixels.
        channels: number of channels; 0: that of the images.
        bits: number of bits that the values of 16-bit images use; 0: found from a sample.
        workers: number of processes that decode images; 0 decodes in this process.
        decode_errors: records unreadable images, which are left out; the default stops if more than 10 % are
            unreadable.
        overwrite: replace the file if it exists.
        notify: function that is called with each line for the user.
        options: how to read the source, see `open_images`.

    Returns:
        The path of the file.

    Raises:
        UserError: the source cannot be read, too many images are unreadable, or the file exists or cannot be written.

    >>> import tempfile
    >>> path = pack("digits", out=f"{tempfile.mkdtemp()}/digits.safetensors", size=8)
    >>> images = open_images(path)["all"]
    >>> len(images), images.open(0).shape, images.labels[:3]
    (1797, (8, 8, 1), array([0, 1, 2]))
    """
    check_suffix(out, (".safetensors",))
    if not 1 <= size <= 4096:
        raise UserError(f"size is {size}, expected a side in pixels of 1 to 4096")
    splits = open_images(source, **options)
    infos = [dataset_info(images) for images in splits.values()]
    channels = channels or max(info.channels for info in infos)
    depths = [find_bit_depth(images, bits=bits, channels=channels) for images in splits.values()]
    for note in dict.fromkeys(note for depth in depths for note in depth.notes):
        notify(note)
    deep = any(
        info.bytes_per_value > 1 and depth.bits != 8 for info, depth in zip(infos, depths, strict=True)
    )  # also floats
    preprocess = Preprocess(channels, size, mean=(), std=(), bits=max(depth.bits for depth in depths) or 16)
    decode_errors = DecodeErrors() if decode_errors is None else decode_errors
    names: list[str] = []
    labels: list[np.ndarray] = []
    if any(images.multi_labels is not None for images in splits.values()):
        notify(
            "several labels an image are not packed; the packed images have no labels, so evaluate with the table itself"
        )
    groups: list[np.ndarray] = []
    ends: dict[str, int] = {}
    classes = next((images.classes for images in splits.values() if images.classes), ())
    if any(images.classes not in ((), classes) for images in splits.values()):
        raise UserError(
            f"the splits of {source} have different classes, expected the same in all; pack each split as a source of its own"
        )
    with atomic_write(Path(out), overwrite=overwrite) as draft, open(draft, "wb") as file:
        file.write(bytes(8 + HEADER_BYTES))
        for split, images in splits.items():
            for pixels, indices in decode_chunks(
                images, preprocess.pixels, chunk=CHUNK, workers=workers, decode_errors=decode_errors
            ):
                pixels = to_16_bits(pixels) if deep else to_8_bits(pixels)
                file.write(pixels.permute(0, 2, 3, 1).contiguous().numpy().data)
                names += [images.name(i) for i in indices]
                labels.append(images.labels[indices])
                groups.append(images.groups[indices])
            ends[split] = len(names)
        if not names:
            raise UserError(f"none of the images of {source} can be read; repair the files")
        text = json.dumps({"names": names, "classes": classes, "splits": ends}).encode()
        n, data = (
            len(names),
            [np.concatenate(labels).astype("<i8").tobytes(), np.concatenate(groups).astype("<i8").tobytes(), text],
        )
        file.writelines(data)
        offsets = np.cumsum([0, n * size * size * channels * (2 if deep else 1), *map(len, data)]).tolist()
        kind = "U16" if deep else "U8"
        shapes = {
            "pixels": (kind, [n, size, size, channels]),
            "labels": ("I64", [n]),
            "groups": ("I64", [n]),
            "text": ("U8", [len(text)]),
        }
        header: dict[str, Any] = {"__metadata__": {"format": FORMAT}}
        for (name, (dtype, shape)), start, stop in zip(shapes.items(), offsets, offsets[1:], strict=False):
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}
        file.seek(0)
        file.write(HEADER_BYTES.to_bytes(8, "little") + json.dumps(header).encode().ljust(HEADER_BYTES))
    notify(f"{n:,} images of {size}×{size} px, channels: {channels}: {os.fspath(out)}")
    return Path(out)


class PackedImages(Images):
    """The images of a packed file, read through a memory map that each process opens for itself; 16-bit values use the
    whole range.
    """

    bits = 16

    def __init__(
        self,
        source: str,
        path: Path,
        labels: np.ndarray,
        groups: np.ndarray,
        classes: tuple[str, ...],
        names: np.ndarray,
    ) -> None:
        self.source, self.path, self.labels, self.groups, self.classes, self.names = (
            source,
            path,
            labels,
            groups,
            classes,
            names,
        )
        self._pixels: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_pixels": None}

    def name(self, index: int) -> str:
        return os.fsdecode(self.names[index])

    def open(self, index: int) -> UInt[np.ndarray, "H W C"]:
        """Return the pixels of one image."""
        try:
            if self._pixels is None:
                self._pixels = safe_open(self.path, "numpy").get_slice("pixels")
            return self._pixels[int(index)]
        except (OSError, SafetensorError) as error:
            raise ImageDecodeError(self.name(index), f"{error}") from error


def open_packed(source: str, path: Path, *, max_pixels: int = MAX_PIXELS, use_labels: bool = True) -> dict[str, Images]:
    """Return the images of each split of a packed file.

    Raises:
        UserError: the file is damaged, or is no packed file.
    """
    try:
        check_regular(os.stat(path))
        with safe_open(path, "numpy") as file:
            if (file.metadata() or {}).get("format") != FORMAT:
                raise ValueError("it does not contain images (weights of a network are a MODEL, file:PATH)")
            shape, dtype = file.get_slice("pixels").get_shape(), file.get_slice("pixels").get_dtype()
            labels, groups = file.get_tensor("labels"), file.get_tensor("groups")
            text = json.loads(bytes(file.get_tensor("text")))
        n = shape[0]
        if dtype not in ("U8", "U16") or len(shape) != 4 or shape[1] * shape[2] > max_pixels or 0 in shape:
            raise ValueError(
                f"its pixels are {dtype} of shape {tuple(shape)}, expected U8 or U16 (n, H, W, C) within data.max_pixels"
            )
        for values in (labels, groups):
            if values.dtype != np.int64 or values.shape != (n,) or values.min() < -1:
                raise ValueError("its labels or groups are not one number for each image")
        names, classes, ends = text["names"], text["classes"], text["splits"]
        if len(names) != n or not all(isinstance(name, str) for name in [*names, *classes, *ends]):
            raise ValueError("its names are not one text for each image")
        if labels.max() >= (len(classes) or MAX_CLASSES):
            raise ValueError("a label has no class")
        stops = list(ends.values())
        if (
            not all(type(stop) is int for stop in stops)
            or stops != sorted(stops)
            or not stops
            or stops[0] < 0
            or stops[-1] != n
        ):
            raise ValueError("its splits do not divide the images")
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or f"{error}"
        raise UserError(f"cannot read the packed images '{path}': {printable(reason).rstrip('.')}; {REMEDY}") from error
    encoded = np.array([os.fsencode(name) for name in names])
    labels = labels if use_labels else np.full(n, -1, dtype=np.int64)
    splits: dict[str, Images] = {}
    for split, start, stop in zip(ends, [0, *stops], stops, strict=False):
        images = PackedImages(
            source, path, labels, groups, tuple(map(printable, classes)) if use_labels else (), encoded
        )
        if len(ends) == 1 and split == ALL:
            return {ALL: images}
        splits[printable(split)] = images.subset(range(start, stop))
        splits[printable(split)].source = f"{source}[{printable(split)}]"
    return splits
