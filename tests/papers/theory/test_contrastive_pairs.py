"""Trace losses over pairs and their unconstrained flow, compared with the actual losses and the integrated equation."""

import torch
from dynamics_helpers import close, integrate, randn, symmetric, vector

from fullrank_papers.theory.contrastive_pairs import pair_matrix, unconstrained_weights
from fullrank_papers.theory.objectives import alignment_linear, contrastive_linear


def total(terms):
    return sum(terms.values())


def test_the_trace_is_the_loss_of_the_objectives_and_not_with_the_printed_sign(rng):
    X, X_pos, X_neg, A = randn(rng, 7, 4), randn(rng, 7, 4), randn(rng, 7, 4), randn(rng, 4, 3)
    trace = lambda C: torch.trace(A.mT @ C @ A)  # noqa: E731
    close(trace(pair_matrix(X, X_pos, X_neg)), total(contrastive_linear(X @ A, X_pos @ A, X_neg @ A)))
    close(trace(pair_matrix(X, X_pos)), total(alignment_linear(X @ A, X_pos @ A)))
    assert trace(-pair_matrix(X, X_pos)) != total(alignment_linear(X @ A, X_pos @ A))


def test_the_unconstrained_flow_equals_its_integrated_equation(rng):
    Theta0, C, t = randn(rng, 2, 4), symmetric(rng, 4), vector(0, 0.2, 0.7)
    close(unconstrained_weights(Theta0, C, t), integrate(lambda Theta: -2 * Theta @ C, Theta0, t), 1e-9)


def test_the_rows_become_collinear_at_the_rate_of_the_gap_with_unequal_sizes(rng):
    eigenvalues = torch.tensor([-0.5, 0.3, 1.0], dtype=torch.float64)
    V = torch.linalg.qr(randn(rng, 3, 3)).Q
    Theta0 = randn(rng, 2, 3)
    times = torch.tensor([5.0, 6.0], dtype=torch.float64)
    Theta = unconstrained_weights(Theta0, V @ torch.diag(eigenvalues) @ V.mT, times)
    s = torch.linalg.svdvals(Theta)
    close((s[0, 1] / s[0, 0] / (s[1, 1] / s[1, 0])).log(), torch.tensor(2 * 0.8).double(), 1e-3)
    last = Theta[1] / Theta[1].norm()
    first = Theta0 @ V[:, :1] @ V[:, :1].mT
    close(last, first / first.norm(), 1e-4)
    assert not torch.allclose(last[0], last[1], atol=0.1)  # the paper prints equal components
