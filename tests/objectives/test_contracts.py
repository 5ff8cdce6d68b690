"""What every objective promises, by the code with which `fullrank check` examines a user's own. A new objective needs no line here.

That they are exact on several processes is shown in tests/test_distributed.py, since all share one group of processes.
"""

import inspect
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from fullrank.conformance import CHECKS, examine, objective_case
from fullrank.conformance.gradients import finite_differences, reach
from fullrank.conformance.invariances import measured
from fullrank.objectives import OBJECTIVES, THEORY
from fullrank.objectives.signature import required_views

EVERY = OBJECTIVES | THEORY

NUMBERS = {"directclr": {"d0": 3}, "directclr_paper": {"d0": 3}}
"""Where a default does not fit embeddings of 5 dimensions."""

STOPS_INSIDE = {"swav"}
"""Those that stop the gradient of a tensor which also gets one: finite differences have to hold that part fixed."""

every_objective = pytest.mark.parametrize("name", EVERY)


@pytest.fixture
def subject(name):
    return objective_case(EVERY[name], numbers=NUMBERS.get(name))


@pytest.mark.parametrize("check", CHECKS)
@every_objective
def test_keeps_the_contract(subject, check):
    findings = examine(check, CHECKS[check], subject)
    assert [finding for finding in findings if finding.verdict == "failed"] == []
    assert findings or check == "weights"  # some have no weight


@every_objective
def test_numbers_are_keywords_with_defaults(name):
    for parameter in inspect.signature(EVERY[name]).parameters.values():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            assert parameter.default is not inspect.Parameter.empty
        else:
            assert parameter.default is inspect.Parameter.empty


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_view_counts_for_as_many_views_as_its_shape_says(name, subject):
    assert subject.views == (required_views(OBJECTIVES[name]) or 3)
    for views in (2, 3, 4) if required_views(OBJECTIVES[name]) is None else (2,):
        assert {finding.verdict for finding in reach(replace(subject, views=views))} == {"passed"}


@every_objective
def test_finite_differences_need_nothing_held_but_where_the_gradient_is_stopped_inside(name, subject):
    (finding,) = finite_differences(subject)
    assert finding.verdict == ("noted" if name in STOPS_INSIDE else "passed")


@every_objective
def test_targets_and_state_are_cut_off(subject):
    """They get no gradient at all, which is less than one of zeros."""
    tensors = {key: t.requires_grad_() for key, t in subject.draw(torch.Generator().manual_seed(0)).items()}
    loss = sum(subject.objective(**tensors).values())
    still = [tensors[key] for key in subject.targets + subject.state]
    assert torch.autograd.grad(loss, [*still, *tensors.values()], allow_unused=True)[: len(still)] == (None,) * len(still)


@every_objective
def test_ignores_the_order_of_samples(subject):
    assert measured(subject)["order of samples"] <= 1e-12


def test_importing_an_objective_imports_no_heavy_library():
    code = "import sys; from fullrank.objectives import frossl; print(*{module.split('.')[0] for module in sys.modules})"
    imported = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "torch" in imported
    assert not {"torchvision", "timm", "lightning", "datasets", "sklearn", "matplotlib"} & set(imported)
