"""`fullrank choose`: rank models on images without labels, and see whether labels agree."""

from functools import partial
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from fullrank.cli.flags import call
from fullrank.cli.model_flags import DeviceFlags, ReadingFlags, check_new
from fullrank.evaluation.choose import choose as rank
from fullrank.images.reading import USUAL, Device
from fullrank.run.terminal import stderr

# Two or more models.
Models = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="MODEL MODEL [MODEL ...]")]


def choose(
    models: Models,
    /,
    *,
    data: str | None = None,
    labelled: str | None = None,
    images: int = 1000,
    split: str | None = None,
    out: tuple[Path, ...] = (),
    overwrite: bool = False,
    seed: int = 0,
    reading: ReadingFlags = USUAL,
    device: DeviceFlags = Device(),  # noqa: B008  frozen
) -> None:
    """Rank models on your images without labels: measures with 95 % intervals, and a choice only where the intervals
    allow one.

    Args:
        models: run directories, RUN@STEP, timm:NAME, timm-untrained:NAME, hf-hub:OWNER/NAME or file:PATH; two or more.
        data: source of the images; by default that of the first run, or the labelled images.
        labelled: source of labelled images, by which the order is checked; --data.label_column describes it.
        images: number of images to measure, chosen at random.
        split: name of the split to choose from; by default all splits.
        out: write all numbers to FILE.json, a table to FILE.csv; one or several files.
        overwrite: replace existing files.
        seed: seed of the sample, of the views and of the intervals.
        reading: how the images are read.
        device: where the networks run.
    """
    for path in out:
        check_new(path, overwrite=overwrite)
    numbers = {"images": images, "split": split, "seed": seed, "device": device, "notify": stderr().print}
    choice = rank(models, data, labelled=labelled, reading=reading, **numbers)
    Console().print(choice)
    for path in out:
        choice.save(path, overwrite=overwrite)


run = partial(call, choose, command="choose")
