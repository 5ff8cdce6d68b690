"""`fullrank export`: the backbone as safetensors for timm, or as ONNX, by the name of the file."""

from collections.abc import Sequence
from pathlib import Path

from fullrank.cli.flags import Model, call
from fullrank.errors import UserError
from fullrank.export import export_onnx, export_weights
from fullrank.loading import load, metadata_of
from fullrank.terminal import stderr


def run(arguments: Sequence[str]) -> None:
    """Parse and export."""
    call(export, arguments, verb="export")


def export(model: Model, /, *, out: Path, overwrite: bool = False) -> None:
    """Write the backbone: FILE.safetensors, which `fullrank.load("file:FILE")` reads and, for standard stems, plain timm; or FILE.onnx.

    Args:
        model: a run directory, RUN@STEP or timm:NAME.
        out: the file; its ending decides the format.
        overwrite: replace the file.
    """
    console = stderr()
    if out.suffix not in (".safetensors", ".onnx"):
        raise UserError(f"--out {out} ends in '{out.suffix}', expected .safetensors or .onnx")
    loaded = load(model)
    if out.suffix == ".onnx":
        difference = export_onnx(loaded.backbone, out, loaded.preprocess.channels, loaded.preprocess.size, overwrite=overwrite)
        console.print(f"{out}: ONNX Runtime and torch differ by {difference:.1e} at most")
        return
    export_weights(loaded.backbone, out, metadata_of(loaded), overwrite=overwrite)
    arguments = "".join(f", {name}={value!r}" for name, value in loaded.spec.arguments.items())
    channels = "" if loaded.preprocess.channels == 3 else f", in_chans={loaded.preprocess.channels}"
    console.print(f"{out}: fullrank.load('file:{out}')")
    if loaded.spec.stem == "standard" and loaded.spec.last_residual:
        console.print(f"or timm.create_model('{loaded.spec.name}', num_classes=0{channels}{arguments}).load_state_dict(…)")
