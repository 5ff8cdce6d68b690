"""Fixed projectors, compared with the gradients of the actual losses, integrated flows and measured rates."""

import pytest
import torch
from dynamics_helpers import randn

from fullrank_papers.theory import fixed_projector as fixed
from fullrank_papers.theory.contrastive_pairs import pair_matrix, unconstrained_weights
from fullrank_papers.theory.flow import gradient_flow
from fullrank_papers.theory.objectives import alignment_linear, contrastive_linear, infonce_squared

H, D, K, N = 5, 4, 3, 20


LOSSES = ("contrastive_linear", "alignment_linear", "infonce_squared")


@pytest.fixture
def x(rng):
    """Anchors, their positives, and negatives."""
    images = randn(rng, N, D) * torch.tensor([1.0, 0.8, 0.5, 0.3], dtype=torch.float64)
    return torch.stack([images, images + 0.3 * randn(rng, N, D), images.roll(1, 0)])


@pytest.fixture
def Theta(rng):
    return 0.5 * randn(rng, H, D)


@pytest.fixture
def A(rng):
    """Neither orthonormal nor diagonal."""
    return randn(rng, K, H)


@pytest.fixture
def orthonormal(rng):
    return torch.linalg.qr(randn(rng, H, K))[0].mT


def close(actual, expected, tolerance):
    """Within the tolerance of the largest number expected."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance * expected.abs().max().item())


def actual_loss(name, u):
    """The loss of the library on the embeddings of anchors, positives and negatives."""
    terms = {
        "contrastive_linear": lambda: contrastive_linear(*u),
        "alignment_linear": lambda: alignment_linear(*u[:2]),
        "infonce_squared": lambda: infonce_squared(u[:2]),
    }
    return sum(terms[name]().values())


def driving(name, x):
    """X of a loss without state."""
    return -2 * (pair_matrix(*x) if name == "contrastive_linear" else pair_matrix(*x[:2]))


@pytest.mark.parametrize("name", LOSSES)
def test_the_null_space_of_the_projector_is_frozen(name, x, Theta, A):
    path = gradient_flow(
        lambda p: actual_loss(name, x @ p[0].mT @ A.mT) / N,
        (Theta,),
        torch.tensor([0.0, 0.05, 0.2], dtype=torch.float64),
    )[0]
    assert (path[-1] - Theta).norm() > 0.1
    for now in path:
        close(fixed.frozen_weights(now, A), fixed.frozen_weights(Theta, A), 1e-9)


@pytest.mark.parametrize("name", LOSSES[:2])
def test_the_closed_form_is_the_integrated_flow_of_the_actual_loss(name, x, Theta, A):
    t = torch.tensor([0.0, 0.1, 0.4], dtype=torch.float64)
    path = gradient_flow(lambda p: actual_loss(name, x @ p[0].mT @ A.mT) / N, (Theta,), t, rtol=1e-12, atol=1e-14)[0]
    close(fixed.projected_weights(Theta, A, driving(name, x) / N, t), path, 1e-8)


def test_an_orthonormal_projector_gives_the_embedding_the_flow_of_one_layer(x, Theta, orthonormal):
    """Remark 3's identical dynamics of all components, for any loss; another projector gives each component a speed of
    its own."""
    C, t = pair_matrix(*x), torch.tensor([0.0, 0.01, 0.1], dtype=torch.float64)
    found = orthonormal @ fixed.projected_weights(Theta, orthonormal, -2 * C, t)
    close(found, unconstrained_weights(orthonormal @ Theta, C, t), 1e-12)
    stretched = torch.diag(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)) @ orthonormal
    found = stretched @ fixed.projected_weights(Theta, stretched, -2 * C, t)
    expected = torch.stack(
        [
            unconstrained_weights(row[None], C, t * speed**2)[:, 0]
            for speed, row in enumerate(stretched @ Theta, start=1)
        ],
        1,
    )
    close(found, expected, 1e-12)


def test_singular_values_grow_at_the_rates_of_the_best_matching():
    """Of the representation and of the embedding, with eigenvalues of both signs and a projector of lower rank."""
    rng = torch.Generator().manual_seed(2)
    A = torch.diag(torch.tensor([1.5, 1.0, 0.6], dtype=torch.float64)) @ torch.linalg.qr(randn(rng, H, K))[0].mT
    xi = torch.tensor([1.0, 0.4, -0.3, -0.9], dtype=torch.float64)
    path = fixed.projected_weights(randn(rng, H, D), A, torch.diag(xi), torch.tensor([10.0, 12.0], dtype=torch.float64))
    a = torch.tensor([2.25, 1.0, 0.36, 0.0, 0.0], dtype=torch.float64)
    for weights, rates in ((path, fixed.growth_rates(a, xi)), (A @ path, fixed.growth_rates(a[:K], xi))):
        measured = torch.linalg.svdvals(weights).log().diff(dim=0)[0] / 2
        close(measured, rates, 0.003)


def test_the_collapsed_weights_are_where_the_loss_without_scale_ends(x, Theta, orthonormal):
    C = pair_matrix(*x) / N

    def loss(p):
        W = orthonormal @ p[0]
        return (W @ C @ W.mT).trace() / W.square().sum()

    end = gradient_flow(loss, (Theta,), torch.tensor([0.0, 200.0], dtype=torch.float64), rtol=1e-10, atol=1e-12)[0][-1]
    expected = fixed.collapsed_weights(Theta, orthonormal, -2 * C)
    close(end, expected, 1e-6)
    assert torch.linalg.matrix_rank(orthonormal @ expected) == 1
    assert torch.linalg.matrix_rank(expected, rtol=1e-9) == H - K + 1
