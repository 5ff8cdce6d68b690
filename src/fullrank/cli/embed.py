"""`fullrank embed`: write the embeddings of images to a Parquet, CSV or NumPy file."""

from functools import partial
from pathlib import Path
from typing import Annotated

import tyro

from fullrank.cli.flags import Model, call
from fullrank.cli.model_flags import ModelFlags, ModelOptions, load_model
from fullrank.images.reading import USUAL, Device, Reading
from fullrank.models.embed import embed as embed_images
from fullrank.run.terminal import stderr


def embed(
    model: Model,
    /,
    *,
    out: Path,
    data: str | None = None,
    split: str | None = None,
    reading: Annotated[Reading, tyro.conf.arg(name="data")] = USUAL,
    device: Annotated[Device, tyro.conf.arg(name="")] = Device(),  # noqa: B008  frozen
    network: ModelFlags = ModelOptions(),  # noqa: B008  frozen
    overwrite: bool = False,
) -> None:
    """Write the name, the label, the class and the embedding of every image; a missing label is null.

    Args:
        model: a run directory, RUN@STEP, timm:NAME, timm-untrained:NAME, hf-hub:OWNER/NAME or file:PATH.
        out: the file to write; its suffix determines the format: .parquet, .csv, .npz (arrays embeddings, labels,
            names, classes) or .npy.
        data: source of the images, such as digits, a path or hf:NAME; by default that of the run.
        split: name of the split; required if the source has several splits.
        reading: how images are read.
        device: where the backbone runs.
        overwrite: replace the file if it exists.
        network: the network of a file that another library wrote.
    """
    options = {"reading": reading, "device": device, "overwrite": overwrite}
    embed_images(load_model(model, network), data, out, split=split, notify=stderr().print, **options)


run = partial(call, embed, command="embed")
