"""The sum over random groups of dimensions, in comparison with an explicit sum."""

import inspect
from functools import partial

import pytest
import torch

from fullrank.methods import Grouped, TrainingLength
from fullrank.methods.directclr_projectors import permutation
from fullrank.objectives import OBJECTIVES, barlow_twins, simclr, tico
from fullrank.objectives.signature import hyperparameters, required_views, tensor_names

D, N, SEED, STEP = 7, 9, 5, 3
pytestmark = pytest.mark.usefixtures("double_precision")


def parts(groups, n=D, step=STEP):
    return permutation(SEED, step, n).tensor_split(groups)


def grouped(objective, groups, step=STEP):
    module = Grouped(objective, groups=groups, seed=SEED)
    module.before_step(step, TrainingLength())
    return module


@pytest.mark.parametrize("groups", [1, 2, 3, D])
@pytest.mark.parametrize("objective", [simclr, barlow_twins])
def test_each_term_is_the_sum_over_the_groups(objective, groups):
    Z = torch.randn(2, N, D)
    found = grouped(objective, groups)(Z)
    assert sorted(torch.cat(parts(groups)).tolist()) == list(range(D))
    assert len(parts(groups)) == groups
    for name, term in found.items():
        torch.testing.assert_close(term, sum(objective(Z[..., rows])[name] for rows in parts(groups)))


def test_the_groups_are_a_function_of_the_step():
    Z, losses = torch.randn(2, N, 12), []
    for step in (0, 1, 2, 0):
        losses.append(grouped(simclr, 4, step)(Z)["uniformity"].item())
    assert len(set(losses)) == 3
    assert losses[0] == losses[3]


def test_a_running_covariance_is_split_along_both_axes():
    Z, T, C = torch.randn(2, N, D), torch.randn(2, N, D), torch.randn(D, D)
    found = grouped(tico, 2)(Z, T, C)
    expected = [tico(Z[..., rows], T[..., rows], C[rows][:, rows]) for rows in parts(2)]
    for name, term in found.items():
        torch.testing.assert_close(term, sum(terms[name] for terms in expected))


def test_cosines_with_prototypes_are_split_by_prototypes():
    S, T, c = torch.randn(2, N, 10), torch.randn(2, N, 10), torch.randn(10)
    found = grouped(OBJECTIVES["dino"], 2)(S, T, c)
    expected = [OBJECTIVES["dino"](*(X[..., rows] for X in (S, T, c))) for rows in parts(2, n=10)]
    for name, term in found.items():
        torch.testing.assert_close(term, sum(terms[name] for terms in expected))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_grouped_has_the_signature_of_its_objective(name):
    objective = partial(OBJECTIVES[name])
    module = Grouped(objective, groups=2, seed=0)
    assert tensor_names(module) == tensor_names(objective)
    assert hyperparameters(module) == hyperparameters(objective)
    assert required_views(module) == required_views(objective)
    assert inspect.signature(module) == inspect.signature(objective)


def test_a_queue_that_may_be_missing_is_split_by_dimensions():
    S, queue = torch.randn(2, N, 10), torch.randn(2, 8, 10)
    found = grouped(OBJECTIVES["swav"], 2)(S, queue)
    expected = [OBJECTIVES["swav"](S[..., rows], queue[..., rows]) for rows in parts(2, n=10)]
    for name, term in found.items():
        torch.testing.assert_close(term, sum(terms[name] for terms in expected))
