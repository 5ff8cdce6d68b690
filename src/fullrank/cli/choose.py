"""`fullrank choose`: rank models on images without labels, and see whether labels agree."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import tyro

from fullrank.arguments import CHOICE_SUFFIXES, check_source
from fullrank.cli.flags import call
from fullrank.cli.heavy import heavy_imports
from fullrank.cli.sources import ReadFlags, ReadOptions
from fullrank.errors import UserError, printable
from fullrank.files import check_suffix
from fullrank.terminal import stderr

Models = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="MODEL MODEL [MODEL ...]")]
"""Two or more models."""


def choose(
    models: Models,
    /,
    *,
    labelled: str | None = None,
    images: int = 1000,
    split: str | None = None,
    out: tuple[Path, ...] = (),
    seed: int = 0,
    batch_size: int = 256,
    read: ReadFlags = ReadOptions(),  # noqa: B008  frozen
    overwrite: bool = False,
) -> None:
    """Rank models on your images without labels: measures with 95 % intervals, and a choice only where the intervals
    allow one.

    Args:
        models: run directories, RUN@STEP, timm:NAME, timm-untrained:NAME, hf-hub:OWNER/NAME or file:PATH; two or more.
        labelled: source of labelled images, by which the order is checked. Without --data, and if the first model is no
            run, they are also the images that are measured.
        images: number of images to measure, chosen at random.
        split: name of the split to choose from; by default all splits.
        out: write a page to FILE.html, all numbers to FILE.json, a table to FILE.csv; one or several files.
        seed: seed of the sample, of the views and of the intervals.
        batch_size: images per forward pass.
        overwrite: replace existing files.
        read: how images are read, and where the backbone runs. With --labelled, --data.labels and --data.label_column
            describe its images.
    """
    if len(models) < 2:
        raise UserError(
            f"choose compares models; got {len(models)}, expected two or more: fullrank choose runs/a runs/b --data photos"
        )
    for model in models:
        read.check(model)
    if labelled is not None:
        check_source(labelled)
    for path in out:
        check_suffix(path, CHOICE_SUFFIXES)
        if path.exists() and not overwrite:
            raise UserError(f"{path} exists already; choose another name, or replace it with --overwrite")
    with heavy_imports():
        from rich.console import Console

        from fullrank.evaluation.choosing import choose as rank
        from fullrank.images import DecodeErrors
        from fullrank.models import load
        from fullrank.report.choosing import summary_tables, write_choice

    console, first = stderr(), load(models[0])
    plain = read
    if labelled is not None:
        plain = replace(read, reading=replace(read.reading, labels="auto", label_column=None, label_separator=None))
    errors = DecodeErrors(max_error_fraction=read.max_error_fraction)
    with console.status("") as status:
        choice = rank(
            [first, *models[1:]],
            plain.images(first),
            labelled=None if labelled is None else replace(read, data=labelled).images(first),
            images=images,
            split=split,
            seed=seed,
            batch_size=batch_size,
            device=read.accelerator,
            workers=read.workers,
            decode_errors=errors,
            progress=lambda line: status.update(printable(line)),
        )
        for path in out:
            write_choice(choice, path, overwrite=overwrite)
    for name, reason in errors.reasons.items():
        console.print(printable(f"skipped {name}: {reason}"), markup=False, soft_wrap=True)
    screen = Console()
    for table in summary_tables(choice):
        screen.print(table)
    lines = [choice.verdict, *choice.remarks, *([choice.labelled.verdict(choice)] if choice.labelled else [])]
    for line in lines:
        screen.print(printable(line), markup=False, highlight=False, soft_wrap=True)
    for path in out:
        console.print(f"written: {printable(str(path))}", markup=False, soft_wrap=True)


run = partial(call, choose, command="choose")
