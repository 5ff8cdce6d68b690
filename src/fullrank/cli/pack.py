"""`fullrank pack`: write all images of a source at one size into one file."""

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import tyro

from fullrank.arguments import check_source
from fullrank.cli.flags import call
from fullrank.cli.heavy import heavy_imports
from fullrank.errors import UserError, printable
from fullrank.files import check_suffix
from fullrank.terminal import stderr


def pack(
    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")],
    /,
    *,
    out: Path,
    size: int = 256,
    channels: int = 0,
    bits: int = 0,
    workers: int = -1,
    max_error_fraction: float = 0.1,
    labels: Annotated[Literal["auto", "none", "folders"], tyro.conf.arg(name="data.labels")] = "auto",
    image_column: Annotated[str | None, tyro.conf.arg(name="data.image_column")] = None,
    label_column: Annotated[str | None, tyro.conf.arg(name="data.label_column")] = None,
    group_column: Annotated[str | None, tyro.conf.arg(name="data.group_column")] = None,
    split_column: Annotated[str | None, tyro.conf.arg(name="data.split_column")] = None,
    follow_links: Annotated[bool, tyro.conf.arg(name="data.follow_links")] = False,
    overwrite: bool = False,
) -> None:
    """Write all images of a source at one size into one file, which is a source again and needs no decoding.

    Args:
        source: source of the images: digits, a path (folder, Parquet, CSV, tar), folder:PATH, parquet:PATH or hf:NAME.
        out: the file to write, .safetensors.
        size: side in pixels: the shorter side is resized to it, and the centre is cropped.
        channels: channels of the packed images; 0: those of the images.
        bits: bits that the values of 16-bit images use; 0: found from a sample.
        workers: number of processes that decode images; -1: CPU cores minus one.
        max_error_fraction: largest share of unreadable images, which are left out; the command stops if there are more.
        labels: auto, none or folders, as in fullrank pretrain.
        image_column: the column of images or paths of a table.
        label_column: the label column of a table.
        group_column: the column of a table whose equal values belong together, such as patients.
        split_column: the column of a table that names the split of each image.
        follow_links: follow symbolic links that lead out of a folder of images.
        overwrite: replace the file if it exists.
    """
    check_suffix(out, (".safetensors",))
    check_source(source)
    if not 1 <= size <= 4096:
        raise UserError(f"--size {size} is no side in pixels, expected 1 to 4096")
    with heavy_imports():
        from fullrank.images import DecodeErrors
        from fullrank.images import pack as pack_images
        from fullrank.run.data import resolve_num_workers

    console, decode_errors = stderr(), DecodeErrors(max_error_fraction=max_error_fraction)
    pack_images(
        source,
        out=out,
        size=size,
        channels=channels,
        bits=bits,
        workers=resolve_num_workers(workers),
        decode_errors=decode_errors,
        overwrite=overwrite,
        notify=lambda line: console.print(printable(line), markup=False, soft_wrap=True),
        labels=labels,
        image=image_column,
        label=label_column,
        group=group_column,
        column_of_splits=split_column,
        follow_links=follow_links,
    )
    for name, reason in decode_errors.reasons.items():
        console.print(printable(f"skipped {name}: {reason}"), markup=False, soft_wrap=True)


run = partial(call, pack, command="pack")
