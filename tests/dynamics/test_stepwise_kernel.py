"""Stepwise learning of kernel machines against kernels written out, the network of their features, and a wide network."""

import pytest
import torch

from fullrank.dynamics import stepwise, stepwise_kernel
from fullrank.dynamics.flow import gradient_flow
from fullrank.errors import UserError

D, M = 4, 7


def double(rng, *shape):
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


@pytest.fixture
def X(rng):
    """30 pairs of views: features of falling variance, and noise of augmentation."""
    images = double(rng, 30, M) * torch.logspace(0.3, -0.5, M, dtype=torch.float64)
    return images + 0.2 * double(rng, 2, 30, M)


@pytest.fixture
def G(X):
    return stepwise.feature_cross_correlation(X)


def close(actual, expected, tolerance):
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)


def test_the_contrastive_kernel_is_the_formula_written_out(rng):
    A = double(rng, 10, 10)
    root = A @ A.mT
    swap = torch.zeros(10, 10, dtype=torch.float64)
    for i in range(5):
        swap[i, i + 5] = swap[i + 5, i] = 1
    close(stepwise_kernel.contrastive_kernel(root @ root), root @ swap @ root / 10, 1e-10)


def test_the_contrastive_kernel_of_a_linear_kernel_has_the_eigenvalues_of_the_moment(X, G):
    points = X.flatten(0, 1)
    found = torch.linalg.eigvalsh(stepwise_kernel.contrastive_kernel(points @ points.mT))
    expected = torch.cat([torch.linalg.eigvalsh(G), torch.zeros(60 - M, dtype=torch.float64)]).sort().values
    close(found, expected, 1e-12)


def test_a_kernel_machine_trains_as_the_network_of_its_features(X, G, rng):
    """The embeddings of training points and of new ones, along the flow in feature space and along that of W."""
    points, new = X.flatten(0, 1), double(rng, 5, M)
    K, k = points @ points.mT, new @ points.mT
    W = 0.1 * double(rng, D, M)
    W_K = stepwise_kernel.kernel_weights(X @ W.mT, K)
    t = torch.tensor([0.0, 0.3, 1.0], dtype=torch.float64)
    path = gradient_flow(lambda p: stepwise.barlow_loss(p[0], G), (W,), t)[0]
    path_K = gradient_flow(lambda p: stepwise.barlow_loss(p[0], stepwise_kernel.contrastive_kernel(K)), (W_K,), t)[0]
    close(stepwise_kernel.kernel_features(K, K) @ path_K.mT, points @ path.mT, 1e-8)
    close(stepwise_kernel.kernel_features(k, K) @ path_K.mT, new @ path.mT, 1e-8)
    (_, s), (_, s_K) = (
        stepwise.aligned_initialization(V, stepwise.eigenmodes(A)[1][:, :D])
        for V, A in ((W, G), (W_K, stepwise_kernel.contrastive_kernel(K)))
    )
    close(s_K, s, 1e-12)


def test_kernel_weights_give_the_embeddings_and_are_the_least(rng):
    A, Z = double(rng, 8, 3), double(rng, 8, 2)
    K = A @ A.mT
    Z = K @ Z
    W = stepwise_kernel.kernel_weights(Z.unflatten(0, (2, 4)), K)
    root = stepwise_kernel.kernel_features(K, K)
    close(root @ W.mT, Z, 1e-10)
    close(W.mT, torch.linalg.pinv(root, rtol=1e-6) @ Z, 1e-10)


def test_a_kernel_has_two_views():
    with pytest.raises(UserError, match="the kernel has 3 points, expected two views of each"):
        stepwise_kernel.contrastive_kernel(torch.eye(3))


def test_a_kernel_is_symmetric_and_semidefinite():
    with pytest.raises(UserError, match="the kernel is not symmetric"):
        stepwise_kernel.contrastive_kernel(torch.tensor([[1.0, 1.0], [0.0, 1.0]]))
    with pytest.raises(UserError, match="the kernel has an eigenvalue -1, expected all ≥ 0"):
        stepwise_kernel.contrastive_kernel(torch.diag(torch.tensor([1.0, -1.0])))


def wide_network(width):
    """One hidden layer in the scaling of the tangent kernel, its outputs small at the start: parameters, and f(parameters, x)."""
    rng = torch.Generator().manual_seed(1)
    params = double(rng, width, M), 0.1 * double(rng, D, width)
    return params, lambda p, x: (x @ p[0].mT).tanh() @ p[1].mT / width**0.5


def tangent_kernel(f, params, points):
    """K(x, x′) = ⟨∇f₁(x), ∇f₁(x′)⟩ of the first output, one gradient a point."""
    leaves = [p.clone().requires_grad_() for p in params]
    J = torch.stack([torch.cat([g.flatten() for g in torch.autograd.grad(f(leaves, x)[0], leaves)]) for x in points])
    return J @ J.mT


def test_the_wider_a_network_the_closer_it_is_to_the_machine_of_its_tangent_kernel(X):
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
        G = stepwise_kernel.contrastive_kernel(K)
        W = gradient_flow(lambda p, G=G: stepwise.barlow_loss(p[0], G), (stepwise_kernel.kernel_weights(f(params, X), K),), t)[0]
        predicted = (stepwise_kernel.kernel_features(K, K) @ W.mT).unflatten(1, (2, -1))
        gaps.append(((Z - predicted).norm() / Z.norm()).item())
    assert gaps[0] > 3 * gaps[1]  # like 1/√width: by 4
    assert gaps[1] < 0.01
