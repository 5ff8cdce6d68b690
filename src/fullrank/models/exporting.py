"""Export a backbone: its weights as safetensors, which timm can load, the whole network as ONNX, or a folder for the
hub.

All contain the preprocessing.
"""

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fullrank.arguments import check_export
from fullrank.errors import UserError
from fullrank.files import atomic_write
from fullrank.models import load
from fullrank.models.model import ModelLike
from fullrank.models.weight_files import export_metadata
from fullrank.training.checkpoints import to_safetensors


def export(
    model: ModelLike,
    out: Path | str,
    *,
    push_to_hub: str | None = None,
    overwrite: bool = False,
    notify: Callable[[str], Any] = lambda line: None,
) -> Path:
    """Write the backbone of a model to FILE.safetensors or FILE.onnx, or to a folder for the Hugging Face hub, and
    return the path.

    A folder has model.safetensors, config.json and a model card with recipe, scores and spectrum; plain timm loads it:
    `timm.create_model("local-dir:FOLDER", pretrained=True)`. The weights and the ONNX file hold the preprocessing
    (channels, size, mean, std) and the names of the classes as metadata. `fullrank.load("file:FILE")` loads a
    safetensors file; timm alone can load the weights of a backbone with a standard stem.

    Args:
        model: a MODEL (see `load`), a `Run`, or a loaded model.
        out: the file, whose suffix determines the format; a path without a suffix is a folder.
        push_to_hub: upload the folder to this repository, OWNER/NAME; a new repository is private.
        overwrite: replace an existing file.
        notify: receives a line that says how to load the file.

    Raises:
        UserError: the model does not exist, the suffix is unknown, the file exists or cannot be written, or the upload
            fails.
    """
    suffix = check_export(out)
    if suffix and push_to_hub is not None:
        raise UserError(f"push_to_hub is '{push_to_hub}', but out is the file {out}; give a folder")
    path, loaded = Path(out), load(model)
    if not suffix:
        from fullrank.models.hub_folder import push_to_hub as push  # here, because hub_folder uses `export_weights`
        from fullrank.models.hub_folder import write_hub_folder

        write_hub_folder(loaded, path, overwrite=overwrite, notify=notify)
        if push_to_hub is not None:
            notify(f"uploaded: {push(path, push_to_hub)}")
        return path
    if suffix == ".onnx":
        preprocess = loaded.preprocess
        difference = export_onnx(
            loaded.backbone, path, preprocess.channels, preprocess.size, export_metadata(loaded), overwrite=overwrite
        )
        notify(f"{path}: ONNX Runtime and torch differ by at most {difference:.1e}")
        return path
    export_weights(loaded.backbone, path, export_metadata(loaded), overwrite=overwrite)
    arguments = "".join(f", {name}={value!r}" for name, value in loaded.spec.arguments.items())
    channels = "" if loaded.preprocess.channels == 3 else f", in_chans={loaded.preprocess.channels}"
    notify(f"{path}: fullrank.load('file:{path}')")
    if loaded.spec.stem == "standard" and loaded.spec.last_residual:
        notify(f"or timm.create_model('{loaded.spec.name}', num_classes=0{channels}{arguments}).load_state_dict(…)")
    return path


def export_weights(
    backbone: nn.Module, path: Path | str, metadata: Mapping[str, str], *, overwrite: bool = False
) -> None:
    """Write parameters and buffers to one safetensors file.

    A timm network with the standard stem can be loaded without fullrank:
    `timm.create_model(name, num_classes=0, **arguments).load_state_dict(safetensors.torch.load_file(path))`.

    Args:
        backbone: the network; it is not changed.
        path: the file.
        metadata: texts to store in the file: name, and arguments, stem and preprocess as JSON.
        overwrite: replace an existing file.

    Raises:
        UserError: the file exists, or cannot be written.

    >>> import tempfile
    >>> from safetensors.torch import load_file
    >>> path = Path(tempfile.mkdtemp()) / "linear.safetensors"
    >>> export_weights(nn.Linear(3, 2), path, {"name": "linear"})
    >>> {name: tuple(tensor.shape) for name, tensor in load_file(path).items()}
    {'bias': (2,), 'weight': (2, 3)}
    """
    with atomic_write(Path(path), overwrite=overwrite) as temporary:
        temporary.write_bytes(to_safetensors(backbone.state_dict(), dict(metadata)))


def export_onnx(
    backbone: nn.Module,
    path: Path | str,
    channels: int,
    size: int,
    metadata: Mapping[str, str] | None = None,
    *,
    overwrite: bool = False,
) -> float:
    """Write the network as one ONNX file for any number of images, and compare its features with torch.

    ONNX's checker validates the file, and ONNX Runtime runs it on batches of 1 and 3 random images, before the file
    appears.

    Args:
        backbone: maps normalised float32 images (n, channels, size, size) to features (n, D); a copy on the CPU in eval
            mode is exported.
        path: the file.
        channels: channels of the images.
        size: side of the images in pixels.
        metadata: texts to store in the file, such as the preprocessing; ONNX calls them `metadata_props`.
        overwrite: replace an existing file.

    Returns:
        The largest absolute difference between the features of ONNX Runtime and of torch.

    Raises:
        UserError: the onnx extra is not installed, or the file exists or cannot be written.
    """
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401  torch.onnx needs it
    except ModuleNotFoundError as missing:
        raise UserError(
            f"export to ONNX needs {missing.name}, which is not installed; run: pip install 'fullrank[onnx]'"
        ) from missing
    network = copy.deepcopy(backbone).cpu().eval()
    images = torch.randn(3, channels, size, size, generator=torch.Generator().manual_seed(0))
    with atomic_write(Path(path), overwrite=overwrite) as temporary:
        torch.onnx.export(
            network,
            (images,),
            temporary,
            dynamo=True,
            external_data=False,  # one file
            verbose=False,
            input_names=["images"],
            output_names=["features"],
            dynamic_shapes=({0: torch.export.Dim("n")},),
        )
        if metadata:
            stored = onnx.load(temporary)
            onnx.helper.set_model_props(stored, dict(metadata))
            onnx.save(stored, temporary)
        onnx.checker.check_model(temporary, full_check=True)
        session = onnxruntime.InferenceSession(temporary, providers=["CPUExecutionProvider"])
        differences = []
        for batch in (images, images[:1]):
            with torch.inference_mode():
                expected = network(batch)
            (features,) = session.run(["features"], {"images": batch.numpy()})
            differences.append((torch.from_numpy(features) - expected).abs().max().item())
    return max(differences)
