"""Groups of 2 and 4 processes, started once, find out every loss that is not a pure function of the whole batch."""

import math

import broken_losses
import pytest
from torch import tensor

from fullrank.conformance import exactness, objective_case
from fullrank.conformance.exactness import _errors, findings
from fullrank.conformance.share import Step
from fullrank.errors import UserError
from fullrank.objectives import barlow_twins, corinfomax, moco, simsiam

pytestmark = pytest.mark.ddp

LOSSES = (
    barlow_twins,
    corinfomax,
    moco,
    simsiam,
    broken_losses.sound,
    broken_losses.barlow_with_a_local_correlation,
    broken_losses.hinge_with_a_sum_in_place,
    broken_losses.rank_of_the_process,
    broken_losses.random_inside,
    broken_losses.remembers,
    broken_losses.dies_on_the_second,
    broken_losses.detached,
    broken_losses.always_zero,
)


@pytest.fixture(scope="module")
def measured():
    return exactness([objective_case(loss) for loss in LOSSES], processes=(2, 4))


@pytest.mark.parametrize("name", ["barlow_twins", "corinfomax", "moco", "simsiam", "sound"])
def test_a_pure_function_is_exact(measured, name):
    assert [one.processes for one in measured[name]] == [2, 4]
    assert all(one.exact for one in measured[name])
    assert {finding.verdict for finding in findings(measured[name])} == {"passed", "noted"}


def test_a_sum_in_place_over_processes_has_the_right_value_and_a_wrong_gradient(measured):
    for one in measured["barlow_with_a_local_correlation"]:
        assert one.value < 1e-12
        assert one.gradient > 0.1
        assert not one.exact


def test_a_hinge_is_examined_on_both_of_its_sides(measured):
    for one in measured["hinge_with_a_sum_in_place"]:
        assert one.value < 1e-12
        assert one.gradient > 1e-3


@pytest.mark.parametrize("name", ["rank_of_the_process", "random_inside", "remembers"])
def test_what_depends_on_more_than_its_tensors_is_found(measured, name):
    assert not any(one.exact for one in measured[name])
    assert min(one.gradient for one in measured[name]) > 1e-4


@pytest.mark.parametrize(("name", "words"), [("dies_on_the_second", "RuntimeError: only here"), ("detached", "does not require grad")])
def test_what_a_process_raises_is_told(measured, name, words):
    for one in measured[name]:
        assert words in one.trouble
        assert not one.exact
    assert words in findings(measured[name])[0].measured


def test_without_gathering_a_sum_over_samples_is_exact_and_a_correlation_is_not(measured):
    assert all(one.alone_gradient < 1e-10 for one in measured["simsiam"])
    assert all(one.alone_gradient > 0.01 for one in measured["barlow_twins"])


def test_a_function_that_other_processes_cannot_import_is_refused():
    with pytest.raises(UserError, match="define it by def in a module"):
        exactness([objective_case(lambda Z: {"loss": Z.square().mean()}, name="mine")])


def test_alone_there_is_nothing_to_compare():
    (none,) = exactness([objective_case(simsiam)], processes=()).values()
    assert none == []


def test_an_error_is_measured_by_the_whole_gradient():
    one = Step(loss=2.0, scale=4.0, gradients=[tensor([3.0]), tensor([4.0])])
    other = Step(loss=2.4, scale=4.0, gradients=[tensor([3.0]), tensor([4.5])])
    assert _errors([one, other], one) == pytest.approx((0.1, 0.1))
    assert _errors([Step(loss=2.0, scale=4.0, gradients=[])], one) == (0.0, math.inf)


def test_nan_on_any_process_is_the_worst_error():
    one = Step(loss=2.0, scale=4.0, gradients=[tensor([3.0])])
    broken = Step(loss=math.nan, scale=4.0, gradients=[tensor([math.nan])])
    for steps in ([one, broken], [broken, one]):
        assert all(map(math.isnan, _errors(steps, one)))


def test_a_loss_of_zero_with_no_slope_is_measured_all_the_same(measured):
    for one in measured["always_zero"]:
        assert (one.value, one.gradient, one.exact) == (0.0, 0.0, True)
