"""Projectors: each one in comparison with its formula. `test_methods` trains with each."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fullrank.errors import UserError
from fullrank.methods import ProjectorConfig, TrainingLength, build_projector

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
