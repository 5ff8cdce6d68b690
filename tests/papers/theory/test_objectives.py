"""The losses of the theory: their sums as loops, their optima, and the limits of their gradient flows."""

import inspect
import math

import jaxtyping
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fullrank.objectives import barlow_twins
from fullrank.objectives.signature import tensor_names
from fullrank.spectrum import Spectrum
from fullrank_papers.theory.objectives import (
    THEORY,
    alignment_linear,
    barlow_linear,
    contrastive_linear,
    frossl_linear,
    infonce_squared,
)

every_loss = pytest.mark.parametrize("name", THEORY)


def arguments(name, randn):
    return [randn(*((2, 5, 3) if tensor == "Z" else (5, 3))) for tensor in tensor_names(THEORY[name])]


def loss(name, tensors):
    return sum(THEORY[name](*tensors).values())


def dot(x, y):
    return sum(a * b for a, b in zip(x, y, strict=True))


def product_minus_identity(X, Y):
    """Compute ‖XᵀY − I‖_F² by loops."""
    columns = list(zip(*X, strict=True)), list(zip(*Y, strict=True))
    return sum((dot(x, y) - (i == j)) ** 2 for i, x in enumerate(columns[0]) for j, y in enumerate(columns[1]))


def half_distance(x, y):
    return sum((a - b) ** 2 for a, b in zip(x, y, strict=True)) / 2


def infonce_loops(Z):
    z, positive = Z
    total = 0.0
    for i in range(len(z)):
        own = math.exp(-half_distance(z[i], positive[i]))
        total -= math.log(own / (own + sum(math.exp(-half_distance(z[i], z[j])) for j in range(len(z)) if j != i)))
    return total


LOOPS = {
    "contrastive_linear": lambda U, P, M: sum(
        dot(u, [b - a for a, b in zip(p, m, strict=True)]) for u, p, m in zip(U, P, M, strict=True)
    ),
    "alignment_linear": lambda U, P: sum(-dot(u, p) for u, p in zip(U, P, strict=True)),
    "frossl_linear": lambda Z: sum(product_minus_identity(z, z) for z in Z) + 2 * sum(map(half_distance, *Z)),
    "barlow_linear": lambda Z: product_minus_identity(*Z),
    "infonce_squared": infonce_loops,
}


@every_loss
def test_equals_the_sum_of_the_equation(name, randn):
    tensors = arguments(name, randn)
    assert loss(name, tensors).item() == pytest.approx(LOOPS[name](*(t.tolist() for t in tensors)), abs=1e-10)


@every_loss
def test_gradient_equals_finite_differences(name, randn):
    assert torch.autograd.gradcheck(
        lambda *tensors: loss(name, tensors), [t.requires_grad_() for t in arguments(name, randn)]
    )


@pytest.mark.parametrize(
    "collapsed", [torch.zeros_like, lambda t: t[..., :1, :].expand_as(t), lambda t: t[..., :1].expand_as(t)]
)
@every_loss
def test_is_finite_with_a_finite_gradient_at_collapse(name, collapsed, randn):
    tensors = [collapsed(t).clone().requires_grad_() for t in arguments(name, randn)]
    value = loss(name, tensors)
    assert value.isfinite()
    assert all(g.isfinite().all() for g in torch.autograd.grad(value, tensors))


@every_loss
def test_does_not_wait_for_the_device(name, randn):
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(t).requires_grad_() for t in arguments(name, randn)]
        gradients = torch.autograd.grad(loss(name, fake), fake)
    assert len(gradients) == len(fake)


@every_loss
def test_compiles_into_one_graph(name, randn):
    tensors = arguments(name, randn)
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        torch.compiler.reset()  # jaxtyping wraps all of them in one function, which counts as a recompilation
        assert torch.compile(THEORY[name], fullgraph=True, backend="eager")(*tensors) == THEORY[name](*tensors)
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)


@every_loss
def test_has_no_hyperparameters(name):
    assert all(p.kind is p.POSITIONAL_OR_KEYWORD for p in inspect.signature(THEORY[name]).parameters.values())


def test_alignment_equals_the_contrastive_loss_with_zero_negatives(randn):
    U, positives = randn(5, 3), randn(5, 3)
    assert (
        sum(contrastive_linear(U, positives, torch.zeros_like(U)).values())
        == alignment_linear(U, positives)["alignment"]
    )


@pytest.mark.parametrize("name", ["frossl_linear", "barlow_linear"])
def test_is_zero_only_at_equal_views_with_orthonormal_columns(name, randn):
    Q = torch.linalg.qr(randn(9, 4)).Q.expand(2, 9, 4)
    assert loss(name, [Q]) < 1e-24
    assert loss(name, [Q + 0.1 * randn(2, 9, 4)]) > 1e-3


@pytest.mark.parametrize("name", ["frossl_linear", "barlow_linear", "infonce_squared"])
def test_is_invariant_to_a_joint_rotation_but_not_the_scale(name, randn, rotation):
    Z = randn(2, 9, 4)
    assert loss(name, [Z @ rotation]).item() == pytest.approx(loss(name, [Z]).item(), rel=1e-12)
    assert abs(loss(name, [2 * Z]) - loss(name, [Z])) > 1e-2


def test_barlow_twins_is_invariant_to_rotation_only_without_normalisation_and_with_redundancy_one(randn, rotation):
    """Contrary to the FroSSL paper, it is invariant without normalisation; normalisation and the weight remove the
    invariance."""
    Z = randn(1, 9, 4) * torch.tensor([2.0, 1, 0.5, 0.25], dtype=torch.float64) + 0.3 * randn(2, 9, 4)

    def weighted(Z, redundancy):
        squares = (Z[0].T @ Z[1] - torch.eye(4, dtype=torch.float64)).square()
        return (1 - redundancy) * squares.trace() + redundancy * squares.sum()

    assert weighted(Z, 1.0).item() == pytest.approx(barlow_linear(Z)["redundancy"].item(), rel=1e-12)
    assert abs(weighted(Z @ rotation, 0.5) - weighted(Z, 0.5)) > 1e-2
    normalised = [sum(barlow_twins(moved, redundancy=1.0).values()) for moved in (Z, Z @ rotation)]
    assert abs(normalised[0] - normalised[1]) > 1e-2


def test_infonce_is_invariant_to_a_joint_shift_and_log_N_if_all_rows_are_equal(randn):
    Z = randn(2, 9, 4)
    assert loss("infonce_squared", [Z + 3]).item() == pytest.approx(loss("infonce_squared", [Z]).item(), abs=1e-10)
    assert loss("infonce_squared", [Z[:, :1].expand(2, 9, 4)]) > 9 * math.log(9)  # positives are farther than negatives
    assert loss("infonce_squared", [Z[:1, :1].expand(2, 9, 4)]).item() == pytest.approx(9 * math.log(9), abs=1e-12)


# Gradient descent on free embeddings.


def descend(f, Z, *, rate, steps):
    for _ in range(steps):
        Z = Z.detach().requires_grad_()
        Z = Z - rate * torch.autograd.grad(sum(f(Z).values()), Z)[0]
    return Z.detach()


@pytest.mark.parametrize(("sign", "factor"), [(1, 1.1), (-1, 0.9)])
def test_alignment_diverges_for_equal_views_and_collapses_for_opposite_views(sign, factor, randn):
    """u̇ = u⁺ and u̇⁺ = u: the sum of the views grows as eᵗ, their difference decays as e⁻ᵗ, in any dimension."""
    U = randn(8, 3)
    after = descend(lambda Z: alignment_linear(*Z), torch.stack([U, sign * U]), rate=0.1, steps=200)
    torch.testing.assert_close(after, factor**200 * torch.stack([U, sign * U]), rtol=1e-9, atol=0)
    assert after.norm() > 1e8 if sign == 1 else after.norm() < 1e-8


@pytest.mark.parametrize("loss_function", [alignment_linear, lambda U, P: contrastive_linear(U, P, U.roll(1, 0))])
def test_without_constraint_a_linear_network_collapses_to_one_dimension(loss_function, randn):
    """Ẇ = −2 W C is the same for each row of W: all converge to the eigenvector of C of the smallest eigenvalue, the
    first feature."""
    X = torch.linalg.qr(randn(32, 4)).Q * torch.tensor([1.0, 0.7, 0.4, 0.2], dtype=torch.float64)
    W = descend(lambda W: loss_function(X @ W.T, X @ W.T), 0.01 * randn(3, 4), rate=0.5, steps=40)
    assert W.norm() > 10
    assert (torch.linalg.svdvals(W)[1] / torch.linalg.svdvals(W)[0]) < 1e-2


def low_rank(randn, *, size):
    """Return two views that are equal in one direction and have small noise in the others."""
    one = randn(32, 1) @ randn(1, 4) / 12
    return size * (one / one.norm() + 0.01 * randn(2, 32, 4))


def effective_rank(Z):
    return Spectrum.from_embeddings(Z - Z.mean(0)).effective_rank()


@pytest.mark.parametrize("f", [frossl_linear, barlow_linear])
def test_decorrelation_of_free_embeddings_gives_full_effective_rank(f, randn):
    Z = low_rank(randn, size=0.3)
    after = descend(f, Z, rate=0.05, steps=400)
    assert effective_rank(Z[0]) < 1.8
    assert effective_rank(after[0]) > 3.9
    assert sum(f(after).values()) < 1e-8


def test_infonce_far_from_the_origin_keeps_its_digits(randn):
    Z = randn(2, 9, 4)
    assert loss("infonce_squared", [Z + 1e8]).item() == pytest.approx(loss("infonce_squared", [Z]).item(), abs=1e-5)


def test_infonce_increases_the_effective_rank_of_free_embeddings(randn):
    Z = low_rank(randn, size=3.0)
    after = descend(infonce_squared, Z, rate=0.05, steps=400)
    assert effective_rank(Z[0]) < 1.8
    assert effective_rank(after[0]) > 3.5
