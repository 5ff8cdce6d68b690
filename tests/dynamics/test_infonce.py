"""Networks under InfoNCE: vector fields against autograd of the loss, closed forms against the integrated ODE, and the misprints."""

import math

import pytest
import torch
from scipy.integrate import solve_ivp

from fullrank.dynamics.infonce import (
    driving_matrix,
    embedding_flow,
    imbalances,
    layers_flow,
    linear_flow,
    relu_flow,
    softmax_weights,
    weighted_covariances,
)
from fullrank.dynamics.infonce_modes import (
    Svd,
    aligned_flow,
    aligned_singular_values,
    alignment,
    alignment_velocity,
    blow_up_time,
    single_layer,
    svd,
    svd_velocity,
)
from fullrank.errors import UserError
from fullrank.objectives import infonce_squared

DEPTHS = {"one": [(3, 5)], "two": [(4, 5), (3, 4)], "two wide": [(7, 5), (6, 7)], "four": [(4, 5), (6, 4), (3, 6), (4, 3)]}
every_depth = pytest.mark.parametrize("shapes", DEPTHS.values(), ids=DEPTHS.keys())


@pytest.fixture
def rng():
    return torch.Generator().manual_seed(0)


def randn(rng, *shape):
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def vector(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def pairs(rng, n=8, m=5):
    x = randn(rng, n, m)
    return torch.stack([x, x + 0.5 * randn(rng, n, m)])


def layers(rng, shapes):
    return [randn(rng, *shape) / 2 for shape in shapes]


def symmetric(rng, m):
    X = randn(rng, m, m)
    return X + X.mT


def loss(Z):
    return sum(infonce_squared(Z).values())


def relu_network(weights, x):
    for W in weights[:-1]:
        x = (x @ W.mT).relu()
    return x @ weights[-1].mT


def linear_network(weights, x):
    for W in weights:
        x = x @ W.mT
    return x


def descent(network, weights, x):
    weights = [W.clone().requires_grad_() for W in weights]
    return [-g for g in torch.autograd.grad(loss(network(weights, x)), weights)]


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


def test_softmax_weights_are_the_shares_of_the_denominators_written_as_loops(rng):
    z, positive = Z = pairs(rng, n=5, m=3)
    for i, row in enumerate(softmax_weights(Z)):
        terms = [math.exp(-sum((z[i] - (positive[i] if j == i else z[j])) ** 2) / 2) for j in range(5)]
        assert row.tolist() == pytest.approx([term / sum(terms) for term in terms], rel=1e-13)


def test_softmax_weights_survive_distances_that_no_exponential_holds(rng):
    alpha = softmax_weights(1e3 * pairs(rng))
    assert alpha.isfinite().all()
    assert alpha.sum(1).tolist() == pytest.approx([1.0] * 8)


def test_embeddings_move_against_the_gradient_of_the_loss(rng):
    Z = pairs(rng).requires_grad_()
    (gradient,) = torch.autograd.grad(loss(Z), Z)
    assert distance([embedding_flow(Z.detach())], [-gradient]) < 1e-12


def test_driving_matrix_is_eq_6_and_lemma_2_written_as_loops(rng):
    x, positive = views = pairs(rng)
    alpha = softmax_weights(pairs(rng))
    first, data, augmentation = torch.zeros(3, 5, 5, dtype=torch.float64)
    for i in range(8):
        shift = positive[i] - x[i]
        first -= (1 - alpha[i, i]) * torch.outer(shift, positive[i])
        augmentation += (1 - alpha[i, i]) * torch.outer(shift, shift)
        for j in range(8):
            data += alpha[i, j] * torch.outer(x[i] - x[j], x[i] - x[j])
            if j != i:
                first += torch.outer(alpha[i, j] * (positive[i] - x[j]) + alpha[j, i] * (x[i] - x[j]), x[i])
    assert distance(weighted_covariances(views, alpha), [data, augmentation]) < 1e-13
    assert distance([driving_matrix(views, alpha)], [first]) < 1e-13


def test_driving_matrix_loses_no_digits_to_a_distant_mean(rng):
    views, alpha = pairs(rng), softmax_weights(pairs(rng))
    assert distance([driving_matrix(views + 1e6, alpha)], [driving_matrix(views, alpha)]) < 1e-8


def test_uniform_weights_make_sums_that_are_2n_covariances_of_the_data(rng):
    x = pairs(rng)
    data, _ = weighted_covariances(x, torch.full((8, 8), 1 / 8, dtype=torch.float64))
    torch.testing.assert_close(data, 2 * 8 * torch.cov(x[0].mT, correction=0))


@every_depth
def test_linear_layers_move_against_the_gradient_of_the_loss(rng, shapes):
    weights, x = layers(rng, shapes), pairs(rng)
    assert distance(linear_flow(weights, x), descent(linear_network, weights, x)) < 1e-12


@every_depth
def test_relu_layers_move_against_the_gradient_of_the_loss(rng, shapes):
    weights, x = layers(rng, shapes), pairs(rng)
    assert distance(relu_flow(weights, x), descent(relu_network, weights, x)) < 1e-12


def test_two_layers_move_as_lemma_3_says(rng):
    (W1, W2), X = layers(rng, DEPTHS["two"]), symmetric(rng, 5)
    assert distance(layers_flow([W1, W2], X), [W2.mT @ W2 @ W1 @ X, W2 @ W1 @ X @ W1.mT]) < 1e-13


def velocity_of_imbalances(weights, flow):
    """A central difference, which is exact for what is quadratic in the weights."""
    ahead, behind = (imbalances([W + sign * v for W, v in zip(weights, flow, strict=True)]) for sign in (1, -1))
    return [(a - b) / 2 for a, b in zip(ahead, behind, strict=True)]


@every_depth
def test_imbalances_of_neighbours_do_not_move_in_a_linear_flow(rng, shapes):
    weights, x = layers(rng, shapes), pairs(rng)
    velocity = velocity_of_imbalances(weights, linear_flow(weights, x))
    assert len(velocity) == len(shapes) - 1
    assert all(v.abs().max() < 1e-12 for v in velocity)


def test_only_the_diagonal_of_the_imbalance_does_not_move_with_relu(rng):
    weights, x = layers(rng, DEPTHS["two"]), pairs(rng)
    (velocity,) = velocity_of_imbalances(weights, relu_flow(weights, x))
    assert velocity.diagonal().abs().max() < 1e-12
    assert velocity.abs().max() > 1e-2


def test_imbalance_is_conserved_along_the_integrated_flow_and_the_loss_falls(rng):
    x, shapes = pairs(rng), [(4, 5), (5, 4)]
    weights = layers(rng, shapes)

    def unpack(y):
        return [part.view(shape) for part, shape in zip(y.split([20, 20]), shapes, strict=True)]

    start = torch.cat([W.flatten() for W in weights])
    path = integrate(lambda y: torch.cat([v.flatten() for v in linear_flow(unpack(y), x)]), start, vector(0.0, 0.3, 1.0))
    losses = [loss(linear_network(unpack(y), x)).item() for y in path]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.5 * losses[0]
    assert (imbalances(unpack(path[-1]))[0] - imbalances(weights)[0]).abs().max() < 1e-10


def test_gradient_descent_drifts_from_the_imbalance_at_first_order_in_the_learning_rate(rng):
    x, start = pairs(rng), layers(rng, DEPTHS["two"])

    def drift(steps):
        weights = start
        for _ in range(steps):
            weights = [W + 0.2 / steps * v for W, v in zip(weights, linear_flow(weights, x), strict=True)]
        return (imbalances(weights)[0] - imbalances(start)[0]).norm()

    assert math.log2(drift(100) / drift(200)) == pytest.approx(1, abs=0.05)


def test_layers_that_do_not_fit_are_refused_by_name(rng):
    W1, W2 = layers(rng, DEPTHS["two"])
    with pytest.raises(UserError, match=r"W2 has shape \(4, 5\), but 3 dimensions enter it; give it the shape \(outputs, 3\)"):
        layers_flow([torch.zeros(3, 5, dtype=torch.float64), W1], symmetric(rng, 5))
    for refused in (lambda: linear_flow([W2], pairs(rng)), lambda: relu_flow([W2], pairs(rng)), lambda: imbalances([W1, W1])):
        with pytest.raises(UserError, match="dimensions enter it"):
            refused()


def test_single_layer_is_the_integrated_flow_of_a_fixed_x(rng):
    (W,), X, t = layers(rng, DEPTHS["one"]), symmetric(rng, 5) / 3, vector(0.0, 0.4, 2.0)
    path = integrate(lambda W: layers_flow([W], X)[0], W, t)
    assert distance([single_layer(W, X, t)], [path]) < 1e-8
    torch.testing.assert_close(single_layer(W, X, torch.zeros((), dtype=torch.float64)), W)


def test_gradient_descent_approaches_the_single_layer_at_first_order(rng):
    (W,), X, t = layers(rng, DEPTHS["one"]), symmetric(rng, 5) / 3, torch.tensor(1.0, dtype=torch.float64)

    def error(steps):
        V = W
        for _ in range(steps):
            V = V + t / steps * layers_flow([V], X)[0]
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


def test_alignment_moves_as_lemma_6_says_with_h_of_opposite_sign(rng):
    (W1, W2), x = layers(rng, [(4, 5), (6, 4)]), pairs(rng)
    first, second = svd(W1), svd(W2)
    X = driving_matrix(x, softmax_weights(x @ (W2 @ W1).mT))
    A, H1, H2 = alignment(first, second), -printed_h(first.S), -printed_h(second.S)
    F = torch.diag(second.S) @ second.U.mT @ (-W2 @ W1 @ X) @ first.V @ torch.diag(first.S)
    lemma = -A @ (H1 * (A.mT @ F + F.mT @ A)) + (H2 * (A @ F.mT + F @ A.mT)) @ A
    assert distance([alignment_velocity(first, second, linear_flow([W1, W2], x))], [lemma]) < 1e-11


def test_alignment_velocity_is_the_derivative_along_the_flow_of_layers_of_any_width(rng):
    (W1, W2), x, step = layers(rng, DEPTHS["two wide"]), pairs(rng), 1e-5
    first, second, flow = svd(W1), svd(W2), linear_flow([W1, W2], x)
    ahead, behind = (alignment(aligned_to(first, svd(W1 + h * flow[0])), aligned_to(second, svd(W2 + h * flow[1]))) for h in (step, -step))
    assert distance([alignment_velocity(first, second, flow)], [(ahead - behind) / (2 * step)]) < 1e-6


def test_balanced_layers_are_aligned_and_stay_so_under_the_loss(rng):
    U, Q, V = (torch.linalg.qr(randn(rng, 4, 4)).Q for _ in range(3))
    S = torch.diag(vector(0.4, 0.3, 0.2, 0.1))
    weights, x = [Q @ S @ V.mT, U @ S @ Q.mT], pairs(rng, m=4)
    assert imbalances(weights)[0].abs().max() < 1e-15

    def field(W):
        return torch.stack(linear_flow(list(W), x))

    W1, W2 = integrate(field, torch.stack(weights), vector(0.0, 1.0))[-1]
    torch.testing.assert_close(svd(W1).S, svd(W2).S)
    assert svd(W1).S[0] > 0.6
    assert distance([alignment(svd(W1), svd(W2)).abs()], [torch.eye(4)]) < 1e-6


def test_aligned_flow_is_what_the_layers_do_to_their_singular_values(rng):
    U, Q, V = (torch.linalg.qr(randn(rng, 3, 3)).Q for _ in range(3))
    s1, s2, a = vector(2.0, 1.5, 0.5), vector(3.0, 1.0, 0.7), vector(0.5, -1.0, 2.0)
    W1, W2, X = Q * s1 @ V.mT, U * s2 @ Q.mT, V * a @ V.mT
    flow = layers_flow([W1, W2], X)
    actual = [svd_velocity(Svd(Q, s1, V), flow[0]).S, svd_velocity(Svd(U, s2, Q), flow[1]).S]
    assert distance(actual, aligned_flow(s1, s2, a)) < 1e-13


def test_printed_equation_of_one_singular_value_has_the_wrong_sign_of_c():
    s1, s2, a = vector(2.0), vector(1.0), vector(0.5)
    C = s1**2 - s2**2
    velocity, _ = aligned_flow(s1, s2, a)
    assert velocity == s1 * (s1**2 - C) * a
    assert velocity != s1 * (s1**2 + C) * a


STARTS = {"C > 0": (0.9, 0.4), "C < 0": (0.3, 0.8), "C = 0": (0.6, 0.6), "C nearly 0": (0.6, 0.6 + 1e-9), "one dead": (0.5, 0.0)}


@pytest.mark.parametrize(("s1", "s2"), STARTS.values(), ids=STARTS.keys())
@pytest.mark.parametrize("a", [-1.5, 0.0, 0.7])
def test_closed_form_of_aligned_singular_values_is_the_integrated_flow(s1, s2, a):
    s1, s2, a = vector(s1), vector(s2), vector(a)
    t = vector(0.0, 0.5, 0.9) * min(1.0, blow_up_time(s1, s2, a).item())
    path = integrate(lambda s: torch.stack(aligned_flow(s[0], s[1], a)), torch.stack([s1, s2]), t)
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
