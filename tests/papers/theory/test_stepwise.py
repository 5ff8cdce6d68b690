"""Stepwise learning, compared with the actual loss, integrated ODEs, gradient descent and a wide network."""

import math

import pytest
import torch
from dynamics_helpers import close_absolute, randn

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


def test_learning_times_are_where_the_eigenvalue_is_a_half():
    gamma = torch.tensor([1.5, 0.3, 0.1], dtype=torch.float64)
    s = torch.tensor([0.1, 1e-3, 1e-6], dtype=torch.float64)
    at = stepwise.eigenvalues(stepwise.learning_times(s, gamma), s, gamma).diagonal()
    close_absolute(at, 1 / (2 - gamma * s**2), 1e-12)


@pytest.mark.parametrize("seed", range(2))
def test_modes_are_learned_when_predicted(seed):
    path = trained(start(seed))
    predicted = stepwise.learning_times(*stepwise.aligned_initialization(start(seed), HARMONIC, MODES)[:2])
    measured = stepwise.crossing_times(LONG, torch.linalg.eigvalsh(path @ torch.diag(HARMONIC) @ path.mT).flip(-1))
    assert (measured / predicted - 1).abs().max() < 0.002  # the last mode too
    assert stepwise.barlow_loss(path[-1], torch.diag(HARMONIC)) < 1e-5


def test_an_aligned_start_is_its_own_aligned_initialization(aligned):
    expected = dict(zip(("s", "gamma", "U", "V"), aligned, strict=True)) | {
        "s": torch.tensor([0.05, 0.2, 0.01, 0.3]).double()
    }
    s, gamma, U, V = expected.values()
    found = stepwise.aligned_initialization(U * s @ V.mT, gamma, V)
    order = stepwise.learning_times(s, gamma).argsort()
    for one, other in zip(found, (s, gamma, U, V), strict=True):
        close_absolute(one.abs(), other[..., order].abs(), 1e-9)


def test_gradient_descent_converges_to_the_closed_form_at_order_one(G, aligned):
    s, gamma, U, V = aligned
    end = stepwise.weights(torch.tensor(0.4, dtype=torch.float64), s, gamma, U, V)
    paths = [
        stepwise.gradient_descent(U * s @ V.mT, G, learning_rate=0.4 / n, steps=[n])[0] for n in (100, 200, 400, 800)
    ]
    errors = torch.stack([(path - end).norm() for path in paths])
    assert (errors[:-1] / errors[1:]).log2().tolist() == pytest.approx([1, 1, 1], abs=0.08)


def test_the_stability_limit_is_two_over_the_largest_curvature(G, aligned):
    _, gamma, U, V = aligned
    W = U * gamma.rsqrt() @ V.mT
    hessian = torch.autograd.functional.hessian(lambda W: stepwise.barlow_loss(W, G), W).reshape(D * M, D * M)
    assert 2 / torch.linalg.eigvalsh(hessian)[-1].item() == pytest.approx(stepwise.stability_limit(gamma), rel=1e-12)


D, M = 4, 7


def test_the_contrastive_kernel_is_the_formula_written_out(rng):
    A = randn(rng, 10, 10)
    root = A @ A.mT
    swap = torch.zeros(10, 10, dtype=torch.float64)
    for i in range(5):
        swap[i, i + 5] = swap[i + 5, i] = 1
    close_absolute(stepwise.contrastive_kernel(root @ root), root @ swap @ root / 10, 1e-10)


def test_a_kernel_machine_trains_as_the_network_of_its_features(X, G, rng):
    """The embeddings of training points and of new ones, along the flow in feature space and along that of W."""
    points, new = X.flatten(0, 1), randn(rng, 5, M)
    K, k = points @ points.mT, new @ points.mT
    W = 0.1 * randn(rng, D, M)
    values, B = torch.linalg.eigh(K)
    power = torch.where(values > 1e-9, B * values.abs().rsqrt(), 0) @ B.mT  # K^{−½} on the range of K
    W_K = (X @ W.mT).flatten(0, 1).mT @ power
    t = torch.tensor([0.0, 0.3, 1.0], dtype=torch.float64)
    path = gradient_flow(lambda p: stepwise.barlow_loss(p[0], G), (W,), t)[0]
    path_K = gradient_flow(lambda p: stepwise.barlow_loss(p[0], stepwise.contrastive_kernel(K)), (W_K,), t)[0]
    close_absolute(K @ power @ path_K.mT, points @ path.mT, 1e-8)
    close_absolute(k @ power @ path_K.mT, new @ path.mT, 1e-8)
    (s, *_), (s_K, *_) = (
        stepwise.aligned_initialization(V, *stepwise.eigenmodes(A))
        for V, A in ((W, G), (W_K, stepwise.contrastive_kernel(K)))
    )
    close_absolute(s_K, s, 1e-8)
