"""Stepwise learning, compared with the actual loss, integrated ODEs, gradient descent and a wide network."""

import math

import pytest
import torch
from dynamics_helpers import close_absolute, randn

from fullrank.errors import UserError
from fullrank_papers.theory import stepwise
from fullrank_papers.theory.flow import gradient, gradient_flow
from fullrank_papers.theory.objectives import barlow_linear


@pytest.fixture
def X(rng):
    """30 pairs of views: features of decreasing variance, and augmentation noise."""
    images = randn(rng, 30, M) * torch.logspace(0.3, -0.5, M, dtype=torch.float64)
    return images + 0.2 * randn(rng, 2, 30, M)


@pytest.fixture
def G(X):
    return stepwise.feature_cross_correlation(X)


TIMES = torch.linspace(0, 3, 13, dtype=torch.float64)


# A small generic start: Γ = diag(1/j), 8 embeddings of 20 features.
HARMONIC, MODES = 1 / torch.arange(1, 21, dtype=torch.float64), torch.eye(20, dtype=torch.float64)


LONG = torch.linspace(0, 40, 2001, dtype=torch.float64)


@pytest.fixture
def aligned(G, rng):
    """An aligned initialisation on the first D modes: s(0), γ, U, V."""
    gamma, V = stepwise.eigenmodes(G)
    U = torch.linalg.qr(randn(rng, D, D))[0]
    return torch.tensor([0.05, 0.2, 0.01, 1.5], dtype=torch.float64), gamma[:D], U, V[:, :D]


def start(seed, scale=1e-6):
    return scale * randn(torch.Generator().manual_seed(seed), 8, 20)


def trained(start):
    return gradient_flow(
        lambda p: stepwise.barlow_loss(p[0], torch.diag(HARMONIC)), (start,), LONG, rtol=1e-8, atol=1e-14
    )[0]


def actual_loss(W, X):
    """The library's loss on the embeddings of all ordered pairs (x, x′) and (x′, x)."""
    Z = X @ W.mT / math.sqrt(2 * X.shape[1])
    return sum(barlow_linear(torch.stack([Z.flatten(0, 1), Z.flip(0).flatten(0, 1)])).values())


def through(t, s, gamma):
    """The singular value by the formula of the paper."""
    return (4 * gamma * t).exp() / (s**-2 + ((8 * gamma * t).exp() - 1) * gamma).sqrt()


def test_the_cross_correlation_is_the_mean_over_pairs_in_both_orders(X, G):
    expected = torch.zeros(M, M, dtype=torch.float64)
    for x, y in zip(*X, strict=True):
        expected += (torch.outer(x, y) + torch.outer(y, x)) / (2 * X.shape[1])
    close_absolute(G, expected, 1e-14)


def test_the_loss_is_that_of_the_embeddings(X, G, rng):
    W = randn(rng, D, M)
    close_absolute(stepwise.barlow_loss(W, G), actual_loss(W, X), 1e-12 * actual_loss(W, X).item())


def test_the_vector_field_is_minus_the_gradient_of_the_actual_loss(X, G, rng):
    W = randn(rng, D, M)
    expected = -gradient(lambda p: actual_loss(p[0], X), (W,))[0]
    close_absolute(stepwise.vector_field(W, G), expected, 1e-12 * expected.norm().item())


def test_the_closed_form_is_the_integrated_flow_of_the_actual_loss(X, aligned):
    s, gamma, U, V = aligned
    path = gradient_flow(lambda p: actual_loss(p[0], X), (U * s @ V.mT,), TIMES, rtol=1e-12, atol=1e-14)[0]
    close_absolute(stepwise.weights(TIMES, s, gamma, U, V), path, 1e-8)


def test_the_closed_form_solves_its_equation():
    gamma = torch.tensor([1.5, 0.3, 0.0, -0.4], dtype=torch.float64)
    s = torch.tensor([0.1, 2.5, 0.3, 0.7], dtype=torch.float64)
    t = TIMES[1:].requires_grad_()
    for j in range(4):
        value = stepwise.singular_values(t, s[j : j + 1], gamma[j : j + 1])[:, 0]
        slope = torch.autograd.grad(value.sum(), t)[0]
        close_absolute(slope, (4 * gamma[j] * value * (1 - gamma[j] * value**2)).detach(), 1e-12)


def test_the_closed_form_is_the_papers_formula():
    gamma = torch.tensor([1.5, 0.3, 0.0, -0.4], dtype=torch.float64)
    s = torch.tensor([0.1, 2.5, 0.3, 0.7], dtype=torch.float64)
    close_absolute(stepwise.singular_values(TIMES, s, gamma), through(TIMES[:, None], s, gamma), 1e-13)
    logistic = 1 / (1 + (1 / (gamma * s**2) - 1) * (-8 * gamma * TIMES[:, None]).exp())
    close_absolute(stepwise.eigenvalues(TIMES, s, gamma)[:, [0, 1, 3]], logistic[:, [0, 1, 3]], 1e-13)


def test_the_closed_form_begins_at_the_start_and_ends_at_the_optimum():
    gamma = torch.tensor([1.5, 0.3, 0.0, -0.4, 1.5], dtype=torch.float64)
    s = torch.tensor([0.1, 2.5, 0.3, 0.7, 0.0], dtype=torch.float64)
    ends = stepwise.singular_values(torch.tensor([0.0, 1e4], dtype=torch.float64), s, gamma)
    close_absolute(ends[0], s, 1e-15)
    close_absolute(ends[1], torch.tensor([1.5**-0.5, 0.3**-0.5, 0.3, 0.0, 0.0], dtype=torch.float64), 1e-14)


def test_a_tiny_start_converges_without_cancellation():
    """γs² = 1e-30 is far below the rounding error of 1, so 1 − e^{−8γt} and its remainder would cancel."""
    ends = stepwise.eigenvalues(
        torch.tensor([30.0], dtype=torch.float64), *torch.tensor([[1e-15], [1.0]], dtype=torch.float64)
    )
    close_absolute(ends, torch.ones(1, 1, dtype=torch.float64), 1e-14)


def test_the_optimum_is_a_fixed_point_without_loss(G, aligned):
    _, gamma, U, V = aligned
    W = stepwise.weights(torch.tensor(math.inf, dtype=torch.float64), torch.ones(D, dtype=torch.float64), gamma, U, V)
    assert stepwise.barlow_loss(W, G) < 1e-28
    assert stepwise.vector_field(W, G).norm() < 1e-13


def test_the_eigenvalues_give_the_loss(G, aligned):
    s, gamma, U, V = aligned
    t = torch.tensor(0.2, dtype=torch.float64)
    values = stepwise.eigenvalues(t, s, gamma)
    W = stepwise.weights(t, s, gamma, U, V)
    close_absolute(torch.linalg.eigvalsh(W @ G @ W.mT), values.sort().values, 1e-13)
    close_absolute(stepwise.barlow_loss(W, G), (1 - values).square().sum(), 1e-13)


def test_learning_times_are_where_the_eigenvalue_is_a_half():
    gamma = torch.tensor([1.5, 0.3, 0.1], dtype=torch.float64)
    s = torch.tensor([0.1, 1e-3, 1e-6], dtype=torch.float64)
    at = stepwise.eigenvalues(stepwise.learning_times(s, gamma), s, gamma).diagonal()
    close_absolute(at, 1 / (2 - gamma * s**2), 1e-12)


def test_modes_that_are_not_learned_have_no_step_time():
    times = stepwise.learning_times(torch.tensor([0.1, 0.1, 0.0]), torch.tensor([0.0, -1.0, 1.0]))
    assert times.tolist() == [math.inf] * 3


def test_learning_times_measured_on_the_closed_form_are_those_predicted():
    gamma = torch.tensor([1.5, 0.3, 0.1, -1.0], dtype=torch.float64)
    s = torch.full((4,), 1e-4, dtype=torch.float64)
    t = torch.linspace(0, 30, 10001, dtype=torch.float64)
    close_absolute(
        stepwise.crossing_times(t, stepwise.eigenvalues(t, s, gamma)), stepwise.learning_times(s, gamma), 1e-5
    )


def test_crossing_times_are_interpolated_and_the_first_record_counts():
    t = torch.tensor([1.0, 2.0, 4.0])
    values = torch.tensor([[0.9, 0.0, 0.0, 0.5], [0.1, 0.2, 0.1, 0.0], [0.9, 0.6, 0.4, 0.0]])
    close_absolute(stepwise.crossing_times(t, values), torch.tensor([1.0, 3.5, math.inf, 1.0]), 1e-6)
    close_absolute(stepwise.crossing_times(t, values, level=0.1)[1:3], torch.tensor([1.5, 2.0]), 1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_modes_are_learned_when_predicted(seed):
    path = trained(start(seed))
    predicted = stepwise.learning_times(*stepwise.aligned_initialization(start(seed), HARMONIC, MODES)[:2])
    measured = stepwise.crossing_times(LONG, torch.linalg.eigvalsh(path @ torch.diag(HARMONIC) @ path.mT).flip(-1))
    assert (measured / predicted - 1).abs().max() < 0.002  # the last mode too
    assert stepwise.barlow_loss(path[-1], torch.diag(HARMONIC)) < 1e-5


def test_the_smaller_the_start_the_closer_the_trajectory():
    errors = []
    for scale in (1e-3, 1e-5, 1e-7):
        predicted = stepwise.weights(LONG, *stepwise.aligned_initialization(start(0, scale), HARMONIC, MODES))
        errors.append((trained(start(0, scale)) - predicted)[..., :2].abs().max().item())
    assert errors[0] > 3 * errors[1] > 9 * errors[2]
    assert errors[2] < 0.003


SPECTRA = {
    "two equal": (1, 1, 0.5, 0.25, 0.1),
    "three equal": (1, 1, 1, 0.3, 0.1),
    "near": (1, 0.97, 0.5, 0.25, 0.1),
    "a chain": (1, 0.97, 0.94, 0.3, 0.1),
    "a tenth apart": (1, 0.9, 0.8, 0.25, 0.1),
    "equal to those that are not learned": (1, 0.6, 0.4, 0.4, 0.4),
    "some negative": (1, 0.5, 0.49, -0.4, -2),
}


@pytest.mark.parametrize("spectrum", SPECTRA.values(), ids=SPECTRA)
def test_modes_of_equal_and_near_gamma_are_learned_when_predicted(spectrum):
    gamma, times = torch.tensor(spectrum, dtype=torch.float64), torch.linspace(0, 12, 2001, dtype=torch.float64)
    for seed in range(2):
        W = 1e-4 * randn(torch.Generator().manual_seed(seed), 3, 5)
        start = stepwise.aligned_initialization(W, gamma, torch.eye(5, dtype=torch.float64))
        path = gradient_flow(lambda p: stepwise.barlow_loss(p[0], gamma.diag()), (W,), times, rtol=1e-9, atol=1e-14)[0]
        measured = stepwise.crossing_times(times, torch.linalg.eigvalsh((path * gamma) @ path.mT).flip(-1))
        assert (measured / stepwise.learning_times(*start[:2]) - 1).abs().max() < 0.002


def test_in_a_block_of_equal_gamma_the_whole_trajectory_is_that_of_the_svd(rng):
    gamma, t = torch.tensor([1, 1, 1, 0.3], dtype=torch.float64), torch.linspace(0, 4, 9, dtype=torch.float64)
    W = 1e-6 * randn(rng, 3, 4)
    W[:, 3] = 0
    s, rates, U, V = stepwise.aligned_initialization(W, gamma, torch.eye(4, dtype=torch.float64))
    close_absolute(s, torch.linalg.svdvals(W), 1e-12)
    close_absolute(U * s @ V.mT, W, 1e-12)
    path = gradient_flow(lambda p: stepwise.barlow_loss(p[0], gamma.diag()), (W,), t, rtol=1e-11, atol=1e-16)[0]
    close_absolute(stepwise.weights(t, s, rates, U, V), path, 1e-7)


def test_a_mode_of_which_the_weights_hold_almost_nothing_is_learned_last():
    gamma = torch.tensor([3, 2, 1], dtype=torch.float64)
    for least in (1e-30, 1e-100):
        W = torch.diag(torch.tensor([least, 1e-3, 1e-4], dtype=torch.float64))
        s, rates, _, _ = stepwise.aligned_initialization(W, gamma, torch.eye(3, dtype=torch.float64))
        assert rates.tolist() == pytest.approx([2, 1, 3])
        assert s.log().tolist() == pytest.approx([math.log(1e-3), math.log(1e-4), math.log(least)])
    W = torch.diag(torch.tensor([0, 1e-3, 1e-4], dtype=torch.float64))
    assert stepwise.aligned_initialization(W, gamma, torch.eye(3, dtype=torch.float64))[1].tolist() == pytest.approx(
        [2, 1]
    )


def test_spectra_of_any_range_are_predicted_without_overflow():
    gamma = torch.logspace(0, -6, 12, dtype=torch.float64)
    W = 1e-3 * randn(torch.Generator().manual_seed(0), 8, 12)
    s, rates, U, V = stepwise.aligned_initialization(W, gamma, torch.eye(12, dtype=torch.float64))
    _, R = torch.linalg.qr(W)
    torch.testing.assert_close(rates[:6], gamma[:6], rtol=0.02, atol=0)
    torch.testing.assert_close(s[:6], R.diagonal()[:6].abs(), rtol=0.1, atol=0)
    close_absolute(U.mT @ U, torch.eye(8, dtype=torch.float64), 1e-12)
    close_absolute(V.mT @ V, torch.eye(8, dtype=torch.float64), 1e-12)


def test_the_final_weights_span_the_first_modes():
    spanned = torch.linalg.qr(trained(start(0))[-1].mT)[0]
    cosines = torch.linalg.svdvals(spanned.mT @ MODES[:, :5])  # of the principal angles
    assert cosines.min() > 1 - 1e-4


def test_an_aligned_start_is_its_own_aligned_initialization(aligned):
    expected = dict(zip(("s", "gamma", "U", "V"), aligned, strict=True)) | {
        "s": torch.tensor([0.05, 0.2, 0.01, 0.3]).double()
    }
    s, gamma, U, V = expected.values()
    found = stepwise.aligned_initialization(U * s @ V.mT, gamma, V)
    order = stepwise.learning_times(s, gamma).argsort()
    for one, other in zip(found, (s, gamma, U, V), strict=True):
        close_absolute(one.abs(), other[..., order].abs(), 1e-9)


def test_for_separated_gamma_the_aligned_initialization_is_a_gram_schmidt_process(rng):
    gamma, W = torch.tensor([1, 0.1, 0.01, 0.001], dtype=torch.float64), 1e-9 * randn(rng, D, 4)
    V = torch.linalg.qr(randn(rng, 4, 4))[0]
    s, rates, U, turned = stepwise.aligned_initialization(W, gamma, V)
    close_absolute(rates, gamma, 1e-9)
    close_absolute(turned.abs(), V.abs(), 1e-6)
    for j, left in enumerate((W @ V).mT):
        for u in U.mT[:j]:
            left = left - (u @ left) * u
        assert s[j].item() == pytest.approx(left.norm().item(), rel=1e-9)
        close_absolute(U[:, j].abs(), (left / left.norm()).abs(), 1e-6)


@pytest.mark.usefixtures("no_shape_checks")
def test_modes_that_do_not_descend_or_match_are_errors():
    eye = torch.eye(2, dtype=torch.float64)
    for gamma in ([1.0, 2.0], [1.0]):
        with pytest.raises(UserError, match="descending"):
            stepwise.aligned_initialization(eye, torch.tensor(gamma, dtype=torch.float64), eye)


def test_gradient_descent_converges_to_the_closed_form_at_order_one(G, aligned):
    s, gamma, U, V = aligned
    end = stepwise.weights(torch.tensor(0.4, dtype=torch.float64), s, gamma, U, V)
    paths = [
        stepwise.gradient_descent(U * s @ V.mT, G, learning_rate=0.4 / n, steps=[n])[0] for n in (100, 200, 400, 800)
    ]
    errors = torch.stack([(path - end).norm() for path in paths])
    assert (errors[:-1] / errors[1:]).log2().tolist() == pytest.approx([1, 1, 1], abs=0.08)


def test_gradient_descent_converges_below_the_limit_only(G, aligned):
    """From near the optimum; from elsewhere gradient descent can also diverge below the limit."""
    _, gamma, U, V = aligned
    limit = stepwise.stability_limit(gamma)
    W = U * gamma.rsqrt() @ V.mT * 1.0001
    loss = [stepwise.barlow_loss(W, G)]
    for rate in (0.98 * limit, 1.02 * limit):
        end = W
        for _ in range(100):
            end = end + rate * stepwise.vector_field(end, G)
        loss.append(stepwise.barlow_loss(end, G))
    assert loss[1] < 0.1 * loss[0] < 10 * loss[0] < loss[2]


def test_the_stability_limit_is_two_over_the_largest_curvature(G, aligned):
    _, gamma, U, V = aligned
    W = U * gamma.rsqrt() @ V.mT
    hessian = torch.autograd.functional.hessian(lambda W: stepwise.barlow_loss(W, G), W).reshape(D * M, D * M)
    assert 2 / torch.linalg.eigvalsh(hessian)[-1].item() == pytest.approx(stepwise.stability_limit(gamma), rel=1e-12)


def test_a_learning_rate_above_the_limit_is_an_error(G, aligned):
    limit = stepwise.stability_limit(aligned[1])
    W = torch.zeros(D, M, dtype=torch.float64)
    with pytest.raises(UserError, match="not below the stability limit"):
        stepwise.gradient_descent(W, G, learning_rate=1.01 * limit, steps=[1])
    assert stepwise.gradient_descent(W, G, learning_rate=0.99 * limit, steps=[1]).shape == (1, D, M)


D, M = 4, 7


def test_the_contrastive_kernel_is_the_formula_written_out(rng):
    A = randn(rng, 10, 10)
    root = A @ A.mT
    swap = torch.zeros(10, 10, dtype=torch.float64)
    for i in range(5):
        swap[i, i + 5] = swap[i + 5, i] = 1
    close_absolute(stepwise.contrastive_kernel(root @ root), root @ swap @ root / 10, 1e-10)


def test_the_contrastive_kernel_of_a_linear_kernel_has_the_eigenvalues_of_the_cross_correlation(X, G):
    points = X.flatten(0, 1)
    found = torch.linalg.eigvalsh(stepwise.contrastive_kernel(points @ points.mT))
    expected = torch.cat([torch.linalg.eigvalsh(G), torch.zeros(60 - M, dtype=torch.float64)]).sort().values
    close_absolute(found, expected, 1e-12)


def test_a_kernel_machine_trains_as_the_network_of_its_features(X, G, rng):
    """The embeddings of training points and of new ones, along the flow in feature space and along that of W."""
    points, new = X.flatten(0, 1), randn(rng, 5, M)
    K, k = points @ points.mT, new @ points.mT
    W = 0.1 * randn(rng, D, M)
    W_K = stepwise.kernel_features((X @ W.mT).flatten(0, 1).mT, K)
    t = torch.tensor([0.0, 0.3, 1.0], dtype=torch.float64)
    path = gradient_flow(lambda p: stepwise.barlow_loss(p[0], G), (W,), t)[0]
    path_K = gradient_flow(lambda p: stepwise.barlow_loss(p[0], stepwise.contrastive_kernel(K)), (W_K,), t)[0]
    close_absolute(stepwise.kernel_features(K, K) @ path_K.mT, points @ path.mT, 1e-8)
    close_absolute(stepwise.kernel_features(k, K) @ path_K.mT, new @ path.mT, 1e-8)
    (s, *_), (s_K, *_) = (
        stepwise.aligned_initialization(V, *stepwise.eigenmodes(A))
        for V, A in ((W, G), (W_K, stepwise.contrastive_kernel(K)))
    )
    close_absolute(s_K, s, 1e-8)


def test_kernel_weights_give_the_embeddings_and_are_the_least(rng):
    A, Z = randn(rng, 8, 3), randn(rng, 8, 2)
    K = A @ A.mT
    Z = K @ Z
    W = stepwise.kernel_features(Z.unflatten(0, (2, 4)).flatten(0, 1).mT, K)
    root = stepwise.kernel_features(K, K)
    close_absolute(root @ W.mT, Z, 1e-10)
    close_absolute(W.mT, torch.linalg.pinv(root, rtol=1e-6) @ Z, 1e-10)


def wide_network(width):
    """One hidden layer in the scaling of the tangent kernel, its outputs small at the start: parameters, and
    f(parameters, x)."""
    rng = torch.Generator().manual_seed(1)
    params = randn(rng, width, M), 0.1 * randn(rng, D, width)
    return params, lambda p, x: (x @ p[0].mT).tanh() @ p[1].mT / width**0.5


def tangent_kernel(f, params, points):
    """K(x, x′) = ⟨∇f₁(x), ∇f₁(x′)⟩ of the first output, one gradient a point."""
    leaves = [p.clone().requires_grad_() for p in params]
    J = torch.stack([torch.cat([g.flatten() for g in torch.autograd.grad(f(leaves, x)[0], leaves)]) for x in points])
    return J @ J.mT


def test_wide_networks_are_close_to_the_kernel_machine_of_their_tangent_kernel(X):
    """Gradient flow of all weights on the embeddings' loss, until three of the four modes are learned."""
    X, eye = X[:, :8], torch.eye(D, dtype=torch.float64)
    points, t = X.flatten(0, 1), torch.tensor([0.0, 2.0, 4.0, 8.0], dtype=torch.float64)
    gaps = []
    for width in (64, 1024):
        params, f = wide_network(width)

        def loss(p, f=f):
            return stepwise.barlow_loss(eye, stepwise.feature_cross_correlation(f(p, X)))

        path = gradient_flow(loss, params, t, rtol=1e-5, atol=1e-7)
        Z = torch.stack([f(now, X) for now in zip(*path, strict=True)])
        K = tangent_kernel(f, params, points)
        G = stepwise.contrastive_kernel(K)
        W = gradient_flow(
            lambda p, G=G: stepwise.barlow_loss(p[0], G),
            (stepwise.kernel_features(f(params, X).flatten(0, 1).mT, K),),
            t,
        )[0]
        predicted = (stepwise.kernel_features(K, K) @ W.mT).unflatten(1, (2, -1))
        gaps.append(((Z - predicted).norm() / Z.norm()).item())
    assert gaps[0] > 3 * gaps[1]  # like 1/√width: by 4
    assert gaps[1] < 0.01


def test_asymmetric_matrices_indefinite_kernels_and_unlearnable_data_are_errors(X):
    with pytest.raises(UserError, match="Γ is not symmetric"):
        stepwise.eigenmodes(X[0].mT @ X[1])
    with pytest.raises(UserError, match="no positive eigenvalue"):
        stepwise.stability_limit(torch.tensor([-1.0, -2.0]))
    with pytest.raises(UserError, match="the kernel has 3 points"):
        stepwise.contrastive_kernel(torch.eye(3))
    with pytest.raises(UserError, match="eigenvalue -1"):
        stepwise.contrastive_kernel(torch.diag(torch.tensor([1.0, -1.0])))
