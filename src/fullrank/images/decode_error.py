"""A file that cannot be read: one exception, and the boundary at which Pillow's many exceptions turn into it."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from PIL import Image, UnidentifiedImageError

from fullrank.errors import UserError


class ImageDecodeError(Exception):
    """An image that cannot be read, with the reason; it is skipped and recorded, never fatal by itself."""

    def __init__(self, name: str, reason: str):
        super().__init__(name, reason)  # both, so that it survives the way back from a worker process
        self.name, self.reason = name, reason

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Turn whatever goes wrong inside into `ImageDecodeError(name, reason)`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # remarks on what Pillow could read all the same, as a broken EXIF
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            yield
    except (ImageDecodeError, UserError):
        raise
    # Pillow's decoders raise OSError, SyntaxError, EOFError, ValueError, struct.error, zlib.error, IndexError, TypeError …
    # for broken files: one of them must not end a run of days.
    except Exception as error:
        raise ImageDecodeError(name, _reason(error)) from error


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "not an image that Pillow can read"
    if isinstance(error, Image.DecompressionBombWarning | Image.DecompressionBombError):
        return f"more pixels than the limit of {Image.MAX_IMAGE_PIXELS} (PIL.Image.MAX_IMAGE_PIXELS)"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror  # without the path, which is the name already
    return " ".join(f"{error}".split()) or type(error).__name__
