"""What every objective promises. A new objective is covered by one row of ARGUMENTS."""

import inspect
import subprocess
import sys

import jaxtyping
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fullrank.objectives import OBJECTIVES, TWO_VIEWS

N, D = 6, 4  # no other size is 6: what has length 6 is the samples


def embeddings(V):
    return lambda rng: (torch.randn(V, N, D, generator=rng, dtype=torch.float64),)


# name → the tensor arguments, drawn at random
ARGUMENTS = {
    "frossl": embeddings(3),
    "simclr": embeddings(3),
    "barlow_twins": embeddings(2),
    "vicreg": embeddings(2),
}

every_objective = pytest.mark.parametrize("name", OBJECTIVES)


@pytest.fixture
def arguments(name, rng):
    return ARGUMENTS[name](rng)


@pytest.fixture
def without_shape_checks():
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def loss(name, arguments, **numbers):
    return sum(OBJECTIVES[name](*arguments, **numbers).values())


def value_and_gradients(name, arguments):
    arguments = [t.detach().clone().requires_grad_() for t in arguments]
    value = loss(name, arguments)
    return value, torch.autograd.grad(value, arguments)


def test_every_objective_has_a_row():
    assert ARGUMENTS.keys() == OBJECTIVES.keys()


@every_objective
def test_numbers_are_keywords_with_defaults(name):
    for parameter in inspect.signature(OBJECTIVES[name]).parameters.values():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            assert parameter.default is not inspect.Parameter.empty
        else:
            assert parameter.default is inspect.Parameter.empty


@every_objective
def test_two_views_are_declared_where_the_shape_asks_for_them(name):
    shapes = [p.annotation.dim_str for p in inspect.signature(OBJECTIVES[name]).parameters.values() if p.name == "Z"]
    assert (OBJECTIVES[name] in TWO_VIEWS) == any(shape.startswith("2 N") for shape in shapes)


@every_objective
def test_returns_finite_scalars_with_a_gradient_for_every_argument(name, arguments):
    terms = OBJECTIVES[name](*arguments)
    assert all(term.shape == () and term.dtype == torch.float64 and term.isfinite() for term in terms.values())
    _, gradients = value_and_gradients(name, arguments)
    assert all(g.isfinite().all() and g.abs().max() > 1e-6 for g in gradients)


@every_objective
def test_gradient_is_that_of_finite_differences(name, arguments):
    assert torch.autograd.gradcheck(lambda *tensors: loss(name, tensors), [t.requires_grad_() for t in arguments])


@every_objective
def test_a_weight_scales_the_term_of_its_name_alone(name, arguments):
    terms = OBJECTIVES[name](*arguments)
    for parameter in inspect.signature(OBJECTIVES[name]).parameters.values():
        if parameter.name in terms:
            doubled = OBJECTIVES[name](*arguments, **{parameter.name: 2 * parameter.default})
            for term, value in terms.items():
                assert doubled[term].item() == pytest.approx((2 if term == parameter.name else 1) * value.item(), rel=1e-12)


@every_objective
def test_ignores_the_order_of_samples(name, arguments, rng):
    order = torch.randperm(N, generator=rng)
    shuffled = [t[:, order] if t.ndim == 3 and t.shape[1] == N else t for t in arguments]
    assert any(s is not t for s, t in zip(shuffled, arguments, strict=True))
    assert loss(name, shuffled).item() == pytest.approx(loss(name, arguments).item(), rel=1e-12)


@every_objective
def test_float32_agrees_with_float64(name, arguments):
    value, gradients = value_and_gradients(name, arguments)
    value32, gradients32 = value_and_gradients(name, [t.float() for t in arguments])
    assert value32.dtype == torch.float32
    torch.testing.assert_close(value32.double(), value, rtol=1e-5, atol=1e-5)
    for g32, g in zip(gradients32, gradients, strict=True):
        torch.testing.assert_close(g32.double(), g, rtol=1e-4, atol=1e-5 * g.abs().max().item())


COLLAPSES = {
    "constant column": lambda t: t.index_fill(-1, torch.tensor([1]), 0.1),
    "zero column": lambda t: t.index_fill(-1, torch.tensor([1]), 0.0),
    "equal rows": lambda t: t[..., :1, :].expand_as(t),
    "equal rows and views": lambda t: t[:1, :1].expand_as(t),
    "all zero": torch.zeros_like,
    "rank one": lambda t: t[..., :1].expand_as(t),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("collapse", COLLAPSES)
@every_objective
def test_collapse_has_a_finite_value_and_a_moderate_gradient(name, arguments, collapse, dtype):
    value, gradients = value_and_gradients(name, [COLLAPSES[collapse](t).to(dtype) for t in arguments])
    assert value.isfinite()
    assert all(g.isfinite().all() and g.abs().max() < 1e3 for g in gradients)  # a residue of rounding, normalised, would reach 1/ε


@every_objective
def test_never_waits_for_the_device(name, arguments):
    with FakeTensorMode() as mode:  # raises where a value is needed on the host
        fake = [mode.from_tensor(t).requires_grad_() for t in arguments]
        value = loss(name, fake)
        gradients = torch.autograd.grad(value, fake)
    assert [g.shape for g in gradients] == [t.shape for t in arguments]


@every_objective
def test_compiles_into_one_graph(name, arguments, without_shape_checks):
    compiled = torch.compile(OBJECTIVES[name], fullgraph=True, backend="eager")
    assert compiled(*arguments) == OBJECTIVES[name](*arguments)


def test_importing_an_objective_imports_no_heavy_library():
    code = "import sys; from fullrank.objectives import frossl; print(*{module.split('.')[0] for module in sys.modules})"
    imported = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "torch" in imported
    assert not {"torchvision", "timm", "lightning", "datasets", "sklearn", "matplotlib"} & set(imported)
