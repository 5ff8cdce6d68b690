"""`fullrank embed`: the embeddings of a set of images, to Parquet."""

from collections.abc import Sequence
from pathlib import Path

from fullrank.cli.flags import Model, call
from fullrank.cli.sources import Reading, ReadingFlags, device_of, source_of
from fullrank.embed import embed as write
from fullrank.errors import UserError
from fullrank.images import DecodeErrors, open_images
from fullrank.loading import load
from fullrank.terminal import stderr


def run(arguments: Sequence[str]) -> None:
    """Parse and embed."""
    call(embed, arguments, verb="embed")


def embed(
    model: Model,
    /,
    *,
    out: Path,
    split: str | None = None,
    batch: int = 512,
    reading: ReadingFlags = Reading(),  # noqa: B008  frozen
    overwrite: bool = False,
) -> None:
    """Write name, label and embedding of every image, streaming; a label is null where there is none.

    Args:
        model: a run directory, RUN@STEP, timm:NAME or file:PATH.
        out: the Parquet file.
        split: name of the split; needed where there are several.
        batch: images at a time.
        overwrite: replace the file.
        reading: how images are read, and where the backbone runs.
    """
    loaded = load(model)
    source, _ = source_of(loaded, reading.data)
    splits = open_images(source, split=split)
    if len(splits) > 1:
        raise UserError(f"{source} has the splits {', '.join(splits)}; choose one with --split")
    (images,) = splits.values()
    device, decode_errors = device_of(reading.accelerator), DecodeErrors(max_error_fraction=reading.max_error_fraction)
    rows = write(
        loaded.backbone.to(device),
        images,
        loaded.preprocess,
        out,
        batch=batch,
        device=device,
        workers=reading.workers,
        decode_errors=decode_errors,
        overwrite=overwrite,
    )
    stderr().print(f"{rows:,} embeddings of {images.source}: {out}")
    for name, reason in decode_errors.reasons.items():
        stderr().print(f"skipped {name}: {reason}")
