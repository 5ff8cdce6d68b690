"""Runs that start with given weights: what is taken, what is converted, what is recorded, and what a resumed or
repeated run does."""

import io
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch
from huggingface_hub import constants
from rich.console import Console
from safetensors.torch import save_file

import fullrank
from fullrank import pretrain
from fullrank.cli import main
from fullrank.errors import UserError
from fullrank.methods import BackboneConfig
from fullrank.methods.backbones import build_backbone
from fullrank.models.export import export
from fullrank.models.initial_weights import adapt_weights, initial_weights, read_start, with_initial_weights
from fullrank.models.weights import hash_weights
from fullrank.recipes import RECIPES, build_method, dry_run, read_recipe
from fullrank.recipes.rules import with_start
from fullrank.run import Run

NARROW = {"channels": [8, 8, 16, 16], "layers": [1, 1, 1, 1]}
VIT = BackboneConfig(name="vit_tiny_patch16_224", arguments={"embed_dim": 48, "depth": 1, "num_heads": 3})


def backbone_weights(run):
    weights = Run(Path(run)).checkpoint().weights()
    return {name.removeprefix("backbone."): tensor for name, tensor in weights.items() if name.startswith("backbone.")}


def parameters(network, weights):
    return {name: weights[name] for name, _ in network.named_parameters()}


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def quick(small):
    """One epoch of the small recipe, which changes no weight: its learning rate is 0."""
    return replace(small, epochs=1, optimizer=replace(small.optimizer, lr=0.0), checkpoints=2)


@pytest.fixture
def saved(tmp_path):
    """`saved(network)`: a file of the weights of a network."""

    def save(network, name="weights.pt"):
        torch.save(network.state_dict(), tmp_path / name)
        return f"file:{tmp_path / name}"

    return save


def test_a_run_starts_with_the_backbone_of_another_run(run, quick, tmp_path):
    lines = Console(file=io.StringIO(), width=400)
    continued = pretrain(quick, out=tmp_path / "continued", init=run.path, console=lines, **{"optimizer.lr": 0.0})
    source, text = backbone_weights(run.path), lines.file.getvalue()
    model = fullrank.load(continued.path)
    assert equal(parameters(model.backbone, backbone_weights(continued.path)), parameters(model.backbone, source))
    mean = "bn1.running_mean"  # training updates it
    assert not torch.equal(backbone_weights(continued.path)[mean], source[mean])
    recipe = continued.recipe
    assert (recipe.init, recipe.init_hash) == (f"{run.path.absolute()}@{run.checkpoint().step}", hash_weights(source))
    assert (recipe.backbone, recipe.data.mean) == (run.recipe.backbone, run.recipe.data.mean)
    for words in ("the projector is random", "BatchNorm: the running statistics", recipe.init_hash[:12]):
        assert words in text
    assert continued.environment["init"]
    assert equal(model.initial().state_dict(), source)
    assert fullrank.load(run.path).init is None
    assert not equal(model.untrained().state_dict(), source)


def test_all_other_weights_are_those_of_a_random_start(small, run):
    recipe = with_initial_weights(replace(small, init=str(run.path)))
    weights, _ = initial_weights(recipe)
    given, random = build_method(recipe, weights).state_dict(), build_method(recipe).state_dict()
    others = {name for name in random if not name.startswith("backbone.")}
    assert others
    assert all(torch.equal(given[name], random[name]) for name in others)
    assert equal({name.removeprefix("backbone."): given[name] for name in given if name not in others}, weights)


def test_a_recipe_starts_only_from_the_same_weights(quick, saved):
    network = build_backbone(replace(quick.backbone, arguments=NARROW), channels=1)
    recipe = with_initial_weights(replace(quick, init=saved(network)))
    assert equal(initial_weights(recipe)[0], network.state_dict())
    with torch.no_grad():
        network.conv1.weight += 1
    saved(network)
    with pytest.raises(UserError, match=r"starts with weights of hash \w{12}, but file:.* now has \w{12}.*--init"):
        initial_weights(recipe)


def test_a_resumed_run_with_checkpoint_needs_no_model(quick, saved, tmp_path, train, power_cut, assert_same):
    network = build_backbone(replace(quick.backbone, arguments=NARROW), channels=1)
    recipe = replace(quick, init=saved(network), optimizer=replace(quick.optimizer, lr=1e-3))
    whole = train(recipe, tmp_path / "whole")
    with power_cut(after=8):  # the first checkpoint is at step 6
        train(recipe, tmp_path / "cut")
    (tmp_path / "weights.pt").unlink()
    pretrain(resume=tmp_path / "cut", console=Console(quiet=True))
    assert_same(whole.path, tmp_path / "cut")
    one, other = (fullrank.load(path).initial().state_dict() for path in (tmp_path / "cut", whole.path))
    assert equal(one, other)


def test_three_channels_become_one_so_that_gray_images_give_the_same_features():
    rgb = build_backbone(BackboneConfig(name="resnet18", arguments=NARROW)).eval()
    gray = build_backbone(BackboneConfig(name="resnet18", arguments=NARROW), channels=1).eval()
    weights, lines = adapt_weights(gray, rgb.state_dict())
    gray.load_state_dict(weights)
    image = torch.rand(2, 1, 40, 40)
    with torch.inference_mode():
        torch.testing.assert_close(gray(image), rgb(image.expand(-1, 3, -1, -1)))
    assert lines == ["conv1.weight: from 3 channels to 1, by timm (their sum)"]


@pytest.mark.parametrize(("channels", "size"), [(5, 96), (3, 96), (1, 224)])
def test_a_vit_of_another_size_has_the_weights_that_timm_gives_it(channels, size):
    source = build_backbone(VIT)
    network = build_backbone(replace(VIT, arguments={**VIT.arguments, "img_size": size}), channels=channels)
    weights, lines = adapt_weights(network, source.state_dict())
    overlay = {"state_dict": source.state_dict(), "num_classes": 0}
    given = {"num_classes": 0, "in_chans": channels, "img_size": size, "pretrained_cfg_overlay": overlay}
    theirs = timm.create_model(VIT.name, pretrained=True, **VIT.arguments, **given)
    assert equal(weights, theirs.state_dict())
    assert any("pos_embed: resampled by timm from 1×197×48 to 1×37×48" in line for line in lines) == (size == 96)


def test_a_vit_takes_crops_of_two_sizes_with_weights_of_another_size(saved):
    source = build_backbone(replace(VIT, arguments={**VIT.arguments, "img_size": 96}))
    start = read_start(saved(source), {"backbone": VIT})
    assert (start.size, start.channels, start.backbone) == (96, 3, VIT)
    digits, view = RECIPES["digits"], RECIPES["digits"].views[0]
    views = (replace(view, size=64, count=2), replace(view, size=32, count=2))
    recipe = with_start(replace(digits, views=views, epochs=1, batch_size=512), start)
    weights, lines = initial_weights(recipe)
    assert weights["pos_embed"].shape == (1, 17, 48)
    assert "resampled by timm from 1×37×48 to 1×17×48" in " ".join(lines)
    dry_run(build_method(recipe, weights), recipe)


def test_tensors_that_do_not_fit_are_listed_and_random(tmp_path):
    source = fullrank.load("timm-untrained:test_resnet")
    export(source, tmp_path / "a.safetensors")
    recipe = with_start(RECIPES["digits"], read_start(f"file:{tmp_path / 'a.safetensors'}"))
    wider = replace(recipe.backbone, arguments={"channels": [32, 48, 48, 128]})
    weights, lines = initial_weights(replace(recipe, backbone=wider))
    assert "instead of 128×" in lines[0]
    assert 0 < len(weights) < len(source.backbone.state_dict())
    assert all(tensor.shape == source.backbone.state_dict()[name].shape for name, tensor in weights.items())


def test_another_network_is_refused(run, small):
    with pytest.raises(UserError, match=r"has \d+ of \d+ tensors of the recipe's backbone vit_tiny_patch16_224"):
        initial_weights(with_initial_weights(replace(small, init=str(run.path), backbone=VIT)))


def test_the_command_line_starts_from_a_file_and_says_what_followed(tmp_path, capsys, saved):
    model = saved(build_backbone(BackboneConfig(name="resnet18", arguments=NARROW)))
    flags = ["--epochs", "1", "--out", str(tmp_path / "run"), "--projector.widths", "16", "--data.channels", "1"]
    network = ["--backbone.name", "resnet18", "--backbone.arguments", json.dumps(NARROW), "--optimizer.lr", "1e-4"]
    assert main(["pretrain", "digits", "--init", model, *flags, *network]) == 0
    said = capsys.readouterr().err
    assert "conv1.weight: from 3 channels to 1, by timm (their sum)" in said
    assert "instead of its 3" in said
    recipe = read_recipe(tmp_path / "run" / "recipe.json")
    assert (recipe.optimizer.lr, recipe.data.channels, recipe.init) == (1e-4, 1, model)
    assert main(["pretrain", "digits", "--init", model, *flags]) == 2
    assert "--backbone.name" in capsys.readouterr().err
    assert main(["pretrain", "digits", "--init", "no/such/run"]) == 2
    assert "expected RUN, RUN@STEP, timm:NAME" in capsys.readouterr().err


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """`hub(name, config, weights_file)`: put a model into an empty cache of the hub, of which there is no internet."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    def put(name, config, weights):
        root, commit = tmp_path / "hub" / f"models--{name.replace('/', '--')}", "0" * 40
        (root / "refs").mkdir(parents=True)
        (root / "refs" / "main").write_text(commit)
        folder = root / "snapshots" / commit
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(config))
        if weights is not None:
            shutil.copy(weights, folder / "model.safetensors")

    return put


def timm_config(**values):
    cfg = {"input_size": [3, 32, 32], "mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6], "crop_mode": "center"}
    cfg["crop_pct"] = 1.0
    return {"architecture": "resnet18", "model_args": NARROW, "num_classes": 10, "pretrained_cfg": cfg} | values


def test_a_timm_model_of_the_hub_is_loaded_with_its_own_normalisation(hub, tmp_path):
    theirs = timm.create_model("resnet18", num_classes=10, **NARROW).eval()
    save_file(theirs.state_dict(), tmp_path / "model.safetensors")
    hub("someone/digits-net", timm_config(), tmp_path / "model.safetensors")
    model = fullrank.load("hf-hub:someone/digits-net")
    images = torch.rand(2, 3, 32, 32)
    with torch.inference_mode():
        expected = theirs.forward_head(theirs.forward_features(images), pre_logits=True)
        torch.testing.assert_close(model.backbone(images), expected)
    assert (model.preprocess.size, model.preprocess.mean) == (32, (0.1, 0.2, 0.3))
    assert "not used: 2 (fc.bias, fc.weight)" in model.note
    start = read_start("hf-hub:someone/digits-net")
    assert (start.model, start.backbone.arguments) == ("hf-hub:someone/digits-net", NARROW)


def test_an_exported_run_on_the_hub_keeps_its_stem(hub, run, tmp_path):
    export(run.path, tmp_path / "model.safetensors")
    hub("someone/mine", timm_config(), tmp_path / "model.safetensors")
    model = fullrank.load("hf-hub:someone/mine")
    assert (model.name, model.spec.stem) == ("hf-hub:someone/mine", "small")
    assert equal(model.backbone.state_dict(), backbone_weights(run.path))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "bert"}, "describes no network of timm"),
        (timm_config(architecture="resnet81"), "unknown backbone 'resnet81'"),
        (timm_config(model_args={"checkpoint_path": "/etc/passwd"}), "not an argument of an architecture"),
        (timm_config(pretrained_cfg={"mean": "x"}), "describes no network of timm"),
        ([], "describes no network of timm"),
    ],
)
def test_an_untrusted_model_of_the_hub_that_does_not_fit_is_an_error_of_one_line(hub, tmp_path, config, words):
    save_file({"w": torch.ones(2)}, tmp_path / "model.safetensors")
    hub("a/b", config, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=words) as error:
        fullrank.load("hf-hub:a/b")
    assert "\n" not in str(error.value)


def test_a_model_that_the_hub_lacks_is_an_error_of_one_line(hub):
    with pytest.raises(UserError, match=r"hf-hub:no/where is not available .*file:PATH") as error:
        fullrank.load("hf-hub:no/where")
    assert "\n" not in str(error.value)
    for name in ("alone", "../etc/passwd", "a/b/c", "a/b@", ""):
        with pytest.raises(UserError, match="expected"):
            fullrank.load(f"hf-hub:{name}")
