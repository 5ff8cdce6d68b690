import broken_losses
import pytest
import torch

from fullrank.objectives import simsiam, swav
from fullrank.testing import objective_case
from fullrank.testing.gradients import (
    StopGradientRecorder,
    check_collapse,
    check_finite_differences,
    check_gradient_flow,
)


def test_a_correct_loss_passes(failed):
    assert failed(check_gradient_flow, broken_losses.correct) == {}
    assert failed(check_finite_differences, broken_losses.correct) == {}


@pytest.mark.parametrize("loss", [broken_losses.wrong_gradient, broken_losses.cancels, broken_losses.random_inside])
def test_a_gradient_that_is_not_the_derivative_fails(failed, loss):
    assert failed(check_finite_differences, loss) == {"equals finite differences": "no"}


@pytest.mark.parametrize("loss", [broken_losses.stop_gradient, swav])
def test_stop_gradients_are_constants_in_finite_differences(loss):
    (result,) = check_finite_differences(objective_case(loss))
    assert (result.status, result.measured) == ("info", "yes, with detached values constant")


def test_a_wrong_gradient_beside_a_stop_gradient_fails(failed):
    def loss(Z):
        return {"loss": (Z[0] - Z[1].detach()).square().mean() + (Z * Z.data).sum()}

    assert failed(check_finite_differences, loss) == {"equals finite differences": "no"}


def test_a_target_with_a_gradient_fails(failed):
    assert failed(check_gradient_flow, simsiam) == {}
    assert failed(check_gradient_flow, broken_losses.target_gets_a_gradient) == {
        "no gradient for targets and state": "a gradient for T"
    }


def test_a_view_without_gradient_fails(failed):
    def loss(Z, T):
        return {"loss": (Z[0] - T[1].detach()).square().mean()}

    assert failed(check_gradient_flow, loss)["reaches every view"] == "none for a view of Z"


# Collapse


def test_a_correct_loss_is_stable_at_collapse(failed):
    assert failed(check_collapse, broken_losses.correct) == {}


def test_a_division_by_the_norm_of_a_constant_column_fails(failed):
    results = failed(check_collapse, broken_losses.nan_at_a_constant_column)
    assert {"collapse: constant columns", "collapse: zero column", "collapse: equal rows"} <= set(results)


def test_an_infinite_gradient_at_collapse_fails(failed):
    results = failed(check_collapse, broken_losses.infinite_gradient_at_equal_views)
    assert set(results) == {"collapse: equal rows and views", "collapse: all zero"}
    assert all(measured.endswith("largest gradient nan") for measured in results.values())


def test_a_normalised_rounding_error_fails(failed):
    """A constant column, whose rounding errors are divided by their norm, has a gradient of 1/ε."""

    def loss(Z):
        A = Z - Z.mean(1, keepdim=True)
        norm = A.norm(dim=1, keepdim=True)
        U = torch.where(norm > 0, A / norm.clamp_min(torch.finfo(Z.dtype).tiny), 0 * A)
        return {"correlation": (U[..., 1:] * U[..., :-1]).sum()}

    measured = failed(check_collapse, loss)["collapse: constant columns"]
    assert float(measured.split()[-1]) > 1e3


# Recorded stop-gradients


def test_detached_values_are_replayed():
    def function(x):
        with torch.no_grad():
            a = 2 * x
        return x * x.detach() * a

    recorder = StopGradientRecorder()
    with recorder:
        assert function(torch.tensor(3.0)) == 54
    for x in (1.0, 5.0):
        with recorder.replay():
            assert function(torch.tensor(x)) == x * 3 * 6


def test_a_replay_keeps_in_place_results_in_place():
    def function(x):
        total = torch.zeros(())
        with torch.no_grad():
            total.add_(x)
        return x * total

    recorder = StopGradientRecorder()
    with recorder:
        function(torch.tensor(3.0))
    with recorder.replay():
        assert function(torch.tensor(5.0)) == 15


def test_values_with_a_gradient_are_not_recorded():
    recorder = StopGradientRecorder()
    with recorder:
        torch.tensor(3.0).square()
    assert recorder.recorded == []
