"""What holds for every objective; one in `OBJECTIVES` is tested without a change here.

Exactness on several processes is tested in tests/test_distributed.py, in one process group for all.
"""

import inspect
from dataclasses import replace

import pytest
import torch

from fullrank.objectives import OBJECTIVES
from fullrank.objectives.signature import GENERATOR, required_views
from fullrank.testing import CHECKS, objective_case, run_check
from fullrank.testing.checks import ROUNDING, check_gradient_flow, relative_changes
from fullrank_papers.theory.objectives import THEORY

ALL = OBJECTIVES | THEORY
NUMBERS = {"directclr": {"d0": 3}, "directclr_paper": {"d0": 3}}
"""Hyperparameters for objectives with a default that does not fit 5 dimensions."""

EACH = ["scale of each dimension", "shift of each dimension"]
ROTATION, SCALE, ROWS, ORDER = "rotation", "scale", "scale of each row", "order of dimensions"
CHANGED = dict.fromkeys(
    ("simclr", "moco", "nnclr", "simsiam", "byol", "tico", "ssl_hsic", "ssl_hsic_teacher", "ivne", "simmer", "moco_v3"),
    EACH,
) | {
    "swav": ["order of views", ROTATION, SCALE, *EACH, ROWS],  # the full-size views come first
    "dino": [ROTATION, SCALE, *EACH, ROWS],
    "spectral_contrastive": [SCALE, *EACH, ROWS],
    "vicreg": [ROTATION, SCALE, EACH[0], ROWS],
    "vibcreg": [ROTATION, SCALE, EACH[0], ROWS],
    "barlow_twins": [ROTATION, ROWS],
    "frossl": [ROTATION, ROWS],
    "wmse": [ORDER, ROTATION, ROWS],
    "lejepa": [ORDER, ROTATION, SCALE, *EACH, ROWS],  # the directions are the same
    "visreg": [ORDER, ROTATION, SCALE, *EACH, ROWS],
    "rdmreg": [ORDER, "order of views", ROTATION, SCALE, *EACH, ROWS],
    "mmcr": EACH,
    "emp_ssl": EACH,
    "corinfomax": [SCALE, *EACH, ROWS],
    "corinfomax_batch": [SCALE, *EACH, ROWS],
    "directclr": [ORDER, ROTATION, *EACH],
    "directclr_paper": [ORDER, "order of views", ROTATION, *EACH],
}
"""Objective → the transforms of the embeddings that change its value."""


@pytest.fixture
def case(name):
    return objective_case(ALL[name], hyper=NUMBERS.get(name))


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", ALL)
def test_passes_the_checks(case, check):
    assert [result for result in run_check(check, CHECKS[check], case) if result.status == "failed"] == []


@pytest.mark.parametrize("name", OBJECTIVES)
def test_is_invariant_under_all_other_transforms(name, case):
    assert [transform for transform, change in relative_changes(case).items() if change > ROUNDING] == CHANGED[name]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_view_gets_a_gradient_for_every_allowed_number_of_views(name, case):
    for views in (2, 3, 4) if required_views(OBJECTIVES[name]) is None else (2,):
        assert {result.status for result in check_gradient_flow(replace(case, views=views))} == {"passed"}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_loss_of_nan_is_nan_and_no_error(case):
    tensors = case.random_tensors()
    tensors[case.embedding_names[0]][0, 0, 0] = torch.nan
    assert sum(case.objective(**tensors).values()).isnan()


@pytest.mark.parametrize("name", ALL)
def test_targets_and_state_are_detached(case):
    """Their gradient is None, not zeros."""
    tensors = {key: t.requires_grad_() for key, t in case.random_tensors().items()}
    loss = sum(case.objective(**tensors).values())
    constants = [tensors[key] for key in case.target_names + case.state_names]
    gradients = torch.autograd.grad(loss, [*constants, *tensors.values()], allow_unused=True)
    assert all(gradient is None for gradient in gradients[: len(constants)])


@pytest.mark.parametrize("name", ALL)
def test_hyperparameters_are_keyword_only_with_defaults(name):
    for parameter in inspect.signature(ALL[name]).parameters.values():
        if parameter.name == GENERATOR:
            continue
        allowed = (parameter.empty, None)  # None: an optional tensor, and all of a size in these two objectives
        positional = parameter.kind is not parameter.KEYWORD_ONLY
        assert (parameter.default in allowed) == positional or parameter.name in ("slice_size", "full")
