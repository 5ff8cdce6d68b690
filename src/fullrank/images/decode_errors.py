"""Images that cannot be read: the exception, its conversion from Pillow's many exceptions, and how many a run tolerates."""

import json
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from fullrank.distributed import all_gather_object
from fullrank.errors import UserError


class ImageDecodeError(Exception):
    """An image that cannot be read, with the reason. The image is skipped and recorded; the run goes on."""

    def __init__(self, name: str, reason: str):
        super().__init__(name, reason)  # both, so that the exception can be pickled in a worker process
        self.name, self.reason = name, reason

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


@contextmanager
def convert_errors(name: str) -> Iterator[None]:
    """Convert every exception inside to `ImageDecodeError(name, reason)`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about problems that Pillow could ignore, such as a broken EXIF
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            yield
    except (ImageDecodeError, UserError):
        raise
    # For broken files, Pillow's decoders raise OSError, SyntaxError, EOFError, ValueError, struct.error, zlib.error, IndexError,
    # TypeError …; one such file must not stop a run of days.
    except Exception as error:
        raise ImageDecodeError(name, _reason(error)) from error


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "not an image that Pillow can read"
    if isinstance(error, Image.DecompressionBombWarning | Image.DecompressionBombError):
        return f"more pixels than the limit of {Image.MAX_IMAGE_PIXELS} (PIL.Image.MAX_IMAGE_PIXELS)"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror  # without the path, which is already in the name
    return " ".join(f"{error}".split()) or type(error).__name__


@dataclass
class DecodeErrors:
    """Counts unreadable images and stops the run when their fraction exceeds `max_error_fraction`.

    Workers return their errors with the batch, so only the process that iterates writes here. The fraction (failed reads of all
    reads) is checked once `min_attempts` images were tried, and at the end of every pass over the images.

    >>> decode_errors = DecodeErrors(max_error_fraction=0.5)
    >>> decode_errors.add(3, [ImageDecodeError("cat.jpg", "empty file")])
    >>> decode_errors.check()
    >>> decode_errors.reasons
    {'cat.jpg': 'empty file'}
    """

    max_error_fraction: float = 0.1
    min_attempts: int = 100
    attempts: int = 0
    failed: int = 0
    reasons: dict[str, str] = field(default_factory=dict)

    def add(self, attempts: int, errors: Iterable[ImageDecodeError] = ()) -> None:
        """Record `attempts` reads, of which `errors` failed.

        Raises:
            UserError: the fraction of failed reads is too large.
        """
        errors = list(errors)
        self.attempts += attempts
        self.failed += len(errors)
        self.reasons |= {error.name: error.reason for error in errors}
        if self.attempts >= self.min_attempts:
            self.check()

    def check(self) -> None:
        """Check the fraction; called at the end of a pass.

        Raises:
            UserError: the fraction of failed reads is too large.
        """
        if self.failed > self.max_error_fraction * self.attempts:
            name, reason = next(iter(self.reasons.items()))
            raise UserError(
                f"{self.failed} of {self.attempts} images could not be read, expected at most {self.max_error_fraction:.0%}; "
                f"the first is '{name}': {reason}; remove or repair them, or increase max_error_fraction"
            )

    def all_gather(self) -> None:
        """Collect the names and reasons of all processes, which must all call this; each process checks its own fraction."""
        for reasons in all_gather_object(self.reasons):
            self.reasons |= reasons

    def write(self, path: Path | str) -> None:
        """Write `decode_errors.jsonl`: one `{"name": …, "reason": …}` per line."""
        lines = (json.dumps({"name": name, "reason": reason}) + "\n" for name, reason in self.reasons.items())
        Path(path).write_text("".join(lines))
