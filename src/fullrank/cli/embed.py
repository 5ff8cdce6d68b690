"""`fullrank embed`: write the embeddings of images to Parquet."""

from functools import partial
from pathlib import Path

from fullrank.cli.flags import Model, call
from fullrank.cli.sources import ReadFlags, ReadOptions, resolve_device, resolve_source
from fullrank.embed import embed as embed_images
from fullrank.errors import UserError
from fullrank.images import DecodeErrors, open_images
from fullrank.loading import load
from fullrank.terminal import stderr


def embed(
    model: Model,
    /,
    *,
    out: Path,
    split: str | None = None,
    batch_size: int = 512,
    read: ReadFlags = ReadOptions(),  # noqa: B008  frozen
    overwrite: bool = False,
) -> None:
    """Write the name, the label and the embedding of every image; a missing label is null.

    Args:
        model: a run directory, RUN@STEP, timm:NAME or file:PATH.
        out: the Parquet file to write.
        split: name of the split; required if the source has several splits.
        batch_size: images per forward pass.
        overwrite: replace the file if it exists.
        read: how images are read, and where the backbone runs.
    """
    loaded = load(model)
    source, _ = resolve_source(loaded, read.data)
    splits = open_images(source, split=split)
    if len(splits) > 1:
        raise UserError(f"{source} has the splits {', '.join(splits)}; choose one with --split")
    (images,) = splits.values()
    device, decode_errors = resolve_device(read.accelerator), DecodeErrors(max_error_fraction=read.max_error_fraction)
    rows = embed_images(
        loaded.backbone.to(device),
        images,
        loaded.preprocess,
        out,
        batch_size=batch_size,
        device=device,
        workers=read.workers,
        decode_errors=decode_errors,
        overwrite=overwrite,
    )
    stderr().print(f"{rows:,} embeddings of {images.source}: {out}")
    for name, reason in decode_errors.reasons.items():
        stderr().print(f"skipped {name}: {reason}")


run = partial(call, embed, command="embed")
