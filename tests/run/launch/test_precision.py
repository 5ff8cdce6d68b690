import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn

from fullrank import pretrain
from fullrank.errors import UserError
from fullrank.methods import BackboneConfig, ProjectorConfig
from fullrank.recipes import RECIPES, Recipe, build_method, read_recipe
from fullrank.run.launch import precision
from fullrank.run.precision import (
    bfloat16_is_safe,
    choose_precision,
    has_bfloat16_tiles,
    require_one_precision,
    resolve_precision,
)
from fullrank.run.resume import resumed_recipe
from fullrank.views import ViewConfig

AMX = bool(getattr(torch.cpu, "get_capabilities", dict)().get("amx_bf16"))
TINY = Recipe(
    views=(ViewConfig(size=32),),
    backbone=BackboneConfig(arguments={"channels": [8, 8, 16, 16], "layers": [1, 1, 1, 1]}, stem="standard"),
    projector=ProjectorConfig(widths=(16, 8)),
    batch_size=8,
    machine=replace(Recipe().machine, accelerator="cpu"),
)
GRADIENTS = Path(__file__).with_name("bfloat16_gradients.py")


@pytest.fixture
def tiles(monkeypatch):
    """A processor with AMX."""
    monkeypatch.setattr(precision, "has_bfloat16_tiles", lambda: True)


def chosen(recipe):
    return choose_precision(recipe, build_method(recipe)).machine.precision


@pytest.mark.parametrize("given", ["32-true", "bf16-mixed", "64-true"])
def test_a_given_precision_is_kept(tiles, given):
    recipe = replace(TINY, machine=replace(TINY.machine, precision=given))
    assert choose_precision(recipe, build_method(recipe)) == recipe
    assert resolve_precision(recipe) == given


def test_auto_is_bfloat16_only_on_a_processor_with_tiles(monkeypatch, tiles):
    assert chosen(TINY) == "bf16-mixed"
    monkeypatch.setattr(precision, "has_bfloat16_tiles", lambda: False)
    assert chosen(TINY) == "32-true"


def test_auto_is_float32_for_a_stride_larger_than_the_input(tiles):
    """At 16 px, the last stage of a ResNet with a stem for ImageNet has 1×1 pixels and a stride of 2."""
    assert chosen(replace(TINY, views=(ViewConfig(size=16),))) == "32-true"


class WrongInBfloat16(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor if x.dtype == torch.bfloat16 else 1.0
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.factor, None


class Wrong(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return WrongInBfloat16.apply(x, self.factor)


@pytest.mark.parametrize(("factor", "precision"), [(1.0, "bf16-mixed"), (torch.nan, "32-true"), (-1.0, "32-true")])
def test_auto_is_float32_if_gradients_are_wrong_in_bfloat16(tiles, factor, precision):
    method = build_method(TINY)
    method.projector = nn.Sequential(nn.Linear(16, 16), Wrong(factor), nn.Linear(16, 8))
    assert choose_precision(TINY, method).machine.precision == precision


def test_auto_is_float32_for_networks_that_fail(tiles):
    method = build_method(TINY)
    method.projector = nn.Linear(3, 8)
    assert choose_precision(TINY, method).machine.precision == "32-true"
    assert method.training


def test_auto_is_float32_for_processes_on_several_machines(tiles, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert chosen(TINY) == "bf16-mixed"
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert chosen(TINY) == "32-true"


def test_processes_that_chose_different_precisions_raise(monkeypatch):
    monkeypatch.setattr(precision, "all_gather_object", lambda chosen: [chosen, "32-true"])
    require_one_precision(replace(TINY, machine=replace(TINY.machine, precision="32-true")))
    with pytest.raises(
        UserError, match=r"chose the precisions 32-true and bf16-mixed, expected one; give --machine\.precision 32-true"
    ):
        require_one_precision(replace(TINY, machine=replace(TINY.machine, precision="bf16-mixed")))


@pytest.mark.parametrize("channels_last", [True, False])
def test_bfloat16_is_tested_in_the_layout_of_the_training(channels_last):
    recipe = replace(TINY, machine=replace(TINY.machine, channels_last=channels_last))
    method, layouts = build_method(recipe), []
    convolution = [module for module in method.modules() if isinstance(module, nn.Conv2d)][1]
    convolution.register_forward_pre_hook(
        lambda _, inputs: layouts.append(inputs[0].is_contiguous(memory_format=torch.channels_last))
    )
    assert bfloat16_is_safe(method, recipe)
    assert set(layouts) == {channels_last}


def test_the_choice_changes_neither_the_method_nor_the_random_state(tiles):
    recipe = replace(TINY, backbone=replace(TINY.backbone, arguments=TINY.backbone.arguments | {"drop_rate": 0.5}))
    method, state = build_method(recipe), torch.get_rng_state()
    before = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    assert choose_precision(recipe, method).machine.precision == "bf16-mixed"
    assert all(torch.equal(tensor, before[name]) for name, tensor in method.state_dict().items())
    assert all(parameter.grad is None for parameter in method.parameters())
    assert method.training
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("isa", "allowed"), [("ALL", True), ("AVX512_CORE_AMX", True), ("AVX512_CORE", False), ("avx2", False)]
)
def test_tiles_are_not_used_if_onednn_may_not(monkeypatch, isa, allowed):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True})
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", isa)
    assert has_bfloat16_tiles() == allowed
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": False})
    assert not has_bfloat16_tiles()


def test_a_run_keeps_the_choice_on_a_machine_without_tiles(small, train, tiles, monkeypatch, tmp_path, assert_same):
    recipe = replace(small, epochs=1, machine=replace(small.machine, accelerator="cpu"))
    whole = train(recipe, tmp_path / "whole")
    assert whole.recipe.machine.precision == read_recipe(whole.path / "recipe.json").machine.precision == "bf16-mixed"
    part = train(recipe, tmp_path / "part")
    shutil.rmtree(part.checkpoints[-1].path)
    monkeypatch.setattr(precision, "has_bfloat16_tiles", lambda: False)
    assert resumed_recipe(part.path, recipe).machine.precision == "bf16-mixed"  # 'auto' equals every choice
    assert_same(whole.path, pretrain(resume=part.path, console=Console(quiet=True)).path)


def test_a_run_of_an_earlier_version_with_auto_stays_in_float32(small, train, tiles, tmp_path):
    recipe = replace(small, epochs=1, machine=replace(small.machine, accelerator="cpu", precision="32-true"))
    run = train(recipe, tmp_path / "run")
    content = json.loads((run.path / "recipe.json").read_text())
    assert '"32-true"' in (run.path / "recipe.json").read_text()
    (run.path / "recipe.json").write_text(json.dumps(content).replace('"32-true"', '"auto"'))
    assert resolve_precision(resumed_recipe(run.path)) == "32-true"


def gradients(name, images, passes):
    """Run backward passes on AMX in a new process, because the tests themselves run without AMX."""
    environment = {name: value for name, value in os.environ.items() if name != "ONEDNN_MAX_CPU_ISA"}
    command = [sys.executable, str(GRADIENTS), name, str(images), str(passes)]
    found = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(found.stdout.splitlines()[-1])


@pytest.mark.skipif(not AMX, reason="needs a processor with AMX")
def test_gradients_in_bfloat16_are_finite_and_close_to_float32():
    found = gradients("digits", 8, 20)
    assert found["not finite"] == 0
    assert found["smallest cosine"] > 0.95


@pytest.mark.slow
@pytest.mark.skipif(not AMX, reason="needs a processor with AMX")
@pytest.mark.parametrize(
    ("name", "passes"),
    [("digits", 1000), ("cifar10-small", 1000), ("cifar10-projectors", 1000), ("cifar10", 100), ("stl10", 20)],
)
def test_thousands_of_gradients_in_bfloat16_are_finite_and_close_to_float32(name, passes):
    found = gradients(name, 8, passes)
    assert found["not finite"] == 0
    assert found["smallest cosine"] > 0.9


def test_the_recipes_for_small_images_pass_the_test():
    for name in ("digits", "cifar10-small"):
        recipe = RECIPES[name]
        assert bfloat16_is_safe(build_method(recipe), recipe)
