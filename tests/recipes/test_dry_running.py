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

    def recipe(body):
        module = f"custom_{abs(hash((request.node.name, body)))}"
        (tmp_path / f"{module}.py").write_text(f"import torch\n\ndef loss(Z, *, weight=1.0):\n    {body}\n")
        return import_code(replace(TINY, objective=f"{module}:loss", hyper={}, method={}), trust=True)

    return recipe


def build_and_dry_run(recipe):
    dry_run(build_method(recipe), recipe)


def test_invalid_shapes_are_found():
    recipe = replace(
        with_objective(TINY, "wmse"), views=(ViewConfig(count=2, size=8),), projector=ProjectorConfig(widths=(16,))
    )
    with pytest.raises(UserError, match="16"):
        build_and_dry_run(recipe)


@pytest.mark.parametrize("objective", ["dino", "frossl"])
def test_the_method_is_unchanged(objective):
    recipe = with_objective(TINY, objective)
    method = build_method(recipe)
    before, state = {name: value.clone() for name, value in method.state_dict().items()}, torch.get_rng_state()
    dry_run(method, recipe)
    assert method.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in method.state_dict().items())


def test_a_users_objective_may_read_values(custom):
    build_and_dry_run(custom("return {'sum': weight * Z.sum() if Z.sum().item() > 0 else -Z.sum()}"))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return Z.sum()", r"returns a bare tensor \(\), expected named scalars; return"),
        ("return Z.sum(), Z.mean()", "returns a tuple, expected named scalars"),
        ("return {'x': 1.0}", "returns 'x' is a float"),
        ("return {'x': Z.mean(0)}", r"returns 'x' has the shape \(8, 6\)"),
        ("return {}", "returns no term"),
        ("return {'x': Z.detach().sum()}", "returns a loss without gradient"),
        ("return {'x': Z.sum().to(torch.complex64)}", "returns 'x' has the type complex64"),
        ("return {float('nan'): Z.sum()}", "returns a term with the name nan"),
        ("return {'': Z.sum()}", "returns a term with the name ''"),
        ("return {'a.b': Z.sum()}", "returns a term with the name 'a.b'"),
        (r"return {'a\nb': Z.sum()}", r"returns a term with the name 'a\\nb'"),
        (
            "loss.n = getattr(loss, 'n', 0) + 1; return {f'x{loss.n}': Z.sum()}",
            "returns other terms at the second call",
        ),
        ("return {'x': Z @ Z}", r"fails on Z \(3, 8, 6\): RuntimeError: .*; see fullrank check"),
    ],
)
def test_an_invalid_loss_is_an_error_of_one_line(custom, body, expected):
    with pytest.raises(UserError, match=f"^objective 'custom_.*:loss' {expected}") as caught:
        build_and_dry_run(custom(body))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("body", "source"),
    [
        ("return {'x': (Z + torch.randn_like(Z)).square().mean()}", "torch"),
        ("import numpy; return {'x': Z.square().mean() * float(numpy.random.rand())}", "NumPy"),
    ],
)
def test_an_objective_that_draws_from_a_global_generator_is_warned_of(custom, body, source):
    recipe = custom(body)
    state = torch.get_rng_state()
    warning = dry_run(build_method(recipe), recipe)
    assert f"draws from the global generator of {source}," in warning
    assert "generator: torch.Generator" in warning
    assert torch.equal(torch.get_rng_state(), state)


def test_an_objective_that_differs_at_the_second_call_is_warned_of(custom):
    recipe = custom("loss.n = getattr(loss, 'n', 0) + 1; return {'x': loss.n * Z.square().mean()}")
    assert "another loss at a second call" in dry_run(build_method(recipe), recipe)


def test_an_objective_with_a_generator_or_without_random_numbers_has_no_warning(tmp_path, monkeypatch, custom):
    (tmp_path / "sliced_loss.py").write_text(
        "import torch\n\ndef loss(Z, *, slices: int = 4, generator: torch.Generator):\n"
        "    A = torch.randn(Z.shape[-1], slices, generator=generator)\n    return {'x': (Z @ A).square().mean()}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    sliced = import_code(replace(TINY, objective="sliced_loss:loss", hyper={}, method={}), trust=True)
    for recipe in (sliced, custom("return {'x': Z.square().mean()}")):
        assert dry_run(build_method(recipe), recipe) == ""
    assert sliced.hyper == {"slices": 4}


def test_bfloat16_on_a_cpu_is_refused_for_a_stride_larger_than_the_input():
    def recipe(size, precision, accelerator="cpu"):
        machine = replace(TINY.machine, precision=precision, accelerator=accelerator)
        return replace(
            TINY,
            views=(ViewConfig(count=2, size=size),),
            machine=machine,
            backbone=replace(TINY.backbone, stem="standard"),
        )

    with pytest.raises(
        UserError,
        match=r"bf16-mixed gives wrong gradients on a CPU .* for backbone\.layer4.*stride 2 of 1×1 pixels; .*32-true",
    ):
        build_and_dry_run(recipe(16, "bf16-mixed"))
    build_and_dry_run(recipe(16, "32-true"))
    build_and_dry_run(recipe(16, "bf16-mixed", "cuda"))
    build_and_dry_run(recipe(32, "bf16-mixed"))
