import math
from copy import deepcopy
from dataclasses import replace
from typing import get_args, get_type_hints

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensor

from fullrank.methods import BackboneConfig, ProjectorConfig
from fullrank.monitoring import evaluation_plan as planning
from fullrank.monitoring.evaluation_plan import (
    AT_LEAST,
    AT_MOST,
    ENOUGH,
    PER_DIMENSION,
    SHARE,
    Plan,
    Work,
    forward,
    interval,
    plan,
    work_of,
)
from fullrank.recipes import RECIPES, Recipe, assemble
from fullrank.views import ViewConfig

WORK = st.tuples(st.floats(1e6, 1e15), st.floats(1e3, 1e11), st.tuples(st.integers(1, 4096), st.integers(1, 8192)))
RUNS = {"numbers": WORK, "steps": st.integers(1, 200_000), "most": st.integers(1, 50_000)}


def looks(steps, planned):
    """How many there are: one before the first step, one at each interval, one after the last."""
    return 1 + math.ceil(steps / planned.every)


def share(work, steps, planned):
    return looks(steps, planned) * work.look(planned.samples) / (steps * work.step)


def affordable(work, steps, planned):
    return SHARE * steps * work.step / work.look(planned.samples)


@settings(deadline=None)
@given(**RUNS)
def test_the_watch_keeps_to_its_share_wherever_twenty_looks_fit_into_it(numbers, steps, most):
    work = Work(*numbers)
    planned = plan(work, steps=steps, most=most)
    assert 1 <= planned.every <= steps
    assert min(AT_LEAST, steps + 1) <= looks(steps, planned)
    fewest = looks(steps, replace(planned, every=max((steps - 1) // (AT_LEAST - 2), 1)))  # of the intervals that make 20
    if AT_LEAST <= fewest <= min(affordable(work, steps, planned), AT_MOST):
        assert share(work, steps, planned) <= SHARE * (1 + 1e-12)
        assert looks(steps, planned) <= AT_MOST


@settings(deadline=None)
@given(**RUNS)
def test_no_smaller_interval_would_do(numbers, steps, most):
    work = Work(*numbers)
    planned = plan(work, steps=steps, most=most)
    if looks(steps, planned) <= min(affordable(work, steps, planned), AT_MOST):
        if planned.every > 1:
            smaller = replace(planned, every=planned.every - 1)
            assert looks(steps, smaller) > min(int(affordable(work, steps, planned)), AT_MOST)
    else:
        assert planned.every == max(steps // (AT_LEAST - 1), 1)
        assert looks(steps, replace(planned, every=planned.every + 1)) <= AT_LEAST


@pytest.mark.parametrize("steps", [1, 2, 19, 30, 39])
def test_a_short_run_is_not_looked_at_less_for_cheaper_looks(steps):
    """Intervals are whole steps: of 30 steps, 25 affordable looks would leave every second, which makes 16."""
    counts = [looks(steps, Plan(1, interval(steps, bought))) for bought in (0.3, 1.0, 5.0, 19.9, 20.0, 25.0, 39.0, 50.0, 1e9)]
    assert counts == sorted(counts)
    assert counts[0] >= min(AT_LEAST, steps + 1)


@settings(deadline=None)
@given(**RUNS)
def test_images_are_spared_for_the_sake_of_fifty_looks_alone(numbers, steps, most):
    work = Work(*numbers)
    planned = plan(work, steps=steps, most=most)
    D = max(work.dimensions)
    choices = [min(k * D, most) for k in PER_DIMENSION]
    assert planned.samples in choices
    dearer = [n for n in choices if n > planned.samples]
    assert all(SHARE * steps * work.step / work.look(n) < ENOUGH for n in dearer)


@pytest.mark.parametrize(("steps", "samples", "count"), [(500, 256, 20), (2_000, 256, 68), (5_000, 640, 69), (200_000, 1280, AT_MOST)])
def test_the_longer_the_run_the_more_looks_and_images(steps, samples, count):
    planned = plan(Work(step=3e9, image=5e6, dimensions=(128,)), steps=steps, most=10_000)
    assert (planned.samples, looks(steps, planned)) == (samples, pytest.approx(count, abs=2))


def test_what_is_given_is_kept():
    work = Work(step=1e9, image=1e6, dimensions=(128,))
    assert plan(work, steps=100, most=50, samples=70, every=3) == Plan(samples=70, every=3)


def test_fewer_images_than_dimensions_take_their_gram_matrix():
    work = Work(step=1.0, image=0.0, dimensions=(2000,))
    assert work.look(200) == pytest.approx(4 * 200 * 2000 * 200 + 6 * 200**3)
    assert work.look(4000) == pytest.approx(4 * 4000 * 2000 * 2000 + 6 * 2000**3)


def small(**changes):
    recipe = Recipe(
        data=replace(Recipe().data, channels=3, size=16, mean=(0.5,) * 3, std=(0.25,) * 3),
        views=(ViewConfig(size=16),),
        backbone=BackboneConfig(arguments={"channels": [8, 8, 8, 8], "layers": [1, 1, 1, 1]}, stem="small"),
        projector=ProjectorConfig(widths=(32, 16)),
        batch=8,
    )
    return replace(recipe, **changes)


def test_a_pass_counts_its_products_and_changes_nothing():
    """A projector's maps cost 2 · (in · hidden + hidden · out); the rest is the backbone's, whose BatchNorm must not count it."""
    recipe = small()
    method = assemble(recipe).method
    before = deepcopy(method)
    wide = assemble(replace(recipe, projector=ProjectorConfig(widths=(64, 16)))).method
    assert forward(wide, 3, 16, 5) - forward(method, 3, 16, 5) == 2 * (8 * 32 + 32 * 16)
    assert [part.training for part in method.modules()] == [part.training for part in before.modules()]
    assert all(torch.equal(value, before.state_dict()[name]) for name, value in method.state_dict().items())


@pytest.mark.parametrize("kind", get_args(get_type_hints(ProjectorConfig)["kind"]))
def test_no_projector_is_changed_by_counting_it_nor_anything_said(kind, recwarn, capfd):
    recipe = small(projector=ProjectorConfig(kind=kind, widths=(32, 16), d0=4, groups=2))
    method = assemble(recipe).method
    before, random = deepcopy(method.state_dict()), torch.get_rng_state()
    work = work_of(method, recipe)
    assert work.dimensions == (8, recipe.projector.dimensions(8))
    assert all(torch.equal(value, before[name]) for name, value in method.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert not isinstance(method.projector(method.backbone(torch.zeros(2, 3, 16, 16))), FakeTensor)
    assert (recwarn.list, capfd.readouterr()) == ([], ("", ""))


def test_what_is_done_once_a_batch_is_shared_by_its_images():
    """An orthogonal projector builds its matrix for each batch, and multiplies each image by it."""
    recipe = small(projector=ProjectorConfig(kind="orthogonal"))
    method, backbone = assemble(recipe).method, assemble(small(projector=ProjectorConfig(widths=()))).method
    built = [n * (forward(method, 3, 16, n) - forward(backbone, 3, 16, n) - 2 * 8 * 8) for n in (1, 8, 64)]
    assert built[0] > 0
    assert built == pytest.approx([built[0]] * 3)


@pytest.mark.parametrize("name", ["test_vit", "convnext_atto"])
def test_attention_and_grouped_convolutions_are_counted(name):
    """A layer costs its weights at each place of its output; attention adds the products of queries, keys and values."""
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
    found = forward(method, 3, 160, 1) / layers
    assert (1.1 < found < 1.5) if name == "test_vit" else found == 1


def test_double_precision_counts_as_single():
    recipe = small()
    default = torch.get_default_dtype()
    work = work_of(assemble(recipe).method, recipe)
    torch.set_default_dtype(torch.float64)
    try:
        assert work_of(assemble(recipe).method, recipe) == work
    finally:
        torch.set_default_dtype(default)


def test_a_step_is_three_passes_over_the_views_of_a_batch():
    recipe = small()
    method = assemble(recipe).method
    work = work_of(method, recipe)
    assert work.step == 3 * 2 * 8 * work.image
    assert work.dimensions == (8, 16)
    smaller = replace(recipe, views=(ViewConfig(size=16, count=2), ViewConfig(size=8, count=4)))
    assert work_of(method, smaller).step == 3 * 8 * (2 * forward(method, 3, 16, 8) + 4 * forward(method, 3, 8, 8))


def test_the_first_process_watches_while_the_others_wait(monkeypatch):
    recipe = small()
    method = assemble(recipe).method
    alone = work_of(method, recipe)
    monkeypatch.setattr(planning, "world_size", lambda: 4)
    assert work_of(method, recipe) == replace(alone, step=alone.step / 4)


def test_two_thousand_dimensions_are_watched_fifty_times_in_as_many_steps_as_the_docs_say():
    recipe = RECIPES["cifar10-small"]
    data = replace(recipe.data, mean=(0.5,) * 3, std=(0.25,) * 3)
    recipe = replace(recipe, data=data, projector=ProjectorConfig(widths=(*recipe.projector.widths[:-1], 2048)))
    planned = plan(work_of(assemble(recipe).method, recipe), steps=25_000, most=10_000)
    assert planned.samples == 2 * 2048
    assert looks(25_000, planned) >= ENOUGH
