"""`fullrank export`: write the backbone as safetensors or ONNX, or as a folder for the Hugging Face hub."""

from functools import partial
from pathlib import Path

from fullrank.cli.flags import Model, call
from fullrank.cli.model_flags import ModelFlags, ModelOptions, load_model
from fullrank.models.export import export as export_model
from fullrank.run.terminal import stderr


def export(
    model: Model,
    /,
    *,
    out: Path,
    push_to_hub: str | None = None,
    network: ModelFlags = ModelOptions(),  # noqa: B008  frozen
    overwrite: bool = False,
) -> None:
    """Write the backbone to FILE.safetensors or FILE.onnx, with its preprocessing and class names as metadata, or to a
    folder for the hub.

    `fullrank.load("file:FILE.safetensors")` loads the file; timm alone can load the weights of a backbone with a
    standard stem. A folder
    has model.safetensors, config.json and a model card with recipe, scores and spectrum:
    `timm.create_model("local-dir:FOLDER", pretrained=True)`.

    Args:
        model: a run directory, RUN@STEP, timm:NAME, timm-untrained:NAME, hf-hub:OWNER/NAME or file:PATH.
        out: a file that ends in .safetensors or .onnx, or a folder.
        push_to_hub: upload the folder to this repository, OWNER/NAME; a new repository is private.
        overwrite: replace the file if it exists.
        network: the network of a file that another library wrote.
    """
    loaded = load_model(model, network)
    export_model(loaded, out, push_to_hub=push_to_hub, overwrite=overwrite, notify=stderr().print)


run = partial(call, export, command="export")
