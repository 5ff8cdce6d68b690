import pytest
import torch
from loops import cosine, mean_over_pairs


@pytest.mark.parametrize(("V", "V_T"), [(2, 2), (4, 4), (4, 2), (3, 1)])
def test_equals_the_mean_over_pairs_of_views(loss, V, V_T, randn):
    P, T = randn(V, 5, 4), randn(V_T, 5, 4)
    assert loss(P, T).item() == pytest.approx(-mean_over_pairs(cosine, P.tolist(), T.tolist()), abs=1e-10)


def test_minimum_is_at_predictions_parallel_to_the_targets_of_other_views(loss, randn):
    T = randn(1, 5, 4).expand(3, 5, 4)
    P = (T * randn(3, 5, 1).exp()).requires_grad_()
    assert loss(P, T).item() == pytest.approx(-1, abs=1e-12)
    assert torch.autograd.grad(loss(P, T), P)[0].abs().max() < 1e-12
    assert loss(P + 0.1 * randn(3, 5, 4), T) > -1 + 1e-5
    assert loss(-P, T).item() == pytest.approx(1, abs=1e-12)


def test_a_zero_row_has_cosine_zero(loss, randn):
    P, T = randn(2, 5, 4), randn(2, 5, 4)
    rest = loss(P[:, 1:], T[:, 1:]).item()
    P[:, 0] = 0
    assert loss(P, T).item() == pytest.approx(rest * 4 / 5, abs=1e-12)
