"""Wrong tensors given to the theories are named in one line, whichever function receives them."""

import importlib
import inspect
import pkgutil

import pytest
import torch

from fullrank.errors import UserError
from fullrank_papers import theory as dynamics
from fullrank_papers.theory import contrastive_pairs, flow, trace
from fullrank_papers.theory.checks import _axes

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


def test_integration_needs_float64():
    for call in (
        lambda: flow.solve_ode(lambda x: -x, torch.ones(2), torch.ones(1)),
        lambda: trace.integrate_outputs(0.1 * torch.eye(2), torch.ones(2), torch.ones(1)),
        lambda: flow.gradient_flow(lambda p: p[0].sum(), (torch.ones(2),), torch.ones(1)),
    ):
        with pytest.raises(UserError, match="float32, expected float64"):
            call()


def test_empty_and_infinite_matrices_are_an_error():
    for C in (torch.ones(0, 0, dtype=double), float("nan") * eye):
        with pytest.raises(UserError, match=r"symmetric|finite"):
            contrastive_pairs.eigenbasis(C)
    with pytest.raises(UserError, match="NaN"):
        trace.integrate_outputs(float("nan") * eye, torch.ones(3, dtype=double), torch.ones(1, dtype=double))
