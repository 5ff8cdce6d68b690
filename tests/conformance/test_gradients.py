import broken_losses
import pytest

from fullrank.conformance import objective_case
from fullrank.conformance.gradients import finite_differences, reach
from fullrank.objectives import simsiam, swav


def test_a_sound_loss_passes(failed):
    assert failed(reach, broken_losses.sound) == {}
    assert failed(finite_differences, broken_losses.sound) == {}


@pytest.mark.parametrize("loss", [broken_losses.wrong_gradient, broken_losses.cancels, broken_losses.random_inside])
def test_a_gradient_that_is_no_derivative_is_found(failed, loss):
    assert failed(finite_differences, loss) == {"equals finite differences": "no"}


@pytest.mark.parametrize("loss", [broken_losses.stops, swav])
def test_a_stopped_gradient_is_noted_and_held_fixed(loss):
    (finding,) = finite_differences(objective_case(loss))
    assert (finding.verdict, finding.measured) == ("noted", "yes, with what it detaches held fixed")


def test_a_stopped_gradient_does_not_excuse_a_wrong_one(failed):
    def loss(Z):
        return {"loss": (Z[0] - Z[1].detach()).square().mean() + (Z * Z.data).sum()}

    assert failed(finite_differences, loss) == {"equals finite differences": "no"}


def test_a_target_that_gets_a_gradient_is_found(failed):
    assert failed(reach, simsiam) == {}
    assert failed(reach, broken_losses.target_gets_a_gradient) == {"leaves targets and state alone": "a gradient for T"}


def test_a_view_that_gets_none_is_found(failed):
    def loss(Z, T):
        return {"loss": (Z[0] - T[1].detach()).square().mean()}

    assert failed(reach, loss)["reaches every view"] == "none for a view of Z"
