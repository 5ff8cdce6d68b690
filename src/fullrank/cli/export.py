"""`fullrank export`: write the backbone as safetensors for timm, or as ONNX, depending on the suffix of the file."""

from functools import partial
from pathlib import Path

from fullrank.cli.flags import Model, call
from fullrank.errors import UserError
from fullrank.export import export_onnx, export_weights
from fullrank.loading import export_metadata, load
from fullrank.terminal import stderr


def export(model: Model, /, *, out: Path, overwrite: bool = False) -> None:
    """Write the backbone to FILE.safetensors or FILE.onnx.

    `fullrank.load("file:FILE.safetensors")` loads the file; timm alone can load the weights of a backbone with a standard stem.

    Args:
        model: a run directory, RUN@STEP or timm:NAME.
        out: the file; its suffix, .safetensors or .onnx, determines the format.
        overwrite: replace the file if it exists.
    """
    console = stderr()
    if out.suffix not in (".safetensors", ".onnx"):
        raise UserError(f"--out {out} ends in '{out.suffix}', expected .safetensors or .onnx")
    loaded = load(model)
    if out.suffix == ".onnx":
        difference = export_onnx(loaded.backbone, out, loaded.preprocess.channels, loaded.preprocess.size, overwrite=overwrite)
        console.print(f"{out}: ONNX Runtime and torch differ by at most {difference:.1e}")
        return
    export_weights(loaded.backbone, out, export_metadata(loaded), overwrite=overwrite)
    arguments = "".join(f", {name}={value!r}" for name, value in loaded.spec.arguments.items())
    channels = "" if loaded.preprocess.channels == 3 else f", in_chans={loaded.preprocess.channels}"
    console.print(f"{out}: fullrank.load('file:{out}')")
    if loaded.spec.stem == "standard" and loaded.spec.last_residual:
        console.print(f"or timm.create_model('{loaded.spec.name}', num_classes=0{channels}{arguments}).load_state_dict(…)")


run = partial(call, export, command="export")
