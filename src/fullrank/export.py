"""Export a backbone: its weights as safetensors, which timm can load, or the whole network as ONNX."""

import copy
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from fullrank.atomic import atomic_write
from fullrank.errors import UserError
from fullrank.training.checkpoints import to_safetensors


def export_weights(backbone: nn.Module, path: Path | str, metadata: Mapping[str, str], *, overwrite: bool = False) -> None:
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


def export_onnx(backbone: nn.Module, path: Path | str, channels: int, size: int, *, overwrite: bool = False) -> float:
    """Write the network as one ONNX file for any number of images, and compare its features with torch.

    ONNX's checker validates the file, and ONNX Runtime runs it on batches of 1 and 3 random images, before the file appears.

    Args:
        backbone: maps normalised float32 images (n, channels, size, size) to features (n, D); a copy on the CPU in eval mode is exported.
        path: the file.
        channels: channels of the images.
        size: side of the images in pixels.
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
        raise UserError(f"export to ONNX needs {missing.name}, which is not installed; run: pip install 'fullrank[onnx]'") from missing
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
        onnx.checker.check_model(temporary, full_check=True)
        session = onnxruntime.InferenceSession(temporary, providers=["CPUExecutionProvider"])
        differences = []
        for batch in (images, images[:1]):
            with torch.inference_mode():
                expected = network(batch)
            (features,) = session.run(["features"], {"images": batch.numpy()})
            differences.append((torch.from_numpy(features) - expected).abs().max().item())
    return max(differences)
