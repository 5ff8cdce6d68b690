"""`fullrank export`: write the backbone as safetensors for timm, or as ONNX, depending on the suffix of the file."""

from functools import partial
from pathlib import Path

from fullrank.arguments import EXPORT_SUFFIXES, check_suffix, parse_model
from fullrank.cli.flags import Model, call
from fullrank.cli.heavy import heavy_imports
from fullrank.cli.model_flags import ModelFlags, ModelOptions, load_model
from fullrank.terminal import stderr


def export(
    model: Model,
    /,
    *,
    out: Path,
    network: ModelFlags = ModelOptions(),  # noqa: B008  frozen
    overwrite: bool = False,
) -> None:
    """Write the backbone to FILE.safetensors or FILE.onnx, with its preprocessing and class names as metadata.

    `fullrank.load("file:FILE.safetensors")` loads the file; timm alone can load the weights of a backbone with a standard stem.

    Args:
        model: a run directory, RUN@STEP, timm:NAME, timm-untrained:NAME, hf-hub:OWNER/NAME or file:PATH.
        out: the file; its suffix, .safetensors or .onnx, determines the format.
        overwrite: replace the file if it exists.
        network: the network of a file that another library wrote.
    """
    check_suffix(out, EXPORT_SUFFIXES)
    parse_model(model)
    with heavy_imports():
        from fullrank.exporting import export as export_model

    export_model(load_model(model, network), out, overwrite=overwrite, notify=partial(stderr().print, markup=False, soft_wrap=True))


run = partial(call, export, command="export")
