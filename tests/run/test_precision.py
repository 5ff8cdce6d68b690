from dataclasses import replace

import pytest
import torch
from torch import nn

from fullrank import pretrain
from fullrank.errors import UserError
from fullrank.methods import BackboneConfig, ProjectorConfig
from fullrank.recipes import Recipe, build_method
from fullrank.run import precision
from fullrank.run.precision import choose_precision, require_one_precision
from fullrank.run.resume import resumed_recipe
from fullrank.views import ViewConfig

TINY = Recipe(
    views=(ViewConfig(size=32),),
    backbone=BackboneConfig(arguments={"channels": [8, 8, 16, 16], "layers": [1, 1, 1, 1]}, stem="standard"),
    projector=ProjectorConfig(widths=(16, 8)),
    batch_size=8,
    machine=replace(Recipe().machine, accelerator="cpu"),
)


@pytest.fixture
def tiles(monkeypatch):
    """A processor with AMX."""
    monkeypatch.setattr(precision, "has_bfloat16_tiles", lambda: True)


def chosen(recipe):
    return choose_precision(recipe, build_method(recipe)).machine.precision


def test_auto_is_bfloat16_only_on_a_processor_with_tiles_and_a_given_precision_is_kept(monkeypatch, tiles):
    assert chosen(TINY) == "bf16-mixed"
    assert chosen(replace(TINY, machine=replace(TINY.machine, precision="64-true"))) == "64-true"
    monkeypatch.setattr(precision, "has_bfloat16_tiles", lambda: False)
    assert chosen(TINY) == "32-true"


def test_auto_is_float32_for_a_stride_larger_than_the_input(tiles):
    """At 16 px, the last stage of a ResNet with a stem for ImageNet has 1×1 pixels and a stride of 2."""
    assert chosen(replace(TINY, views=(ViewConfig(size=16),))) == "32-true"


def test_auto_is_float32_for_networks_that_fail_and_for_processes_on_several_machines(tiles, monkeypatch):
    method = build_method(TINY)
    method.projector = nn.Linear(3, 8)
    assert choose_precision(TINY, method).machine.precision == "32-true"
    assert method.training
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert chosen(TINY) == "32-true"


def test_processes_that_chose_different_precisions_raise(monkeypatch):
    monkeypatch.setattr(precision, "all_gather_object", lambda chosen: [chosen, "32-true"])
    require_one_precision(replace(TINY, machine=replace(TINY.machine, precision="32-true")))
    with pytest.raises(UserError, match="chose the precisions 32-true and bf16-mixed"):
        require_one_precision(replace(TINY, machine=replace(TINY.machine, precision="bf16-mixed")))


def test_the_choice_changes_neither_the_method_nor_the_random_state(tiles):
    recipe = replace(TINY, backbone=replace(TINY.backbone, arguments=TINY.backbone.arguments | {"drop_rate": 0.5}))
    method, state = build_method(recipe), torch.get_rng_state()
    before = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    assert choose_precision(recipe, method).machine.precision == "bf16-mixed"
    assert all(torch.equal(tensor, before[name]) for name, tensor in method.state_dict().items())
    assert all(parameter.grad is None for parameter in method.parameters())
    assert method.training
    assert torch.equal(torch.get_rng_state(), state)


def test_a_run_keeps_the_choice_on_a_machine_without_tiles(small, tiles, monkeypatch, tmp_path, power_cut):
    recipe = replace(small, batch_size=512, epochs=1, machine=replace(small.machine, accelerator="cpu"))
    with power_cut(after=1):
        pretrain(recipe, out=tmp_path / "run")
    monkeypatch.setattr(precision, "has_bfloat16_tiles", lambda: False)
    assert resumed_recipe(tmp_path / "run", recipe).machine.precision == "bf16-mixed"  # 'auto' equals every choice
    assert pretrain(resume=tmp_path / "run").recipe.machine.precision == "bf16-mixed"
