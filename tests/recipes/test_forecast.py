"""What a run will cost, before its first step."""

from dataclasses import replace

import pytest
import torch

from fullrank.methods import BackboneConfig, ProjectorConfig
from fullrank.recipes import RECIPES, build_method, forecast_run
from fullrank.recipes.forecast import measure_pass, saved_bytes, weight_bytes
from fullrank.views import ViewConfig

TINY = replace(
    RECIPES["digits"],
    backbone=BackboneConfig(arguments={"channels": [8, 8, 8, 16], "layers": [1, 1, 1, 1]}, stem="small"),
    projector=ProjectorConfig(widths=(32, 24)),
)
CPU = torch.device("cpu")


@pytest.mark.parametrize("objective", ["frossl", "byol"])
def test_a_forecast_changes_nothing(objective):
    from fullrank.recipes import with_objective

    recipe = with_objective(TINY, objective)
    method = build_method(recipe)
    before = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    random = torch.get_rng_state()
    forecast_run(recipe, method, 1000, CPU)
    assert all(torch.equal(tensor, before[name]) for name, tensor in method.state_dict().items())
    assert all(parameter.grad is None for parameter in method.parameters())
    assert torch.equal(torch.get_rng_state(), random)
    assert method.training


def test_a_forecast_names_size_length_time_memory_and_disk():
    method = build_method(TINY)
    text = " ".join(forecast_run(replace(TINY, epochs=3), method, 1000, CPU))
    for part in (
        "16 features",
        "embeddings of 24 dimensions",
        "7 steps per epoch, epochs: 3, 21 steps",
        "memory",
        "disk",
        "estimated from a pass of",
    ):
        assert part in text
    for device in ("cuda", "mps"):
        assert "measured after the first steps" in forecast_run(TINY, method, 1000, torch.device(device))[1]


@pytest.mark.parametrize(
    ("arguments", "words"), [({}, "(the class token)"), ({"global_pool": "avg"}, "(the average of the tokens)")]
)
def test_the_pooling_of_a_vision_transformer_is_named(arguments, words):
    tiny = {"embed_dim": 48, "depth": 1, "num_heads": 3, "patch_size": 4}
    vit = replace(TINY, backbone=BackboneConfig(name="vit_tiny_patch16_224", arguments=tiny | arguments))
    assert f"48 features {words}" in forecast_run(vit, build_method(vit), 1000, torch.device("cuda"))[0]


def test_weights_are_counted_in_bytes():
    method = build_method(TINY)
    assert weight_bytes(method) == sum(
        tensor.numel() * tensor.element_size() for tensor in method.state_dict().values()
    )


def test_the_memory_of_a_step_is_that_of_the_saved_tensors():
    """A linear layer keeps its input, a ReLU its output: the count is exact for a network without normalisation."""
    recipe = replace(TINY, projector=ProjectorConfig(widths=(64, 48), batchnorm=False))
    method = build_method(recipe)
    few, many = (saved_bytes(method, recipe, n) for n in (8, 16))
    assert many == pytest.approx(2 * few, rel=0.02)
    wider = replace(recipe, views=(ViewConfig(size=16),))
    assert saved_bytes(method, wider, 8) > 3 * few


def test_the_measured_pass_has_at_most_the_images_of_a_step():
    n, seconds = measure_pass(build_method(TINY), TINY, 8)
    assert n <= 8
    assert seconds > 0


def test_fewer_images_at_once_need_less_memory():
    method = build_method(TINY)
    whole, micro = (
        forecast_run(replace(TINY, machine=replace(TINY.machine, micro_batch=m)), method, 1000, torch.device("cuda"))[2]
        for m in (0, 16)
    )
    assert "a step of 128 images" in whole
    assert "a step of 16 images" in micro
