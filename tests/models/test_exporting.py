import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch
from torch import nn

from fullrank.errors import UserError
from fullrank.images import Preprocess
from fullrank.methods import BackboneConfig
from fullrank.models import Model
from fullrank.models.export import export, export_onnx
from fullrank.models.weights import hash_weights

ARGUMENTS = {"channels": [8, 8, 16, 16]}


def network(name="resnet18", **arguments):
    torch.manual_seed(0)
    backbone = timm.create_model(name, num_classes=0, **(arguments or ARGUMENTS))
    for buffer in backbone.buffers():  # running statistics other than 0 and 1
        if buffer.is_floating_point():
            buffer.uniform_(0.5, 1.5)
    return backbone


def vit():
    return network("vit_tiny_patch16_224", img_size=32, embed_dim=48, depth=2, num_heads=3)


def model_of(backbone):
    spec, preprocess = BackboneConfig(name="resnet18", arguments=ARGUMENTS), Preprocess(3, 32, (0.5,) * 3, (0.2,) * 3)
    return Model("a", backbone, preprocess, spec)


def test_torchvision_and_the_example_of_lightly_load_the_weights(tmp_path, monkeypatch):
    torchvision = pytest.importorskip("torchvision")
    model = replace(model_of(network(drop_rate=0.0)), spec=BackboneConfig(name="resnet18"))
    export(model, tmp_path / "backbone.safetensors")
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs/models.md").read_text("utf-8")
    names = {}
    exec(re.search(r"```python\n(.*?lightly.*?)```", page, re.DOTALL)[1], names)
    images = torch.randn(2, 3, 32, 32)
    names["resnet"].fc = nn.Identity()
    lightly = nn.Sequential(*list(torchvision.models.resnet18().children())[:-1])
    lightly.load_state_dict(torch.load("backbone.torch"))
    with torch.inference_mode():
        expected = model.backbone.eval()(images)
        torch.testing.assert_close(names["resnet"].eval()(images), expected)
        torch.testing.assert_close(lightly.eval()(images).flatten(1), expected)


@pytest.mark.parametrize("backbone", [network, vit])
def test_onnx_runtime_equals_torch_for_any_batch_size(tmp_path, backbone):
    onnxruntime = pytest.importorskip("onnxruntime")
    backbone, path = backbone().train(), tmp_path / "backbone.onnx"
    before = hash_weights(backbone.state_dict())
    difference = export_onnx(model_of(backbone), path)
    assert 0 <= difference < 1e-4
    assert hash_weights(backbone.state_dict()) == before
    assert backbone.training
    assert [file.name for file in tmp_path.iterdir()] == ["backbone.onnx"]  # weights included
    images, session = torch.randn(5, 3, 32, 32), onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (features,) = session.run(None, {"images": images.numpy()})
    assert json.loads(session.get_modelmeta().custom_metadata_map["preprocess"])["size"] == 32
    with torch.inference_mode():
        torch.testing.assert_close(torch.from_numpy(features), backbone.eval()(images), rtol=1e-4, atol=1e-4)


def test_onnx_without_the_extra_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    pytest.importorskip("onnx")
    with pytest.raises(UserError, match=r"needs onnxruntime, .* run: pip install 'fullrank\[onnx\]'"):
        export_onnx(model_of(nn.Flatten()), tmp_path / "a.onnx")
    assert list(tmp_path.iterdir()) == []
