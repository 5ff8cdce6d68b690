"""The sum over random groups of dimensions, in comparison with an explicit sum."""

import inspect
from functools import partial

import pytest
import torch
from jaxtyping import Float

from fullrank.errors import UserError
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


def test_one_group_equals_the_objective_if_it_ignores_the_order_of_dimensions():
    Z = torch.randn(2, N, D)
    for name in ("frossl", "simclr", "barlow_twins", "vicreg"):
        torch.testing.assert_close(grouped(OBJECTIVES[name], 1)(Z), OBJECTIVES[name](Z))


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


def test_batch_and_queue_are_not_split_even_if_they_have_as_many_rows_as_dimensions():
    Q, K, queue = torch.randn(2, D, D), torch.randn(2, D, D), torch.randn(D, D)
    found = grouped(OBJECTIVES["moco"], 2)(Q, K, queue)
    expected = [OBJECTIVES["moco"](*(X[..., rows] for X in (Q, K, queue))) for rows in parts(2)]
    for name, term in found.items():
        torch.testing.assert_close(term, sum(terms[name] for terms in expected))


def test_cosines_with_prototypes_are_split_by_prototypes():
    S, T, c = torch.randn(2, N, 10), torch.randn(2, N, 10), torch.randn(10)
    found = grouped(OBJECTIVES["dino"], 2)(S, T, c)
    expected = [OBJECTIVES["dino"](*(X[..., rows] for X in (S, T, c))) for rows in parts(2, n=10)]
    for name, term in found.items():
        torch.testing.assert_close(term, sum(terms[name] for terms in expected))


def test_a_queue_of_cosines_is_split_by_prototypes_too():
    S, queue = torch.rand(2, N, 10), torch.rand(2, 7, 10)
    found = grouped(OBJECTIVES["swav"], 2)(S, queue)["prediction"]
    expected = [OBJECTIVES["swav"](S[..., rows], queue[..., rows])["prediction"] for rows in parts(2, n=10)]
    torch.testing.assert_close(found, sum(expected))


def test_a_tensor_without_axis_names_is_split_along_the_last_axis():
    def mine(P: Float[torch.Tensor, "V N D"], T, *, weight):
        return {"distance": weight * (P - T).square().sum(-1).sqrt().mean()}

    P, T = torch.randn(2, N, D), torch.randn(2, N, D)
    found = grouped(partial(mine, weight=2.0), 3)(P, T)
    torch.testing.assert_close(
        found["distance"], sum(mine(P[..., r], T[..., r], weight=2.0)["distance"] for r in parts(3))
    )


@pytest.mark.parametrize("name", OBJECTIVES)
def test_grouped_has_the_signature_of_its_objective(name):
    objective = partial(OBJECTIVES[name])
    module = Grouped(objective, groups=2, seed=0)
    assert tensor_names(module) == tensor_names(objective)
    assert hyperparameters(module) == hyperparameters(objective)
    assert required_views(module) == required_views(objective)
    assert inspect.signature(module) == inspect.signature(objective)


def test_more_groups_than_dimensions_raise():
    with pytest.raises(UserError, match=r"^projector.groups is 8, but there are 7 dimensions; choose 1 to 7 groups$"):
        grouped(simclr, 8)(torch.randn(2, N, D))
