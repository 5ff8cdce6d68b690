"""`fullrank embed`: write the embeddings of images to a Parquet, CSV or NumPy file."""

from functools import partial
from pathlib import Path

from fullrank.cli.flags import Model, call
from fullrank.cli.model_flags import ModelFlags, ModelOptions, load_model
from fullrank.cli.sources import ReadFlags, ReadOptions
from fullrank.files import check_suffix
from fullrank.images import DecodeErrors
from fullrank.models.embed import SUFFIXES
from fullrank.models.embed import embed as embed_images
from fullrank.terminal import stderr


def embed(
    model: Model,
    /,
    *,
    out: Path,
    split: str | None = None,
    batch_size: int = 512,
    read: ReadFlags = ReadOptions(),  # noqa: B008  frozen
    network: ModelFlags = ModelOptions(),  # noqa: B008  frozen
    overwrite: bool = False,
) -> None:
    """Write the name, the label, the class and the embedding of every image; a missing label is null.

    Args:
        model: a run directory, RUN@STEP, timm:NAME, timm-untrained:NAME, hf-hub:OWNER/NAME or file:PATH.
        out: the file to write; its suffix determines the format: .parquet, .csv, .npz (arrays embeddings, labels,
            names, classes) or .npy.
        split: name of the split; required if the source has several splits.
        batch_size: images per forward pass.
        overwrite: replace the file if it exists.
        read: how images are read, and where the backbone runs.
        network: the network of a file that another library wrote.
    """
    check_suffix(out, SUFFIXES)
    read.check(model)
    console, decode_errors = stderr(), DecodeErrors(max_error_fraction=read.max_error_fraction)
    loaded = load_model(model, network)
    embed_images(
        loaded,
        read.images(loaded),
        out=out,
        split=split,
        batch_size=batch_size,
        device=read.accelerator,
        workers=read.workers,
        decode_errors=decode_errors,
        overwrite=overwrite,
        notify=partial(console.print, markup=False, soft_wrap=True),
    )


run = partial(call, embed, command="embed")
