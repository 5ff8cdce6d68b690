"""Flags of the commands that take a MODEL: its images, and how they are read."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from fullrank.arguments import check_source
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
    labels: Annotated[Literal["auto", "none", "folders"] | None, tyro.conf.arg(name="data.labels")] = None
    """auto, none or folders, as in fullrank pretrain; by default that of the run."""
    image_column: Annotated[str | None, tyro.conf.arg(name="data.image_column")] = None
    """The image column of a table."""
    label_column: Annotated[str | None, tyro.conf.arg(name="data.label_column")] = None
    """The label column of a table, or the key of the .json members of tar shards."""
    label_separator: Annotated[str | None, tyro.conf.arg(name="data.label_separator")] = None
    """The text between several labels in one cell of the label column, such as '|'."""
    group_column: Annotated[str | None, tyro.conf.arg(name="data.group_column")] = None
    """The column of a table whose equal values belong together, such as patients."""
    split_column: Annotated[str | None, tyro.conf.arg(name="data.split_column")] = None
    """The column of a table that names the split of each image."""
    follow_links: Annotated[bool, tyro.conf.arg(name="data.follow_links")] = False
    """Follow symbolic links that lead out of a folder of images."""
    max_pixels: Annotated[int | None, tyro.conf.arg(name="data.max_pixels")] = None
    """Images with more pixels are not read."""
    max_expansion: Annotated[int | None, tyro.conf.arg(name="data.max_expansion")] = None
    """Parquet files that expand to more than this many times their size are not read."""

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
        names = ("labels", "image_column", "label_column", "label_separator", "group_column", "split_column")
        names += ("follow_links", "max_pixels", "max_expansion")
        given = {name: value for name in names if (value := getattr(self, name)) not in (None, False)}
        if not given or (self.data is None and model.recipe is None):
            return self.data
        run = model.recipe.data if model.recipe else DataConfig()
        return replace(run if self.data is None else DataConfig(source=self.data), **given)


ReadFlags = Annotated[ReadOptions, tyro.conf.arg(name="")]
"""The fields of `ReadOptions` as flags without a prefix."""
