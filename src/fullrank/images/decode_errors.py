"""How images are decoded, and the files that cannot be read, which a run tolerates for a share of them."""

import json
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from fullrank.distributed import all_gather_object
from fullrank.errors import UserError, printable
from fullrank.files import write_text


class ImageDecodeError(Exception):
    """An image cannot be read, for the given reason. The caller skips and records the image; the run continues."""

    def __init__(self, name: str, reason: str):
        super().__init__(name, reason)  # with both arguments, so that a worker process can pickle the exception
        self.name, self.reason = name, reason

    def __str__(self) -> str:
        return printable(f"{self.name}: {self.reason}")


@contextmanager
def convert_errors(name: str) -> Iterator[None]:
    """Convert every exception in the context to `ImageDecodeError(name, reason)`."""
    try:
        with warnings.catch_warnings():
            # Pillow warns about problems that it can ignore, such as invalid EXIF
            warnings.simplefilter("ignore", UserWarning)
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            yield
    except (ImageDecodeError, UserError):
        raise
    # For unreadable files, Pillow's decoders raise OSError, SyntaxError, EOFError, ValueError, struct.error,
    # zlib.error, IndexError, TypeError …; one unreadable file must not stop a long run.
    except Exception as error:
        raise ImageDecodeError(name, _reason(error)) from error


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "Pillow cannot identify the image format"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror  # this message has no path, because the name already contains it
    return " ".join(f"{error}".split()) or type(error).__name__


@dataclass
class DecodeErrors:
    """Counts unreadable images and stops the run when their fraction exceeds `max_error_fraction`.

    Workers return their errors with the batch, so only the main process calls `add`. The fraction (failed reads / all
    reads) is checked after the first `min_attempts` reads, and at the end of every pass over the images.

    >>> decode_errors = DecodeErrors(max_error_fraction=0.5)
    >>> decode_errors.add(3, [ImageDecodeError("cat.jpg", "the file is empty")])
    >>> decode_errors.check()
    >>> decode_errors.reasons
    {'cat.jpg': 'the file is empty'}
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
        """Check the fraction of failed reads; the caller does this at the end of a pass.

        Raises:
            UserError: the fraction of failed reads is too large.
        """
        if self.failed > self.max_error_fraction * self.attempts:
            name, reason = next(iter(self.reasons.items()))
            share = f"{self.failed} of {self.attempts} images could not be read, expected at most"
            remedy = "repair or remove these images"
            remedy += ", or allow more: --max-error-fraction, --data.max-error-fraction" * (self.failed < self.attempts)
            raise UserError(f"{share} {self.max_error_fraction:.0%}; the first is '{name}': {reason}; {remedy}")

    def all_gather(self) -> None:
        """Collect the names and reasons of all processes, which must all call this method. `check` uses only local
        counts.
        """
        for reasons in all_gather_object(self.reasons):
            self.reasons |= reasons

    def write(self, path: Path | str) -> None:
        """Write `decode_errors.jsonl` atomically: one `{"name": …, "reason": …}` per line.

        Raises:
            UserError: the file cannot be written.
        """
        lines = (json.dumps({"name": name, "reason": reason}) + "\n" for name, reason in self.reasons.items())
        write_text(Path(path), "".join(lines))


@dataclass(frozen=True)
class Decoding:
    """How the images of a source are decoded.

    Attributes:
        workers: Number of processes that decode images; 0 decodes in this process.
        bits: Number of bits that the values of 16-bit images use; a `Preprocess` has its own.
        errors: Records unreadable images; the default stops the run if more than 10 % are unreadable.
    """

    workers: int = 0
    bits: int = 16
    errors: DecodeErrors = field(default_factory=DecodeErrors)
