"""The conformance checks of every objective. A new objective in `OBJECTIVES` is tested without a change here.

Exactness on several processes is tested in tests/test_distributed.py, in one process group for all.
"""

import inspect
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from fullrank.objectives import OBJECTIVES
from fullrank.objectives.signature import required_views
from fullrank.testing import CHECKS, objective_case, run_check
from fullrank.testing.gradients import check_finite_differences, check_gradient_flow
from fullrank.testing.invariances import relative_changes
from fullrank_papers.theory.objectives import THEORY

ALL_OBJECTIVES = OBJECTIVES | THEORY

NUMBERS = {"directclr": {"d0": 3}, "directclr_paper": {"d0": 3}}
"""Hyperparameters for objectives with a default that does not fit 5 dimensions."""

STOP_GRADIENT = {"swav"}
"""Objectives with a stop-gradient on a tensor that also gets a gradient: a constant in finite differences."""

every_objective = pytest.mark.parametrize("name", ALL_OBJECTIVES)


@pytest.fixture
def case(name):
    return objective_case(ALL_OBJECTIVES[name], hyper=NUMBERS.get(name))


@pytest.mark.parametrize("check", CHECKS)
@every_objective
def test_passes_the_conformance_check(case, check):
    results = run_check(check, CHECKS[check], case)
    assert [result for result in results if result.status == "failed"] == []
    assert results or check == "weights"  # some objectives have no weight


@every_objective
def test_hyperparameters_are_keyword_only_with_defaults(name):
    for parameter in inspect.signature(ALL_OBJECTIVES[name]).parameters.values():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            assert parameter.default is not inspect.Parameter.empty
        else:
            assert parameter.default in (inspect.Parameter.empty, None)  # None: an optional tensor


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_view_gets_a_gradient_for_every_allowed_number_of_views(name, case):
    assert case.views == (required_views(OBJECTIVES[name]) or 3)
    for views in (2, 3, 4) if required_views(OBJECTIVES[name]) is None else (2,):
        assert {result.status for result in check_gradient_flow(replace(case, views=views))} == {"passed"}


@every_objective
def test_gradients_equal_finite_differences(name, case):
    (result,) = check_finite_differences(case)
    assert result.status == ("info" if name in STOP_GRADIENT else "passed")


@every_objective
def test_targets_and_state_are_detached(case):
    """Their gradient is None, not zeros."""
    tensors = {key: t.requires_grad_() for key, t in case.random_tensors(torch.Generator().manual_seed(0)).items()}
    loss = sum(case.objective(**tensors).values())
    constants = [tensors[key] for key in case.target_names + case.state_names]
    assert torch.autograd.grad(loss, [*constants, *tensors.values()], allow_unused=True)[: len(constants)] == (
        None,
    ) * len(constants)


@every_objective
def test_ignores_the_order_of_samples(case):
    assert relative_changes(case)["order of samples"] <= 1e-12


def test_importing_an_objective_imports_no_heavy_library():
    code = (
        "import sys; from fullrank.objectives import frossl; print(*{module.split('.')[0] for module in sys.modules})"
    )
    imported = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "torch" in imported
    assert not {"torchvision", "timm", "lightning", "datasets", "sklearn", "matplotlib"} & set(imported)
