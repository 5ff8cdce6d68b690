"""`fullrank neighbours`: what lies close together in a set of images, and what lies alone."""

from functools import partial
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from fullrank.cli.flags import Model, call
from fullrank.cli.model_flags import DeviceFlags, ModelFlags, ModelOptions, ReadingFlags, check_new, load_model
from fullrank.evaluation.neighbours import TABLES
from fullrank.evaluation.neighbours import neighbours as find
from fullrank.images.reading import USUAL, Device
from fullrank.run.terminal import stderr


def neighbours(
    model: Model,
    /,
    *,
    data: str | None = None,
    out: Path | None = None,
    overwrite: bool = False,
    query: tuple[Path, ...] = (),
    split: str | None = None,
    k: Annotated[int, tyro.conf.arg(aliases=["-k"])] = 10,
    duplicates: float = 0.98,
    reading: ReadingFlags = USUAL,
    device: DeviceFlags = Device(),  # noqa: B008  frozen
    network: ModelFlags = ModelOptions(),  # noqa: B008  frozen
) -> None:
    """Find nearest neighbours, near-duplicates (also across train and test), outliers and likely label errors of a set
    of images.

    All splits of the source are searched together. The terminal shows the first of each kind.

    Args:
        model: a run directory, RUN@STEP, timm:NAME, timm-untrained:NAME, hf-hub:OWNER/NAME or file:PATH.
        data: source of the images; by default that of the run.
        out: write a folder: images.parquet, duplicates.parquet and, with --query, queries.parquet.
        overwrite: replace existing files.
        query: image files whose neighbours are asked for.
        split: name of the split to search; by default all splits.
        k: number of neighbours of each image.
        duplicates: least correlation of the pixels of near-duplicates, on thumbnails of 16x16 pixels.
        reading: how the images are read.
        device: where the network runs.
        network: the network of a file that another library wrote.
    """
    for name in TABLES:
        check_new(out and out / f"{name}.parquet", overwrite=overwrite)
    options = {"split": split, "k": k, "duplicates": duplicates, "reading": reading, "device": device}
    found = find(load_model(model, network), data, query=list(query) or None, notify=stderr().print, **options)
    Console().print(found)
    if out is not None:
        found.save(out, overwrite=overwrite)


run = partial(call, neighbours, command="neighbours")
