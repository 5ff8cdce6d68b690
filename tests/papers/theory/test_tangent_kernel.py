"""The tangent kernel against Jacobians, and its modes against those of the linear network that it is the kernel of."""

import pytest
import torch
from torch import nn

from fullrank_papers.theory import stepwise
from fullrank_papers.theory.tangent_kernel import center_views, kernel_modes, mode_powers, tangent_kernel


def test_the_kernel_is_the_product_of_jacobians_also_through_batchnorm(rng):
    network = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 2)).double()
    X, v = torch.randn(6, 3, generator=rng, dtype=torch.float64), torch.eye(2, dtype=torch.float64)
    weights = dict(network.named_parameters())

    def outputs(*values):
        return torch.func.functional_call(network, dict(zip(weights, values, strict=True)), (X,))

    J = torch.autograd.functional.jacobian(outputs, tuple(weights.values()))
    J = torch.cat([part.flatten(2) for part in J], dim=2)  # (6, 2, number of weights)
    expected = torch.einsum("akp,bkp->ab", J, J) / 2
    torch.testing.assert_close(tangent_kernel(network(X), list(weights.values()), v), expected)


@pytest.mark.parametrize("D", [2, 4])
def test_modes_of_a_linear_network_are_those_of_its_data(rng, D):
    X = torch.randn(2, 9, 7, generator=rng, dtype=torch.float64) + 0.5
    X[1] += 2 * X[0]
    centred = X - X.mean(1, keepdim=True)
    W = torch.randn(D, 7, generator=rng, dtype=torch.float64, requires_grad=True)
    v = nn.functional.normalize(torch.randn(3, D, generator=rng, dtype=torch.float64), dim=1)
    K = center_views(tangent_kernel((X @ W.mT).flatten(0, 1), [W], v))
    torch.testing.assert_close(K, centred.flatten(0, 1) @ centred.flatten(0, 1).mT)
    gamma, V = stepwise.eigenmodes(stepwise.feature_cross_correlation(centred))
    found, modes = kernel_modes(K, 5)
    torch.testing.assert_close(found, gamma[:5])
    powers = mode_powers((centred @ W.mT).flatten(0, 1), found, modes)
    torch.testing.assert_close(powers, (gamma * (W @ V).square().sum(0))[:5])
