"""Losses that are not pure functions of the whole batch fail the comparison of 2 and 4 processes with one."""

import math

import broken_losses
import pytest
from torch import tensor

from fullrank.errors import UserError
from fullrank.objectives import barlow_twins, corinfomax, moco, simsiam
from fullrank.testing import measure_exactness, objective_case
from fullrank.testing.case import LossAndGradients
from fullrank.testing.processes import exactness_results, largest_errors

pytestmark = pytest.mark.ddp

BROKEN = "correct barlow_with_a_local_correlation hinge_with_a_sum_in_place rank_of_the_process random_inside"
BROKEN += " keeps_state raises_on_rank_one detached always_zero"
LOSSES = barlow_twins, corinfomax, moco, simsiam, *(getattr(broken_losses, name) for name in BROKEN.split())


@pytest.fixture(scope="module")
def measured():
    return measure_exactness([objective_case(loss) for loss in LOSSES], processes=(2, 4))


@pytest.mark.parametrize("name", ["barlow_twins", "corinfomax", "moco", "simsiam", "correct"])
def test_a_pure_function_is_exact(measured, name):
    assert [errors.processes for errors in measured[name]] == [2, 4]
    assert all(errors.exact for errors in measured[name])
    assert {result.status for result in exactness_results(measured[name])} == {"passed"}


@pytest.mark.parametrize("name", ["barlow_with_a_local_correlation", "hinge_with_a_sum_in_place"])
def test_a_sum_in_place_over_processes_has_the_right_value_and_a_wrong_gradient(measured, name):
    for errors in measured[name]:
        assert errors.value_error < 1e-12
        assert errors.gradient_error > 1e-3
        assert not errors.exact


@pytest.mark.parametrize("name", ["rank_of_the_process", "random_inside", "keeps_state"])
def test_a_function_of_more_than_its_tensors_fails(measured, name):
    assert not any(errors.exact for errors in measured[name])
    assert min(errors.gradient_error for errors in measured[name]) > 1e-4


@pytest.mark.parametrize(
    ("name", "words"), [("raises_on_rank_one", "RuntimeError: only here"), ("detached", "does not require grad")]
)
def test_an_exception_in_a_process_is_reported(measured, name, words):
    for errors in measured[name]:
        assert words in errors.exception
        assert not errors.exact


def test_without_gathering_a_sum_over_samples_is_exact_and_a_correlation_is_not():
    local = measure_exactness([objective_case(simsiam), objective_case(barlow_twins)], processes=(2,), gathered=False)
    assert local["simsiam"][0].gradient_error < 1e-10
    assert local["barlow_twins"][0].gradient_error > 0.01


def test_a_function_that_other_processes_cannot_import_raises():
    with pytest.raises(UserError, match="define it with"):
        measure_exactness([objective_case(lambda Z: {"loss": Z.square().mean()}, name="mine")])


def test_nan_on_any_process_is_the_largest_error():
    one, broken = (LossAndGradients(tensor(value), 4.0, {"w": tensor([value])}) for value in (3.0, math.nan))
    for steps in ([one, broken], [broken, one]):
        assert all(map(math.isnan, largest_errors(one, *steps)))


def test_a_loss_of_zero_is_exact(measured):
    for errors in measured["always_zero"]:
        assert (errors.value_error, errors.gradient_error, errors.exact) == (0.0, 0.0, True)
