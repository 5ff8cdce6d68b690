"""Projectors: each one in comparison with its formula. `test_methods` trains with each."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fullrank.errors import UserError
from fullrank.methods import ProjectorConfig, TrainingLength, build_projector
from fullrank.methods.projectors import IterNorm, iterated_root

pytestmark = pytest.mark.usefixtures("double_precision")
D_B = 6


def built(name, features=D_B, seed=0, **numbers):
    return build_projector(ProjectorConfig(kind=name, **{"d0": 3, "groups": 2} | numbers), features, seed=seed)


def kinds(projector):
    return [type(layer).__name__ for layer in projector]


@pytest.mark.parametrize(
    ("widths", "expected"),
    [
        ((), []),
        ((7,), ["Linear"]),
        ((8, 8, 7), ["Linear", "BatchNorm1d", "ReLU", "Linear", "BatchNorm1d", "ReLU", "Linear"]),
    ],
)
def test_hidden_layers_are_linear_norm_relu_and_the_last_is_linear(widths, expected):
    projector = build_projector(ProjectorConfig(widths=widths), 5)
    assert kinds(projector) == expected
    assert projector(torch.randn(4, 5)).shape == (4, widths[-1] if widths else 5)


def test_without_widths_the_embedding_is_the_representation():
    R = torch.randn(4, 5)
    assert torch.equal(build_projector(ProjectorConfig(widths=()), 5)(R), R)


# The projectors of DirectCLR's paper


def test_a_trainable_diagonal_starts_as_the_identity_and_scales_each_dimension():
    projector, R = built("diagonal"), torch.randn(4, D_B)
    assert torch.equal(projector(R), R)
    projector[0].weight.data = torch.arange(D_B).double()
    torch.testing.assert_close(projector(R), R @ torch.diag(torch.arange(D_B).double()))
    assert [p.shape for p in projector.parameters()] == [(D_B,)]


@settings(max_examples=20, deadline=None)
@given(D=st.integers(1, 12), data=st.data())
def test_a_fixed_low_rank_projector_has_d0_singular_values_of_one(D, data):
    d0 = data.draw(st.integers(1, D))
    W = built("low-rank", features=D, d0=d0)[0].weight
    expected = (torch.arange(D) < d0).double()
    torch.testing.assert_close(torch.linalg.svdvals(W), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["low-rank", "low-rank-diagonal"])
def test_fixed_projectors_are_not_trained_and_are_saved(kind):
    projector = built(kind)
    assert not any(parameter.requires_grad for parameter in projector.parameters())
    other = built(kind)
    other.load_state_dict(projector.state_dict())
    R = torch.randn(4, D_B)
    assert torch.equal(other(R), projector(R))


@pytest.mark.parametrize("kind", ["low-rank", "low-rank-diagonal", "sub-vector", "dropout"])
def test_d0_is_from_one_to_the_dimensions_of_the_representation(kind):
    for d0 in (1, D_B):
        built(kind, d0=d0)
    with pytest.raises(UserError, match="d0"):
        built(kind, d0=0)
    with pytest.raises(UserError, match=r"^projector.d0 is 7, but representations have 6 dimensions; choose 1 to 6"):
        built(kind, d0=D_B + 1)


def test_an_orthogonal_projector_keeps_inner_products_so_that_the_loss_is_that_without_one():
    R = torch.randn(9, D_B)
    Z = built("orthogonal")(R)
    assert not torch.allclose(Z, R)
    torch.testing.assert_close(Z @ Z.mT, R @ R.mT)


def test_dropout_keeps_d0_dimensions_the_same_for_all_samples_and_different_in_each_step():
    projector, sets = built("dropout", features=40, d0=10, seed=7)[0], []
    for step in range(50):
        projector.before_step(step, TrainingLength())
        mask = projector(torch.ones(5, 40))
        assert (mask == mask[0]).all()
        assert mask[0].sum() == 10
        sets.append(mask[0])
    assert len({tuple(mask.tolist()) for mask in sets}) == 50
    expected, error = 50 * 10 / 40, math.sqrt(50 * 0.25 * 0.75)
    assert (torch.stack(sets).sum(0) - expected).abs().max() < 4 * error  # all dimensions are equally frequent


def test_dropout_is_a_function_of_seed_and_step_and_is_not_saved():
    one, other = (built("dropout", features=40, d0=10, seed=7)[0] for _ in range(2))
    assert not one.state_dict()
    one.before_step(3, TrainingLength()), one.before_step(8, TrainingLength())
    other.before_step(8, TrainingLength())
    assert torch.equal(one.dropped, other.dropped)
    different = built("dropout", features=40, d0=10, seed=8)[0]
    different.before_step(8, TrainingLength())
    assert not torch.equal(one.dropped, different.dropped)


# Iterative normalisation


def test_iterative_normalisation_whitens_each_group_by_the_steps_of_the_paper():
    Z, layer = torch.randn(20, 6) @ torch.randn(6, 6) + 3, IterNorm(6, 2)
    layer.weight.data, layer.bias.data = torch.rand(6), torch.rand(6)
    expected = torch.empty_like(Z)
    for group in (slice(0, 3), slice(3, 6)):
        z = Z[:, group]
        C = z.T.cov(correction=0) + 1e-5 * torch.eye(3)
        P = torch.eye(3)
        for _ in range(5):
            P = (3 * P - torch.linalg.matrix_power(P, 3) @ C / C.trace()) / 2
        expected[:, group] = (z - z.mean(0)) @ P / C.trace().sqrt()
    torch.testing.assert_close(layer(Z), expected * layer.weight + layer.bias)
    torch.testing.assert_close(layer.running_mean, 0.1 * Z.mean(0))
    before = {name: buffer.clone() for name, buffer in layer.named_buffers()}
    alone = layer.eval()(Z[:1])  # the running mean and root
    torch.testing.assert_close(alone, layer(Z)[:1])
    assert all(torch.equal(buffer, before[name]) for name, buffer in layer.named_buffers())


def test_iterative_normalisation_stays_itself_under_torchs_conversion_and_in_half_precision():
    network = torch.nn.SyncBatchNorm.convert_sync_batchnorm(torch.nn.Sequential(IterNorm(6, 2)))
    assert kinds(network) == ["IterNorm"]
    for layer in (network.bfloat16(), network.bfloat16().eval()):
        assert layer(torch.randn(9, 6).bfloat16()).dtype is torch.bfloat16


def test_many_steps_of_the_iterated_root_give_the_inverse_root():
    A = torch.randn(3, 9, 4)
    C = A.mT @ A / 9 + torch.eye(4)
    P = iterated_root(C, steps=15)
    torch.testing.assert_close(P @ C @ P, torch.eye(4).expand(3, 4, 4), atol=1e-9, rtol=0)


def test_the_gradient_of_iterative_normalisation_is_that_of_its_steps():
    layer = IterNorm(4, 2, affine=False)
    assert torch.autograd.gradcheck(layer, torch.randn(7, 4, requires_grad=True))
    assert not [*layer.parameters()]


def test_groups_of_iterative_normalisation_divide_the_dimensions():
    with pytest.raises(
        UserError, match=r"^projector.output_iternorm is 4, but .* 6 dimensions; .*output_iternorm = 3$"
    ):
        build_projector(ProjectorConfig(widths=(8, 6), output_iternorm=4), 5)
    assert kinds(build_projector(ProjectorConfig(widths=(6,), output_iternorm=3), 5)) == ["Linear", "IterNorm"]
