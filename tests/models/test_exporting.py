import builtins
import json

import pytest
import timm
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

from fullrank.errors import UserError
from fullrank.models.export import export_onnx, export_weights
from fullrank.models.features import state_hash

ARGUMENTS = {"channels": [8, 8, 16, 16]}
METADATA = {
    "name": "resnet18",
    "arguments": json.dumps(ARGUMENTS),
    "stem": "standard",
    "preprocess": json.dumps({"size": 32}),
}


def network(name="resnet18", **arguments):
    torch.manual_seed(0)
    backbone = timm.create_model(name, num_classes=0, **(arguments or ARGUMENTS))
    for buffer in backbone.buffers():  # running statistics other than 0 and 1
        if buffer.is_floating_point():
            buffer.uniform_(0.5, 1.5)
    return backbone


def vit():
    return network("vit_tiny_patch16_224", img_size=32, embed_dim=48, depth=2, num_heads=3)


def test_plain_timm_loads_the_weights(tmp_path):
    backbone, path = network(), tmp_path / "backbone.safetensors"
    export_weights(backbone, path, METADATA)
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    assert metadata == METADATA
    again = timm.create_model(metadata["name"], num_classes=0, **json.loads(metadata["arguments"]))
    again.load_state_dict(load_file(path))
    assert state_hash(again) == state_hash(backbone)
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(again.eval()(images), backbone.eval()(images))


def test_weights_are_not_overwritten_by_default(tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_text("old")
    with pytest.raises(UserError, match="exists already"):
        export_weights(nn.Linear(1, 1), path, {})
    assert path.read_text() == "old"
    export_weights(nn.Linear(1, 1), path, {}, overwrite=True)
    assert set(load_file(path)) == {"weight", "bias"}
    assert [file.name for file in tmp_path.iterdir()] == ["a.safetensors"]


@pytest.mark.parametrize("backbone", [network, vit])
def test_onnx_runtime_equals_torch_for_any_batch_size(tmp_path, backbone):
    onnxruntime = pytest.importorskip("onnxruntime")
    backbone, path = backbone().train(), tmp_path / "backbone.onnx"
    before = state_hash(backbone)
    difference = export_onnx(backbone, path, 3, 32)
    assert 0 <= difference < 1e-4
    assert state_hash(backbone) == before
    assert backbone.training
    assert [file.name for file in tmp_path.iterdir()] == ["backbone.onnx"]  # weights included
    images = torch.randn(5, 3, 32, 32)
    (features,) = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(
        None, {"images": images.numpy()}
    )
    with torch.inference_mode():
        torch.testing.assert_close(torch.from_numpy(features), backbone.eval()(images), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("missing", ["onnx", "onnxscript", "onnxruntime"])
def test_onnx_without_the_extra_is_an_error(tmp_path, monkeypatch, missing):
    real = builtins.__import__

    def without(name, *rest):
        if name == missing:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)
        return real(name, *rest)

    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(
        UserError, match=rf"needs {missing}, which is not installed; run: pip install 'fullrank\[onnx\]'"
    ):
        export_onnx(nn.Flatten(), tmp_path / "a.onnx", 1, 8)
    assert list(tmp_path.iterdir()) == []
