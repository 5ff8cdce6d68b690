"""A backbone for use elsewhere: its weights as safetensors, which plain timm loads, or the whole network as ONNX."""

import copy
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save
from torch import nn

from fullrank.atomic import atomic_write
from fullrank.errors import UserError


def export_weights(backbone: nn.Module, path: Path | str, metadata: Mapping[str, str], *, overwrite: bool = False) -> None:
    """Write parameters and buffers to one safetensors file, whole or not at all.

    A network of timm with its standard stem comes back without fullrank:
    `timm.create_model(name, num_classes=0, **arguments).load_state_dict(safetensors.torch.load_file(path))`.

    Args:
        backbone: the network; it is not changed.
        path: the file.
        metadata: what the file says of itself (name, arguments, stem, preprocess; values that are no text as JSON).
        overwrite: replace a file that is there.

    Raises:
        UserError: the file exists, or cannot be written.

    >>> import tempfile
    >>> from safetensors.torch import load_file
    >>> path = Path(tempfile.mkdtemp()) / "linear.safetensors"
    >>> export_weights(nn.Linear(3, 2), path, {"name": "linear"})
    >>> {name: tuple(tensor.shape) for name, tensor in load_file(path).items()}
    {'bias': (2,), 'weight': (2, 3)}
    """
    # Copies, because safetensors refuses tensors that share memory; written by Python, which reports a full disk as an OSError.
    tensors = {
        name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format) for name, tensor in backbone.state_dict().items()
    }
    with atomic_write(Path(path), overwrite=overwrite) as draft:
        draft.write_bytes(save(tensors, metadata=dict(metadata)))


def export_onnx(backbone: nn.Module, path: Path | str, channels: int, size: int, *, overwrite: bool = False) -> float:
    """Write the network as one ONNX file for any number of images, and compare it with torch.

    The file passes ONNX's checker, and is run by ONNX Runtime on batches of 1 and 3 random images before it takes its name.

    Args:
        backbone: float32 images (n, channels, size, size), normalised, to features (n, D); a copy on the CPU in eval mode is exported.
        path: the file.
        channels: of the images.
        size: of the images.
        overwrite: replace a file that is there.

    Returns:
        The greatest absolute difference between a feature of ONNX Runtime and of torch.

    Raises:
        UserError: the extra is not installed, the file exists, or cannot be written.
    """
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401  the exporter of torch needs it
    except ModuleNotFoundError as missing:
        raise UserError(f"export to ONNX needs {missing.name}, which is not installed; run: pip install 'fullrank[onnx]'") from missing
    network = copy.deepcopy(backbone).cpu().eval()
    images = torch.randn(3, channels, size, size, generator=torch.Generator().manual_seed(0))
    with atomic_write(Path(path), overwrite=overwrite) as draft:
        torch.onnx.export(
            network,
            (images,),
            draft,
            dynamo=True,
            external_data=False,  # one file
            verbose=False,
            input_names=["images"],
            output_names=["features"],
            dynamic_shapes=({0: torch.export.Dim("n")},),
        )
        onnx.checker.check_model(draft, full_check=True)
        session = onnxruntime.InferenceSession(draft, providers=["CPUExecutionProvider"])
        differences = []
        for batch in (images, images[:1]):
            with torch.inference_mode():
                expected = network(batch)
            (features,) = session.run(["features"], {"images": batch.numpy()})
            differences.append((torch.from_numpy(features) - expected).abs().max().item())
    return max(differences)
