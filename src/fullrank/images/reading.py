"""How a source of images is read, and on which device and by how many processes."""

from dataclasses import fields, replace
from typing import Annotated, Literal

from pydantic import Field

from fullrank.config import Share, config

Labels = Literal["auto", "none", "folders"]

MAX_PIXELS = 89_478_485  # Pillow's own limit
MAX_EXPANSION = 100


@config
class Reading:
    """How a source of images is read: its splits, the columns of a table, and what is refused.

    Attributes:
        train: Name of the training split. None: 'train', or a random 80 % if the source has no named splits.
        test: Name of the held-out split. None: 'test' or 'validation', or a random 20 % if the source has no named
            splits.
        labels: auto: folders and label columns that look like labels; folders: the top folders are the classes; none:
            no labels.
        image_column: The image column of a table. None: the only column of images, or the only column of bytes.
        label_column: The label column of a table, or the key of the .json members of tar shards. None: 'label',
            'labels', 'fine_label', the only ClassLabel column, or 'class', 'category' …
        label_separator: The text between several labels in one cell of the label column, such as '|'. None: a cell is
            one label, or a list of labels.
        group_column: The column of a table whose equal values belong together, such as patients or scenes: held-out
            images never split a group.
        split_column: The column of a table that names the split of each image, instead of the splits of the source.
            None: the column 'split' of a table of paths without splits of its own, if there is one.
        follow_links: Follow symbolic links that lead out of a folder of images.
        max_pixels: Images with more pixels are not read: a small file can decompress to any number of pixels. The
            default is Pillow's limit.
        max_expansion: Parquet files that expand to more than this many times their size (and to more than 256 MiB) are
            not read.
    """

    train: str | None = None
    test: str | None = None
    labels: Labels = "auto"
    image_column: str | None = None
    label_column: str | None = None
    label_separator: str | None = None
    group_column: str | None = None
    split_column: str | None = None
    follow_links: bool = False
    max_pixels: Annotated[int, Field(ge=1, le=10**10)] = MAX_PIXELS
    max_expansion: Annotated[int, Field(ge=1, le=10**6)] = MAX_EXPANSION

    def over(self, base: "Reading") -> "Reading":
        """Return `base` with the fields of this reading that are not their defaults.

        >>> Reading(label_column="breed").over(Reading(test="val", label_column="label")).label_column
        'breed'
        """
        given = {f.name: value for f in fields(self) if (value := getattr(self, f.name)) != getattr(USUAL, f.name)}
        return replace(base, **given)


USUAL = Reading()
"""How a source is read unless somebody says otherwise."""


@config
class Device:
    """Where a network runs, and how images come to it.

    Attributes:
        accelerator: auto, cpu, cuda or mps; auto uses a GPU if there is one.
        workers: Number of processes that decode images; 0 decodes in the main process.
        batch_size: Images per forward pass.
        max_error_fraction: Largest share of unreadable images; more of them stop the work.
    """

    accelerator: str = "auto"
    workers: Annotated[int, Field(ge=0, le=256)] = 0
    batch_size: Annotated[int, Field(ge=1)] = 256
    max_error_fraction: Share = 0.1
