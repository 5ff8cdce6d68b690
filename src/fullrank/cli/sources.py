"""Flags of the commands that take a MODEL: its images, and how they are read."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from fullrank.arguments import check_source
from fullrank.images.reading import USUAL, Reading
from fullrank.models import parse_model
from fullrank.recipes import DataConfig, read_recipe

if TYPE_CHECKING:
    from fullrank.models import Model


@dataclass(frozen=True)
class ReadOptions:
    """Flags that several commands share: how images are read, and where the backbone runs."""

    data: str | None = None
    """Source of the images: digits, a path (folder, Parquet, CSV), folder:PATH, parquet:PATH or hf:NAME; by default
    that of the run."""
    accelerator: str = "auto"
    """auto, cpu, cuda or mps; auto uses a GPU if there is a GPU."""
    workers: int = 0
    """Number of processes that decode images; 0 decodes in the main process."""
    max_error_fraction: float = 0.1
    """Largest share of unreadable images; the command stops if there are more."""
    reading: Annotated[Reading, tyro.conf.arg(name="data")] = USUAL
    """How the images are read; what is not given is as in the run, or as usual."""

    def check(self, model: str) -> None:
        """Check that a MODEL and the source of the images exist, before anything heavy is imported.

        Raises:
            UserError: one does not.
        """
        kind, name, _ = parse_model(model)
        if kind == "run":
            read_recipe(Path(name) / "recipe.json")
        if self.data is not None:
            check_source(self.data)

    def images(self, model: "Model") -> str | DataConfig | None:
        """Return the source, with how to read it if a flag says so; None: that of the run."""
        if self.reading == USUAL or (self.data is None and model.recipe is None):
            return self.data
        run = model.recipe.data if model.recipe and self.data is None else DataConfig(source=self.data or "")
        return replace(run, reading=self.reading.over(run.reading))


ReadFlags = Annotated[ReadOptions, tyro.conf.arg(name="")]
"""The fields of `ReadOptions` as flags without a prefix."""


def of_any(reading: Reading) -> Reading:
    """Return what a reading says about any source: what is refused, not splits, columns or labels."""
    return Reading(
        follow_links=reading.follow_links, max_pixels=reading.max_pixels, max_expansion=reading.max_expansion
    )
