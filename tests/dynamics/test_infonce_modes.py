"""Singular values and vectors in motion: against finite differences and the integrated ODE, and the misprints."""

import math

import pytest
import torch
from scipy.integrate import solve_ivp

from fullrank.dynamics.infonce import driven_vector_field
from fullrank.dynamics.infonce_alignment import (
    Svd,
    aligned_singular_values,
    aligned_vector_field,
    blow_up_time,
    single_layer,
    svd,
    svd_velocity,
)
from fullrank.errors import UserError


def randn(rng, *shape):
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def vector(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def symmetric(rng, m):
    X = randn(rng, m, m)
    return X + X.mT


def distance(actual, expected):
    actual, expected = torch.cat([a.flatten() for a in actual]), torch.cat([e.flatten() for e in expected])
    return ((actual - expected).norm() / expected.norm()).item()


def integrate(field, start, times):
    """The solution of ẏ = field(y) at `times`, a tensor of shape (T, *start.shape)."""
    shape = start.shape

    def rhs(_, y):
        return field(torch.from_numpy(y).view(shape)).flatten().numpy()

    span = (0.0, times[-1].item())
    y = solve_ivp(rhs, span, start.flatten().numpy(), method="DOP853", t_eval=times.numpy(), rtol=1e-12, atol=1e-13).y
    return torch.from_numpy(y).mT.reshape(len(times), *shape)


def test_single_layer_is_the_integrated_flow_of_a_fixed_x(rng):
    W, X, t = randn(rng, 3, 5), symmetric(rng, 5) / 3, vector(0.0, 0.4, 2.0)
    path = integrate(lambda W: driven_vector_field([W], X)[0], W, t)
    assert distance([single_layer(W, X, t)], [path]) < 1e-8
    torch.testing.assert_close(single_layer(W, X, torch.zeros((), dtype=torch.float64)), W)


def test_gradient_descent_approaches_the_single_layer_at_first_order(rng):
    W, X, t = randn(rng, 3, 5), symmetric(rng, 5) / 3, torch.tensor(1.0, dtype=torch.float64)

    def error(steps):
        V = W
        for _ in range(steps):
            V = V + t / steps * driven_vector_field([V], X)[0]
        return (V - single_layer(W, X, t)).norm()

    assert math.log2(error(400) / error(800)) == pytest.approx(1, abs=0.05)


def test_as_many_singular_values_vanish_as_x_has_negative_eigenvalues_and_the_others_diverge(rng):
    Q = torch.linalg.qr(randn(rng, 5, 5)).Q
    X = Q @ torch.diag(vector(1.0, 0.7, 0.3, -0.4, -1.0)) @ Q.mT
    early, late = (svd(W).S.log() for W in single_layer(randn(rng, 5, 5), X, vector(7.0, 9.0)))
    assert ((late - early) / 2).tolist() == pytest.approx([1.0, 0.7, 0.3, -0.4, -1.0], abs=0.05)


def test_positive_x_does_not_save_the_effective_rank(rng):
    start, end = (
        svd(W).S for W in single_layer(torch.eye(4, dtype=torch.float64), torch.diag(vector(1.0, 0.8, 0.4, 0.2)), vector(0.0, 20.0))
    )
    shares = [s / s.sum() for s in (start, end)]
    assert [torch.special.entr(p).sum().exp().item() for p in shares] == pytest.approx([4.0, 1.0], abs=0.1)


def test_x_that_is_not_symmetric_is_refused(rng):
    with pytest.raises(UserError, match="X is not symmetric"):
        single_layer(randn(rng, 3, 5), randn(rng, 5, 5), torch.tensor(1.0, dtype=torch.float64))


def aligned_to(factors, moved):
    """The factors of a nearby matrix with the signs of `factors`."""
    signs = (factors.U * moved.U).sum(0).sign()
    return Svd(moved.U * signs, moved.S, moved.V * signs)


def difference(W, W_dot, step=1e-5):
    """The velocities of U, S and V by central differences."""
    factors = svd(W)
    ahead, behind = (aligned_to(factors, svd(W + sign * step * W_dot)) for sign in (1, -1))
    return [(a - b) / (2 * step) for a, b in zip(ahead, behind, strict=True)]


@pytest.mark.parametrize("shape", [(4, 4), (6, 4), (4, 6)])
def test_svd_velocity_is_the_derivative_of_the_factors(rng, shape):
    W, W_dot = randn(rng, *shape), randn(rng, *shape)
    for actual, expected in zip(svd_velocity(svd(W), W_dot), difference(W, W_dot), strict=True):
        assert distance([actual], [expected]) < 1e-7


@pytest.mark.parametrize("shape", [(4, 4), (6, 4), (4, 6)])
def test_svd_velocity_puts_the_velocity_of_the_matrix_together(rng, shape):
    W_dot, factors = randn(rng, *shape), svd(randn(rng, *shape))
    (U, S, V), (U_dot, S_dot, V_dot) = factors, svd_velocity(factors, W_dot)
    assert distance([U_dot * S @ V.mT + U * S_dot @ V.mT + U * S @ V_dot.mT], [W_dot]) < 1e-12


def printed_h(S):
    """Eq. 15 as printed, 1/(σ_k² − σ_k′²)."""
    squares = S.square()
    return (1 / (squares[:, None] - squares[None, :])).fill_diagonal_(0)


def test_printed_h_turns_the_singular_vectors_the_other_way(rng):
    W, W_dot = randn(rng, 4, 4), randn(rng, 4, 4)
    U, S, V = svd(W)
    M = U.mT @ W_dot @ V * S
    printed = U @ (printed_h(S) * (M + M.mT))
    assert distance([printed], [svd_velocity(svd(W), W_dot).U]) == pytest.approx(2, abs=1e-9)


def test_coinciding_or_missing_singular_values_have_no_vectors_to_follow(rng):
    with pytest.raises(UserError, match="two singular values coincide"):
        svd_velocity(svd(torch.eye(3, dtype=torch.float64)), randn(rng, 3, 3))
    with pytest.raises(UserError, match="has a singular value 0"):
        svd_velocity(svd(torch.zeros(3, 1, dtype=torch.float64)), randn(rng, 3, 1))


def test_aligned_flow_is_what_the_layers_do_to_their_singular_values(rng):
    U, Q, V = (torch.linalg.qr(randn(rng, 3, 3)).Q for _ in range(3))
    s1, s2, a = vector(2.0, 1.5, 0.5), vector(3.0, 1.0, 0.7), vector(0.5, -1.0, 2.0)
    W1, W2, X = Q * s1 @ V.mT, U * s2 @ Q.mT, V * a @ V.mT
    flow = driven_vector_field([W1, W2], X)
    actual = [svd_velocity(Svd(Q, s1, V), flow[0]).S, svd_velocity(Svd(U, s2, Q), flow[1]).S]
    assert distance(actual, aligned_vector_field(s1, s2, a)) < 1e-13


def test_printed_equation_of_one_singular_value_has_the_wrong_sign_of_c():
    s1, s2, a = vector(2.0), vector(1.0), vector(0.5)
    C = s1**2 - s2**2
    velocity, _ = driven_vector_field([s1[None], s2[None]], a[None])
    assert velocity == s1 * (s1**2 - C) * a
    assert velocity != s1 * (s1**2 + C) * a


STARTS = {"C > 0": (0.9, 0.4), "C < 0": (0.3, 0.8), "C = 0": (0.6, 0.6), "C nearly 0": (0.6, 0.6 + 1e-9), "one dead": (0.5, 0.0)}


@pytest.mark.parametrize(("s1", "s2"), STARTS.values(), ids=STARTS.keys())
@pytest.mark.parametrize("a", [-1.5, 0.0, 0.7])
def test_closed_form_of_aligned_singular_values_is_the_integrated_flow(s1, s2, a):
    s1, s2, a = vector(s1), vector(s2), vector(a)
    t = vector(0.0, 0.5, 0.9) * min(1.0, blow_up_time(s1, s2, a).item())
    path = integrate(lambda s: torch.stack(aligned_vector_field(s[0], s[1], a)), torch.stack([s1, s2]), t)
    for actual, expected in zip(aligned_singular_values(s1, s2, a, t), path.unbind(1), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-8, atol=1e-12)


def test_closed_form_starts_at_its_start_and_is_the_formula_of_the_paper_s_symbols():
    s1, s2, a, t = vector(0.9, 0.3), vector(0.4, 0.8), vector(-1.5, 0.7), vector(0.0, 0.2, 0.6)
    C = s1**2 - s2**2
    actual = aligned_singular_values(s1, s2, a, t)
    torch.testing.assert_close(actual[0].square(), C / (1 - (1 - C / s1**2) * (2 * a * C * t[:, None]).exp()), rtol=1e-13, atol=0)
    assert actual[0][0].tolist() == s1.tolist()
    assert actual[1][0].tolist() == s2.tolist()


def test_a_negative_mode_keeps_only_what_the_layers_differ_by():
    for t in (1e3, 1e9, math.inf):
        s1, s2 = aligned_singular_values(vector(0.9, 0.3, 0.5, 0.0), vector(0.4, 0.8, 0.5, 0.2), vector(-1.0, -1.0, -1.0, -1.0), vector(t))
        assert s1[0].tolist() == pytest.approx([math.sqrt(0.65), 0, 0, 0], abs=0.04 if t < 1e4 else 1e-4)
        assert s2[0].tolist() == pytest.approx([0, math.sqrt(0.55), 0, 0.2], abs=0.04 if t < 1e4 else 1e-4)


def test_a_positive_mode_is_infinite_from_its_blow_up_time_on_and_finite_before():
    s1, s2, a = vector(0.9, 0.3, 0.6), vector(0.4, 0.8, 0.6), vector(1.0, 2.0, 0.5)
    blow_up = blow_up_time(s1, s2, a)
    expected = [math.log(0.81 / 0.16) / (2 * 0.65), math.log(0.09 / 0.64) / (4 * -0.55), 1 / 0.36]
    assert blow_up.tolist() == pytest.approx(expected, rel=1e-13)
    for k, t in enumerate(blow_up):
        before, after = (torch.stack(aligned_singular_values(s1, s2, a, t * factor)).T[k] for factor in (1 - 1e-9, 1 + 1e-9))
        assert before.isfinite().all()
        assert (before > 1e3).all()
        assert after.isinf().all()


def test_no_mode_blows_up_without_growth_or_with_a_dead_layer():
    assert blow_up_time(vector(1.0, 1.0, 1.0, 0.0), vector(2.0, 2.0, 0.0, 0.0), vector(-1.0, 0.0, 1.0, 1.0)).isinf().all()
    s1, s2 = aligned_singular_values(vector(1.0, 0.0), vector(0.0, 0.0), vector(1.0, 1.0), vector(1e6))
    assert s1[0].tolist() == [1.0, 0.0]
    assert s2[0].tolist() == [0.0, 0.0]
