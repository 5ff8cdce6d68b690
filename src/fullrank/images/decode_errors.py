"""How many images could not be read, which, and when that is too many."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from fullrank.distributed import all_gather_object
from fullrank.errors import UserError
from fullrank.images.decode_error import ImageDecodeError


@dataclass
class DecodeErrors:
    """Counts unreadable images and stops when their share passes `max_error_fraction`.

    Workers send their failures back with the batch, so only the process that iterates writes here. The share (failed reads of
    all reads) is judged from the `minimum`-th read on, and at the end of every pass over the images however short it was.

    >>> decode_errors = DecodeErrors(max_error_fraction=0.5)
    >>> decode_errors.add(3, [ImageDecodeError("cat.jpg", "empty file")])
    >>> decode_errors.finish()
    >>> decode_errors.reasons
    {'cat.jpg': 'empty file'}
    """

    max_error_fraction: float = 0.1
    minimum: int = 100
    tried: int = 0
    failed: int = 0
    reasons: dict[str, str] = field(default_factory=dict)

    def add(self, tried: int, failures: Iterable[ImageDecodeError] = ()) -> None:
        """Record `tried` reads, of which `failures` failed.

        Raises:
            UserError: more than the tolerated share failed.
        """
        failures = list(failures)
        self.tried += tried
        self.failed += len(failures)
        self.reasons |= {bad.name: bad.reason for bad in failures}
        if self.tried >= self.minimum:
            self.finish()

    def finish(self) -> None:
        """Judge the share now; called at the end of a pass.

        Raises:
            UserError: more than the tolerated share failed.
        """
        if self.failed > self.max_error_fraction * self.tried:
            name, reason = next(iter(self.reasons.items()))
            raise UserError(
                f"{self.failed} of {self.tried} images could not be read, more than the tolerated {self.max_error_fraction:.0%}; "
                f"the first is '{name}': {reason}; remove or repair them, or tolerate a larger share"
            )

    def exchange(self) -> None:
        """Learn the names and reasons of all processes, each of which judges the share of its own reads; all call this together."""
        for reasons in all_gather_object(self.reasons):
            self.reasons |= reasons

    def write(self, path: Path | str) -> None:
        """Write `decode_errors.jsonl`: one `{"name": …, "reason": …}` a line."""
        lines = (json.dumps({"name": name, "reason": reason}) + "\n" for name, reason in self.reasons.items())
        Path(path).write_text("".join(lines))
