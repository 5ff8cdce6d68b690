"""Flags of the commands that take a MODEL: its images, and how they are read."""

from dataclasses import dataclass
from typing import Annotated

import tyro


@dataclass(frozen=True)
class ReadOptions:
    """Flags that several commands share: how images are read, and where the backbone runs."""

    data: str | None = None
    """Source of the images: digits, a path, folder:PATH, parquet:PATH or hf:NAME; by default the source of the run."""
    accelerator: str = "auto"
    """auto, cpu, cuda or mps; auto uses a GPU if there is a GPU."""
    workers: int = 0
    """Number of processes that decode images; 0 decodes in the main process."""
    max_error_fraction: float = 0.1
    """Largest share of unreadable images; the command stops if there are more."""


ReadFlags = Annotated[ReadOptions, tyro.conf.arg(name="")]
"""The fields of `ReadOptions` as flags without a prefix."""
