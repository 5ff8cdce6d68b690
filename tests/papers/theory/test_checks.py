"""Wrong tensors given to the theories are named in one line, whichever function receives them."""

import importlib
import inspect
import pkgutil

import pytest
import torch

from fullrank.errors import UserError
from fullrank_papers import theory as dynamics
from fullrank_papers.theory import contrastive_pairs, flow, infonce, stepwise, trace, two_view
from fullrank_papers.theory.checks import _axes

pytestmark = pytest.mark.usefixtures("no_shape_checks")

eye, double = torch.eye(3, dtype=torch.float64), torch.float64


def functions_of_tensors(*, any_axes: bool = True):
    """Each public function of the package whose first argument is a tensor, or one of a fixed least number of axes."""
    for module in pkgutil.iter_modules(dynamics.__path__):
        if module.name in ("checks", "flow"):
            continue
        members = importlib.import_module(f"fullrank_papers.theory.{module.name}")
        for name, function in inspect.getmembers(members, inspect.isfunction):
            if function.__module__ != members.__name__ or name.startswith("_"):
                continue
            first = next(iter(inspect.signature(function).parameters.values()), None)
            axes = _axes(first.annotation) if first is not None else None
            if axes and (any_axes or not (axes[1] or all(axis.startswith("*") for axis in axes[0]))):
                yield pytest.param(function, id=f"{module.name}.{name}")


def required(function, value):
    """Keyword arguments of the required tensors, all the same value, and numbers for the others."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name: value if _axes(p.annotation) else 1 for p in parameters if p.default is inspect.Parameter.empty}


WRONG = {
    "list": [[1.0, 2.0]],
    "none": None,
    "integers": torch.ones(2, 2, dtype=torch.int64),
    "complex": torch.ones(2, 2, dtype=torch.complex128),
    "half": torch.ones(2, 2, dtype=torch.float16),
}


@pytest.mark.parametrize("function", list(functions_of_tensors()))
@pytest.mark.parametrize("value", WRONG.values(), ids=WRONG)
def test_what_is_not_a_float_tensor_is_an_error(function, value):
    with pytest.raises(UserError, match="expected") as error:
        function(**required(function, value))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("function", list(functions_of_tensors(any_axes=False)))
def test_numbers_are_not_tensors_of_axes(function):
    with pytest.raises(UserError, match=r"expected .*axes"):
        function(**required(function, torch.tensor(1.0, dtype=double)))


MIXED = {
    "trace_loss": lambda: trace.trace_loss(eye, eye, torch.eye(3)),
    "integrate_outputs": lambda: trace.integrate_outputs(0.1 * eye, torch.ones(3), torch.ones(1)),
    "euler_outputs": lambda: trace.euler_outputs(0.1 * eye, torch.ones(3), learning_rate=0.01, steps=1),
    "unconstrained_weights": lambda: contrastive_pairs.unconstrained_weights(torch.eye(3), eye, torch.ones(1)),
    "barlow_loss": lambda: stepwise.barlow_loss(torch.eye(3), eye),
    "frossl_loss": lambda: two_view.frossl_loss(torch.eye(3)[None], eye.expand(2, 2, 3, 3)),
    "linear_vector_field": lambda: infonce.linear_vector_field([torch.eye(3)], torch.ones(2, 4, 3, dtype=double)),
    "weights of two layers": lambda: infonce.imbalances([torch.eye(3), eye]),
}


@pytest.mark.parametrize("call", MIXED.values(), ids=MIXED)
def test_two_precisions_are_named(call):
    with pytest.raises(UserError, match="float32"):
        call()


def test_integration_needs_float64():
    for call in (
        lambda: flow.solve_ode(lambda x: -x, torch.ones(2), torch.ones(1)),
        lambda: trace.integrate_outputs(0.1 * torch.eye(2), torch.ones(2), torch.ones(1)),
        lambda: flow.gradient_flow(lambda p: p[0].sum(), (torch.ones(2),), torch.ones(1)),
    ):
        with pytest.raises(UserError, match="float32, expected float64"):
            call()


@pytest.mark.parametrize("params", [[[1.0]], ([1.0],), {"w": 1.0}, torch.ones(2, dtype=double), None, "w"])
def test_parameters_that_are_not_tensors_are_an_error(params):
    for call in (flow.gradient, lambda loss, p: flow.gradient_flow(loss, p, torch.ones(1))):
        with pytest.raises(UserError, match="dict or tuple"):
            call(lambda p: p[0].sum(), params)


def test_times_may_have_another_precision():
    assert contrastive_pairs.unconstrained_weights(eye, -eye, torch.ones(1)).dtype == double


def test_empty_and_infinite_matrices_are_an_error():
    for C in (torch.ones(0, 0, dtype=double), float("nan") * eye):
        with pytest.raises(UserError, match=r"symmetric|finite"):
            contrastive_pairs.eigenbasis(C)
    with pytest.raises(UserError, match="NaN"):
        trace.integrate_outputs(float("nan") * eye, torch.ones(3, dtype=double), torch.ones(1, dtype=double))
