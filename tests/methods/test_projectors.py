import pytest
import torch
from torch import nn

from fullrank.methods import Projector, build_projector


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
    projector = build_projector(Projector(widths=widths), 5)
    assert kinds(projector) == expected
    assert projector(torch.randn(4, 5)).shape == (4, widths[-1] if widths else 5)


def test_without_widths_the_embedding_is_the_representation():
    R = torch.randn(4, 5)
    assert torch.equal(build_projector(Projector(widths=()), 5)(R), R)


def test_batch_norm_can_be_left_out():
    assert kinds(build_projector(Projector(widths=(8, 7), batchnorm=False), 5)) == ["Linear", "ReLU", "Linear"]


@pytest.mark.parametrize("batchnorm", [True, False])
def test_a_bias_is_left_out_just_where_batch_norm_shifts(batchnorm):
    projector = build_projector(Projector(widths=(8, 8, 7), batchnorm=batchnorm), 5)
    linear = [layer for layer in projector if isinstance(layer, nn.Linear)]
    assert [layer.bias is not None for layer in linear] == [not batchnorm, not batchnorm, True]
