import pytest
import torch

from fullrank.dynamics.flow import gradient
from fullrank.dynamics.nonlinear import ACTIVATIONS, outputs, tangent_kernel
from fullrank.dynamics.trace import orthonormal_weights
from fullrank.objectives.theory import alignment_linear, contrastive_linear


def normal(rng, *shape):
    return torch.randn(*shape, dtype=torch.float64, generator=rng)


def close(x, y, tolerance=1e-12):
    torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance)


def diagonal(K, z):
    return torch.eye(z, dtype=torch.float64)[:, :, None, None] * K


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_kernel_holds_the_products_of_autograds_gradients(rng, activation):
    W1, W2, X, Y = normal(rng, 5, 3), normal(rng, 5, 2), normal(rng, 4, 3), normal(rng, 3, 3)
    K = tangent_kernel(W1, W2, X, Y, activation=activation)
    slope = lambda x, j: gradient(lambda W: outputs(*W, x, activation=activation)[j], (W1, W2))  # noqa: E731
    for i, x in enumerate(X):
        for k, y in enumerate(Y):
            for a in range(2):
                for b in range(2):
                    close(K[a, b, i, k], sum((f * g).sum() for f, g in zip(slope(x, a), slope(y, b), strict=True)))


@pytest.mark.parametrize("hidden", [4, 6, 50])
def test_orthonormal_linear_layers_have_twice_the_kernel_of_one_at_every_width(rng, hidden):
    X = normal(rng, 5, 4)
    W1, W2 = orthonormal_weights(4, hidden=hidden, outputs=3, generator=rng)
    close(tangent_kernel(W1, W2, X, X), diagonal(2 * X @ X.mT, 3))


def test_the_first_layer_has_its_part_across_outputs_unless_columns_are_orthogonal(rng):
    W1, W2, X = normal(rng, 6, 4), normal(rng, 6, 2), normal(rng, 3, 4)
    K = tangent_kernel(W1, W2, X, X)
    close(K[0, 1], (W2[:, 0] @ W2[:, 1]) * (X @ X.mT))  # the paper's proof has 0
    close(K[1, 1], (W2[:, 1] @ W2[:, 1]) * (X @ X.mT) + X @ W1.mT @ W1 @ X.mT)


def test_gaussian_layers_come_to_it_with_the_root_of_the_width(rng):
    X = normal(rng, 3, 4)
    limit = diagonal(2 * X @ X.mT, 2)

    def error(hidden):
        draws = [(normal(rng, hidden, 4) / hidden**0.5, normal(rng, hidden, 2) / hidden**0.5) for _ in range(20)]
        return torch.stack([(tangent_kernel(*W, X, X) - limit).square().sum() for W in draws]).mean().sqrt()

    assert error(100) / error(10000) == pytest.approx(10, rel=0.3)


@pytest.mark.parametrize("activation", ["tanh", "shifted_sigmoid"])
def test_wide_networks_of_units_with_value_0_and_slope_1_have_the_linear_kernel_at_the_start(rng, activation):
    X = normal(rng, 3, 4)
    W1, W2 = orthonormal_weights(4, hidden=4000, outputs=2, generator=rng)
    close(tangent_kernel(W1, W2, X, X, activation=activation), diagonal(2 * X @ X.mT, 2), 0.02)
    relu = tangent_kernel(W1, W2, X, X, activation="relu")
    assert (relu[0, 0] - 2 * X @ X.mT).abs().max() > 0.5


@pytest.mark.parametrize("activation", ["linear", "tanh", "relu"])
def test_outputs_move_through_the_kernel_alone_whatever_the_loss(rng, activation):
    X, new = normal(rng, 3, 5, 4), normal(rng, 2, 4)
    W = normal(rng, 6, 4), normal(rng, 6, 2)
    for loss in (lambda U: sum(contrastive_linear(*U).values()), lambda U: sum(alignment_linear(*U[:2]).values())):
        slopes = gradient(lambda W, loss=loss: loss(outputs(*W, X, activation=activation)), W)
        _, moved = torch.autograd.functional.jvp(lambda *W: outputs(*W, new, activation=activation), W, tuple(-G for G in slopes))
        (pull,) = gradient(lambda U, loss=loss: loss(U[0]), (outputs(*W, X, activation=activation),))
        K = tangent_kernel(*W, new, X.flatten(0, 1), activation=activation)
        close(moved, -torch.einsum("ljnm,mj->nl", K, pull.flatten(0, 1)), 1e-10)
