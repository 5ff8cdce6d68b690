import math
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise
from typing import get_args, get_type_hints

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensor

from fullrank.methods import BackboneConfig, ProjectorConfig
from fullrank.recipes import RECIPES, Recipe, assemble
from fullrank.run import evaluation_plan
from fullrank.run.evaluation_plan import (
    COST_SHARE,
    MAX_EVALUATIONS,
    MIN_EVALUATIONS,
    MIN_SAMPLES,
    PREFERRED_EVALUATIONS,
    SAMPLES_PER_DIMENSION,
    EvaluationPlan,
    RunCost,
    count_cost,
    evaluation_interval,
    forward_flops,
    plan_evaluations,
)
from fullrank.views import ViewConfig

COST = st.tuples(st.floats(1e6, 1e15), st.floats(1e3, 1e11), st.tuples(st.integers(1, 4096), st.integers(1, 8192)))
RUNS = {"numbers": COST, "steps": st.integers(1, 200_000), "available": st.integers(1, 50_000)}


def num_evaluations(steps, plan):
    """One before the first step, one at each interval, one after the last."""
    return 1 + math.ceil(steps / plan.every)


def evaluation_steps(steps, plan):
    return [*range(0, steps, plan.every), steps]


def total_cost(cost, steps, plan):
    losses = sum(plan.has_loss(step, steps) for step in evaluation_steps(steps, plan))
    return num_evaluations(steps, plan) * cost.spectra(plan.samples) + losses * cost.views


@settings(deadline=None)
@given(**RUNS, views=st.floats(0, 1))
def test_evaluations_cost_at_most_their_share_if_two_of_the_fewest_images_do(numbers, steps, available, views):
    cost = RunCost(*numbers, views=views * numbers[0])
    plan = plan_evaluations(cost, steps=steps, available=available)
    fewest = min(MIN_SAMPLES, 2 * max(cost.dimensions), available)
    assert fewest <= plan.samples <= available
    assert 1 <= plan.every <= steps
    assert plan.has_loss(steps, steps)
    assert not plan.has_loss(0, steps)
    assert num_evaluations(steps, plan) <= MAX_EVALUATIONS
    if num_evaluations(steps, plan) > 2:
        assert total_cost(cost, steps, plan) <= COST_SHARE * steps * cost.step * (1 + 1e-9)
    else:
        assert num_evaluations(steps, plan) == 2


@settings(deadline=None)
@given(**RUNS, views=st.floats(0, 1))
def test_a_run_has_fewer_than_twenty_evaluations_only_of_the_fewest_images(numbers, steps, available, views):
    cost = RunCost(*numbers, views=views * numbers[0])
    plan = plan_evaluations(cost, steps=steps, available=available)
    twenty = steps // math.ceil(steps / (MIN_EVALUATIONS - 1))  # a whole interval may give a few less than 20
    if num_evaluations(steps, plan) < 1 + twenty:
        assert plan.samples == min(MIN_SAMPLES, 2 * max(cost.dimensions), available)


@settings(deadline=None)
@given(**RUNS)
def test_fewer_images_are_used_only_to_afford_more_evaluations(numbers, steps, available):
    cost = RunCost(*numbers)
    plan = plan_evaluations(cost, steps=steps, available=available)
    choices = [min(k * max(cost.dimensions), available) for k in SAMPLES_PER_DIMENSION]
    dearer = [n for n in choices if n > plan.samples]
    assert all(cost.affordable(steps, n) < PREFERRED_EVALUATIONS for n in dearer)
    if plan.samples < choices[-1]:
        assert cost.affordable(steps, choices[-1]) < MIN_EVALUATIONS


@pytest.mark.parametrize("steps", [1, 2, 19, 30, 39])
def test_cheaper_evaluations_are_never_fewer(steps):
    counts = [
        num_evaluations(steps, EvaluationPlan(1, evaluation_interval(steps, bought)))
        for bought in (0.3, 1.0, 5.0, 19.9, 20.0, 25.0, 39.0, 50.0, 1e9)
    ]
    assert counts == sorted(counts)
    assert counts[0] == 2


@pytest.mark.parametrize(
    ("steps", "samples", "count"),
    [(10, 64, 2), (50, 64, 5), (100, 64, 13), (300, 130, 20), (2_000, 256, 68), (5_000, 640, 69), (200_000, 1280, 100)],
)
def test_longer_runs_have_more_evaluations_and_images(steps, samples, count):
    plan = plan_evaluations(RunCost(step=3e9, image=5e6, dimensions=(128,)), steps=steps, available=10_000)
    assert (plan.samples, num_evaluations(steps, plan)) == (samples, pytest.approx(count, abs=2))


def test_a_short_run_has_the_held_out_loss_in_some_evaluations_and_in_the_last():
    """The 20 spectra of 102 images and ten losses of 256 views cost 4,600 images, 1.5 % of the 307,200 images of the
    steps."""
    plan = plan_evaluations(RunCost(step=768.0, image=1.0, dimensions=(), views=256.0), steps=400, available=10_000)
    with_loss = [step for step in evaluation_steps(400, plan) if plan.has_loss(step, 400)]
    assert (plan.samples, num_evaluations(400, plan), len(with_loss), with_loss[-1]) == (102, 20, 10, 400)
    assert {b - a for a, b in pairwise(with_loss[:-1])} == {2 * plan.every}


def test_given_samples_and_interval_are_used():
    cost = RunCost(step=1e9, image=1e6, dimensions=(128,))
    assert plan_evaluations(cost, steps=100, available=50, samples=70, every=3) == EvaluationPlan(samples=70, every=3)
    assert (
        plan_evaluations(cost, steps=100, available=5000, samples=70).every == 5
    )  # 20 evaluations of the given number of images
    assert plan_evaluations(cost, steps=90, available=5000, every=3) == EvaluationPlan(samples=64, every=3)


def test_fewer_images_than_dimensions_cost_a_gram_matrix():
    cost = RunCost(step=1.0, image=0.0, dimensions=(2000,))
    assert cost.evaluation(200) == pytest.approx(4 * 200 * 2000 * 200 + 6 * 200**3)
    assert cost.evaluation(4000) == pytest.approx(4 * 4000 * 2000 * 2000 + 6 * 2000**3)


def small(**changes):
    recipe = Recipe(
        data=replace(Recipe().data, channels=3, size=16, mean=(0.5,) * 3, std=(0.25,) * 3),
        views=(ViewConfig(size=16),),
        backbone=BackboneConfig(arguments={"channels": [8, 8, 8, 8], "layers": [1, 1, 1, 1]}, stem="small"),
        projector=ProjectorConfig(widths=(32, 16)),
        batch_size=8,
    )
    return replace(recipe, **changes)


def test_forward_flops_equal_the_sum_over_layers():
    """A projector's maps cost 2 · (in · hidden + hidden · out); the rest is the backbone's, whose BatchNorm must not
    count it."""
    recipe = small()
    method = assemble(recipe).method
    before = deepcopy(method)
    wide = assemble(replace(recipe, projector=ProjectorConfig(widths=(64, 16)))).method
    assert forward_flops(wide, 3, 16, 5) - forward_flops(method, 3, 16, 5) == 2 * (8 * 32 + 32 * 16)
    assert [part.training for part in method.modules()] == [part.training for part in before.modules()]
    assert all(torch.equal(value, before.state_dict()[name]) for name, value in method.state_dict().items())


@pytest.mark.parametrize("kind", get_args(get_type_hints(ProjectorConfig)["kind"]))
def test_counting_changes_no_projector_and_prints_nothing(kind, recwarn, capfd):
    recipe = small(projector=ProjectorConfig(kind=kind, widths=(32, 16), d0=4, groups=2))
    method = assemble(recipe).method
    before, random = deepcopy(method.state_dict()), torch.get_rng_state()
    cost = count_cost(method, recipe)
    assert cost.dimensions == (8, recipe.projector.dimensions(8))
    assert all(torch.equal(value, before[name]) for name, value in method.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert not isinstance(method.projector(method.backbone(torch.zeros(2, 3, 16, 16))), FakeTensor)
    assert (recwarn.list, capfd.readouterr()) == ([], ("", ""))


def test_work_per_batch_is_shared_by_its_images():
    """An orthogonal projector builds its matrix for each batch, and multiplies each image by it."""
    recipe = small(projector=ProjectorConfig(kind="orthogonal"))
    method, backbone = assemble(recipe).method, assemble(small(projector=ProjectorConfig(widths=()))).method
    built = [n * (forward_flops(method, 3, 16, n) - forward_flops(backbone, 3, 16, n) - 2 * 8 * 8) for n in (1, 8, 64)]
    assert built[0] > 0
    assert built == pytest.approx([built[0]] * 3)


@pytest.mark.parametrize("name", ["test_vit", "convnext_atto"])
def test_attention_and_grouped_convolutions_are_counted(name):
    """A layer costs its weights at each place of its output; attention adds the products of queries, keys and
    values."""
    recipe = small(backbone=BackboneConfig(name=name), views=(ViewConfig(size=160),))
    method = assemble(recipe).method
    products = []

    def count(layer, _, output):
        weight = layer.weight
        pixels = output[0, 0].numel() if output.ndim == 4 else output[0, ..., 0].numel()
        products.append(weight.numel() * pixels)

    for layer in method.modules():
        if isinstance(layer, torch.nn.Linear | torch.nn.Conv2d):
            layer.register_forward_hook(count)
    method.eval()
    with torch.no_grad():
        R = method.backbone(torch.zeros(1, 3, 160, 160))
        method.projector(R)
    layers = 2 * sum(products)
    found = forward_flops(method, 3, 160, 1) / layers
    assert (1.1 < found < 1.5) if name == "test_vit" else found == 1


def test_double_precision_counts_as_single():
    recipe = small()
    default = torch.get_default_dtype()
    cost = count_cost(assemble(recipe).method, recipe)
    torch.set_default_dtype(torch.float64)
    try:
        assert count_cost(assemble(recipe).method, recipe) == cost
    finally:
        torch.set_default_dtype(default)


def test_a_step_costs_three_forward_passes_over_the_views_of_a_batch():
    recipe = small()
    method = assemble(recipe).method
    cost = count_cost(method, recipe)
    assert cost.step == 3 * 2 * 8 * cost.image
    assert cost.views == cost.step / 3  # the held-out loss: forward passes only
    assert cost.evaluation(10) - replace(cost, views=0.0).evaluation(10) == cost.views
    assert cost.dimensions == (8, 16)
    smaller = replace(recipe, views=(ViewConfig(size=16, count=2), ViewConfig(size=8, count=4)))
    assert count_cost(method, smaller).step == 3 * 8 * (
        2 * forward_flops(method, 3, 16, 8) + 4 * forward_flops(method, 3, 8, 8)
    )


def test_on_several_processes_a_step_costs_less_and_an_evaluation_does_not(monkeypatch):
    recipe = small()
    method = assemble(recipe).method
    alone = count_cost(method, recipe)
    monkeypatch.setattr(evaluation_plan, "world_size", lambda: 4)
    assert count_cost(method, recipe) == replace(alone, step=alone.step / 4)


def test_two_thousand_dimensions_are_evaluated_fifty_times_in_25000_steps():
    recipe = RECIPES["cifar10-small"]
    data = replace(recipe.data, mean=(0.5,) * 3, std=(0.25,) * 3)
    recipe = replace(recipe, data=data, projector=ProjectorConfig(widths=(*recipe.projector.widths[:-1], 2048)))
    plan = plan_evaluations(count_cost(assemble(recipe).method, recipe), steps=25_000, available=10_000)
    assert plan.samples == 2 * 2048
    assert num_evaluations(25_000, plan) >= PREFERRED_EVALUATIONS
