from dataclasses import replace

import pytest
import torch

from fullrank.errors import UserError
from fullrank.methods import BackboneConfig, ProjectorConfig
from fullrank.recipes import DataConfig, Recipe, build_method, dry_run, import_code, with_objective
from fullrank.views import ViewConfig

TINY = Recipe(
    data=DataConfig(channels=1, mean=(0.5,), std=(0.25,)),
    views=(ViewConfig(count=2, size=8), ViewConfig(count=1, size=6)),
    backbone=BackboneConfig(arguments={"channels": [8, 8, 8, 8], "layers": [1, 1, 1, 1]}, stem="small"),
    projector=ProjectorConfig(widths=(16, 6)),
    batch_size=8,
)


@pytest.fixture
def custom(tmp_path, monkeypatch, request):
    """`custom(body)`: a recipe with a user's objective that has this function body."""
    monkeypatch.syspath_prepend(tmp_path)

    def recipe(body, arguments="weight=1.0"):
        module = f"custom_{abs(hash((request.node.name, body)))}"
        (tmp_path / f"{module}.py").write_text(f"import torch\n\ndef loss(Z, *, {arguments}):\n    {body}\n")
        return import_code(replace(TINY, objective=f"{module}:loss", hyper={}, method={}), trust=True)

    return recipe


@pytest.mark.parametrize("objective", ["dino", "frossl"])
def test_the_method_and_the_random_state_are_unchanged(objective):
    recipe = with_objective(TINY, objective)
    method = build_method(recipe)
    before, state = {name: value.clone() for name, value in method.state_dict().items()}, torch.get_rng_state()
    assert dry_run(method, recipe) == ""
    assert method.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in method.state_dict().items())


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return Z.sum()", "a bare tensor"),
        ("return {'x': 1.0}", "'x' is a float"),
        ("return {'x': Z.mean(0)}", "has the shape (8, 6)"),
        ("return {}", "no term"),
        ("return {'x': Z.detach().sum()}", "a loss without gradient"),
        ("return {'a.b': Z.sum()}", "a term with the name 'a.b'"),
        ("loss.n = getattr(loss, 'n', 0) + 1; return {f'x{loss.n}': Z.sum()}", "other terms at the second call"),
        ("return {'x': Z @ Z}", "fails on Z (3, 8, 6)"),
    ],
)
def test_an_invalid_loss_is_an_error(untyped, custom, body, expected):
    recipe = custom(body)
    with pytest.raises(UserError, match=r"^objective 'custom_") as caught:
        dry_run(build_method(recipe), recipe)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return {'x': (Z + torch.randn_like(Z)).square().mean()}", "global generator of torch,"),
        ("import numpy; return {'x': Z.mean() * float(numpy.random.rand())}", "global generator of NumPy,"),
        ("loss.n = getattr(loss, 'n', 0) + 1; return {'x': loss.n * Z.mean()}", "another loss at a second call"),
    ],
)
def test_an_objective_that_is_no_function_of_its_tensors_is_warned_of(custom, body, expected):
    recipe, state = custom(body), torch.get_rng_state()
    assert expected in dry_run(build_method(recipe), recipe)
    assert torch.equal(torch.get_rng_state(), state)


def test_an_objective_may_read_values_and_draw_from_its_generator(custom):
    recipe = custom("return {'x': Z.sum() if Z.sum().item() > 0 else -Z.sum()}")
    assert dry_run(build_method(recipe), recipe) == ""
    body = "return {'x': (Z @ torch.randn(Z.shape[-1], slices, generator=generator)).square().mean()}"
    sliced = custom(body, "slices: int = 4, generator: torch.Generator")
    assert dry_run(build_method(sliced), sliced) == ""
    assert sliced.hyper == {"slices": 4}


def test_shapes_that_an_objective_or_a_network_refuses_are_an_error():
    wmse = replace(with_objective(TINY, "wmse"), views=TINY.views[:1], projector=ProjectorConfig(widths=(16,)))
    with pytest.raises(UserError, match="16"):
        dry_run(build_method(wmse), wmse)


def test_bfloat16_on_a_cpu_is_refused_for_a_stride_larger_than_the_input():
    machine = replace(TINY.machine, precision="bf16-mixed", accelerator="cpu")
    recipe = replace(TINY, views=(ViewConfig(size=16),), backbone=replace(TINY.backbone, stem="standard"))
    dry_run(build_method(recipe), recipe)
    recipe = replace(recipe, machine=machine)
    with pytest.raises(UserError, match=r"bf16-mixed gives wrong gradients on a CPU .*backbone\.layer4.*32-true"):
        dry_run(build_method(recipe), recipe)
