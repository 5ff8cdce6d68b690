"""Weights that other libraries wrote, and the forms of a MODEL without a run."""

import contextlib
import re
from dataclasses import replace

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import nn

import fullrank
from fullrank.errors import UserError
from fullrank.methods import BackboneConfig
from fullrank.methods.backbones import build_backbone
from fullrank.models.weights import read_weights
from small import Payload

SMALL = {"channels": [8, 8, 16, 16], "layers": [1, 1, 1, 1]}
CONFIG = BackboneConfig(name="resnet18", arguments=SMALL)


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(1)
    backbone = build_backbone(CONFIG)
    for buffer in backbone.buffers():
        if buffer.is_floating_point():
            buffer.uniform_(0.5, 1.5)
    return backbone.eval()


def prefixed(weights, prefix):
    return {f"{prefix}{name}": tensor for name, tensor in weights.items()}


def noise(weights, prefix):
    """Random tensors of the same shapes under another prefix, which must not be taken."""
    return {f"{prefix}{name}": torch.rand(tensor.shape).to(tensor.dtype) for name, tensor in weights.items()}


def numbered(weights):
    """The names of lightly's examples: the children of a ResNet, without the classifier."""
    head = {"conv1": 0, "bn1": 1, "layer1": 4, "layer2": 5, "layer3": 6, "layer4": 7}
    return {f"{head[name.split('.')[0]]}.{name.partition('.')[2]}": tensor for name, tensor in weights.items()}


TRAIN = "embedding_model.wrapped_model._model."
# fmt: off
LAYOUTS = {  # the content of the file for the weights w, and words of the line that says what was taken
    "torchvision": (lambda w: w | {"fc.weight": torch.zeros(10, 16)}, r"no prefix; not used: 1 \(fc.weight\)"),
    "solo-learn": (lambda w: {"state_dict": noise(w, "momentum_backbone.") | prefixed(w, "backbone."), "epoch": 3},
                   r"in the entry 'state_dict', under the prefix 'backbone\.'"),
    "MoCo": (lambda w: {"state_dict": noise(w, "module.encoder_k.") | prefixed(w, "module.encoder_q.")},
             r"'module\.encoder_q\.'"),
    "DINO": (lambda w: {"student": noise(w, "module.backbone."), "teacher": prefixed(w, "backbone.")}, "'teacher'"),
    "LightlyTrain": (lambda w: {"state_dict": noise(w, f"student_{TRAIN}") | prefixed(w, f"teacher_{TRAIN}")},
                     "prefix 'teacher_"),
    "VISSL": (lambda w: {"classy_state_dict": {"base_model": {"model": {"trunk": prefixed(w, "_feature_blocks.")}}}},
              r"under the prefix '_feature_blocks\.'"),
    "lightly": (lambda w: prefixed(numbered(w), "backbone."), r"'backbone\.'"),
    "no counters": (lambda w: {name: w[name] for name in w if "num_batches" not in name}, "no prefix"),
}
# fmt: on


@pytest.mark.parametrize("layout", LAYOUTS)
def test_weights_of_another_library_give_its_features(network, tmp_path, layout):
    make, words = LAYOUTS[layout]
    path, content = tmp_path / "weights", make(network.state_dict())
    save_file(content, path) if layout == "lightly" else torch.save(content, path)
    model = fullrank.load(f"file:{path}", backbone=CONFIG, size=32)
    images = torch.rand(3, 3, 32, 32)
    with torch.inference_mode():
        assert torch.equal(model.backbone(images), network(images))
    assert (model.preprocess.size, model.preprocess.mean) == (32, timm.data.IMAGENET_DEFAULT_MEAN)
    assert re.search(words, model.note), model.note


def test_names_that_timm_converts_are_converted(tmp_path):
    """The public weights of DINOv2 have the names of their authors, which timm's own loader changes."""
    arguments = {"embed_dim": 48, "depth": 1, "num_heads": 3, "img_size": 32, "reg_tokens": 2, "no_embed_class": True}
    config = BackboneConfig(name="vit_tiny_patch16_224", arguments=arguments)
    network = build_backbone(config).eval()
    weights = network.state_dict() | {"mask_token": torch.zeros(1, 48)}
    weights["register_tokens"] = weights.pop("reg_token")
    weights["pos_embed"] = torch.cat([torch.zeros(1, 1, 48), weights["pos_embed"]], dim=1)  # of the class token too
    torch.save(weights, tmp_path / "dinov2.pth")
    model = fullrank.load(f"file:{tmp_path / 'dinov2.pth'}", backbone=config)
    images = torch.rand(2, 3, 32, 32)
    with torch.inference_mode():
        assert torch.equal(model.backbone(images), network(images))


def test_torchvisions_own_network_has_equal_features(tmp_path):
    torchvision = pytest.importorskip("torchvision")
    torch.manual_seed(0)
    theirs = torchvision.models.resnet18().eval()
    torch.save(theirs.state_dict(), tmp_path / "resnet18.pth")
    model = fullrank.load(f"file:{tmp_path / 'resnet18.pth'}", backbone="resnet18", size=64)
    theirs.fc = nn.Identity()
    image = torch.rand(3, 64, 64)
    with torch.inference_mode():
        expected = theirs(model.preprocess.normalize(image)[None])
    torch.testing.assert_close(model.features(image), expected)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda w: {name: tensor for name, tensor in w.items() if "layer3" not in name}, r"layer3.* \(absent\)"),
        (lambda w: w | {"conv1.weight": torch.zeros(8, 3, 3, 3)}, r"\(8×3×3×3 instead of 64×3×7×7\).*--backbone.stem"),
        (lambda w: {"blocks.0.weight": torch.zeros(2)}, "the file begins with blocks.0.weight"),
        (lambda w: w | {"bn1.weight": torch.full((8,), torch.nan)}, "not finite"),
        (lambda w: {"epoch": 3}, "no state dict"),
    ],
)
def test_weights_that_do_not_match_are_refused_and_listed(network, tmp_path, change, words):
    torch.save(change(network.state_dict()), tmp_path / "weights.pt")
    with pytest.raises(UserError, match=words) as error:
        fullrank.load(f"file:{tmp_path / 'weights.pt'}", backbone=CONFIG)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"size": 0}, "size is 0"),
        ({"mean": (0.5,)}, "expected 3 values"),
        ({"std": (0.5, 0.0, 0.5)}, "positive"),
        ({"backbone": "resnet81"}, "resnet81"),
    ],
)
def test_a_wrong_description_of_the_network_is_an_error_of_one_line(network, tmp_path, arguments, words):
    torch.save(network.state_dict(), tmp_path / "weights.pt")
    with pytest.raises(UserError, match=words) as error:
        fullrank.load(f"file:{tmp_path / 'weights.pt'}", **{"backbone": CONFIG} | arguments)
    assert "\n" not in str(error.value)


def test_no_code_of_a_file_is_executed(network, tmp_path):
    torch.save({"state_dict": network.state_dict(), "hyper": Payload(tmp_path / "owned")}, tmp_path / "weights.pt")
    with pytest.raises(UserError, match="Python objects") as error:
        fullrank.load(f"file:{tmp_path / 'weights.pt'}", backbone=CONFIG)
    assert not (tmp_path / "owned").exists()
    assert "\n" not in str(error.value)


def test_the_command_line_names_the_network_of_a_file(tmp_path, capsys):
    from fullrank.cli import main

    torch.manual_seed(0)
    small = build_backbone(BackboneConfig(name="resnet18", arguments=SMALL, stem="small"), channels=1)
    torch.save({"state_dict": prefixed(small.state_dict(), "backbone.")}, tmp_path / "a.ckpt")
    arguments = '{"channels": [8, 8, 16, 16], "layers": [1, 1, 1, 1]}'
    network = ("--backbone.name", "resnet18", "--backbone.stem", "small", "--backbone.arguments", arguments)
    flags = (*network, "--channels", "1", "--size", "8", "--mean", "0.3", "--std", "0.4")
    file, out = f"file:{tmp_path / 'a.ckpt'}", str(tmp_path / "a.npy")
    assert main(["embed", file, "--data", "digits", "--out", out, *flags]) == 0
    assert "under the prefix 'backbone.'" in capsys.readouterr().err
    assert main(["export", file, "--out", str(tmp_path / "a.safetensors"), *flags]) == 0
    exported = f"file:{tmp_path / 'a.safetensors'}"
    assert fullrank.load(exported).preprocess.size == 8
    for model, problem in ((exported, "describes its own"), ("timm-untrained:test_resnet", "network of a file:PATH")):
        assert main(["export", model, "--out", str(tmp_path / "b.safetensors"), *flags]) == 2
        assert problem in capsys.readouterr().err


def test_a_file_shows_the_channels_and_the_size_of_its_images(tmp_path):
    vit = BackboneConfig(name="vit_tiny_patch16_224", arguments={"embed_dim": 48, "depth": 1, "num_heads": 3})
    small = build_backbone(replace(vit, arguments={**vit.arguments, "img_size": 32}), channels=1)
    torch.save(small.state_dict(), tmp_path / "vit.pt")
    model = fullrank.load(f"file:{tmp_path / 'vit.pt'}", backbone=vit)
    assert (model.preprocess.channels, model.preprocess.size) == (1, 32)
    images = torch.rand(2, 1, 32, 32)
    with torch.inference_mode():
        torch.testing.assert_close(model.backbone(images), small.eval()(images))


def test_a_file_whose_objects_contain_themselves_is_refused(tmp_path):
    content = {"a": 1}
    content["model"] = content
    torch.save(content, tmp_path / "w.pt")
    with pytest.raises(UserError, match="no state dict"):
        fullrank.load(f"file:{tmp_path / 'w.pt'}", backbone=CONFIG)


def test_a_damaged_file_of_torch_raises_no_other_error(tmp_path):
    torch.save({"a": torch.ones(3)}, tmp_path / "w.pt", _use_new_zipfile_serialization=False)
    whole = (tmp_path / "w.pt").read_bytes()
    for i in range(0, len(whole), 3):
        (tmp_path / "w.pt").write_bytes(whole[:i] + bytes([whole[i] ^ 0x10]) + whole[i + 1 :])
        with contextlib.suppress(UserError):
            read_weights(tmp_path / "w.pt")
