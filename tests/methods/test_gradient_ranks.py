"""The rank of the gradient at the representation and behind the last block (DirectCLR, Fig. 10)."""

from copy import deepcopy

import pytest
import torch

from fullrank.errors import UserError
from fullrank.methods import (
    BackboneConfig,
    JointEmbedding,
    ProjectorConfig,
    TeacherStudent,
    build_backbone,
    build_projector,
    gradient_ranks,
)
from fullrank.methods.directclr_projectors import channel_gradients
from fullrank.methods.heads import build_predictor
from fullrank.objectives import OBJECTIVES, byol, simclr

D_B, D0 = 8, 3
pytestmark = pytest.mark.usefixtures("double_precision")


def backbone(*, zero=False, **spec):
    arguments = {"channels": [4, 4, 8, D_B], "layers": [1, 1, 1, 2], "zero_init_last": zero}
    return build_backbone(BackboneConfig(arguments=arguments, stem="small", **spec))


def method(kind="sub-vector", objective=simclr, network=None):
    return JointEmbedding(network or backbone(), build_projector(ProjectorConfig(kind=kind, d0=D0), D_B), objective)


def views(n=16):
    return [torch.randn(2, n, 3, 16, 16, generator=torch.Generator().manual_seed(1))]


@pytest.mark.parametrize("kind", ["sub-vector", "low-rank-diagonal", "low-rank", "dropout"])
@pytest.mark.parametrize("objective", ["simclr", "frossl", "vicreg"])
def test_a_projector_of_rank_d0_gives_a_gradient_of_rank_d0_and_full_rank_behind_the_last_block(kind, objective):
    ranks = gradient_ranks(method(kind, OBJECTIVES[objective]), views())
    assert ranks == {"representation": (D0, D_B), "block": (D_B, D_B)}


@pytest.mark.parametrize("kind", ["diagonal", "orthogonal", "groups"])
def test_a_projector_of_full_rank_gives_a_gradient_of_full_rank(kind):
    assert gradient_ranks(method(kind), views())["representation"] == (D_B, D_B)


def test_without_the_last_shortcut_the_gradient_behind_the_block_is_full_too():
    assert gradient_ranks(method(network=backbone(last_residual=False)), views())["block"] == (D_B, D_B)


def test_a_block_initialised_as_its_shortcut_does_not_change_the_rank():
    ranks = gradient_ranks(method(network=backbone(zero=True)), views())
    assert ranks == {"representation": (D0, D_B), "block": (D0, D_B)}


def test_unused_dimensions_get_no_gradient_but_their_input_channels_do():
    gradients = channel_gradients(method(), views())
    assert (gradients["representation"][:, D0:] == 0).all()
    assert (gradients["representation"][:, :D0] != 0).any(0).all()
    assert (gradients["block"][:, D0:] != 0).any(0).all()


@pytest.mark.parametrize("last_residual", [True, False])
def test_the_last_filters_of_unused_dimensions_get_no_gradient(last_residual):
    original = method(network=backbone(last_residual=last_residual))
    torch.stack(list(original.terms(original(views())).values())).sum().backward()
    block = original.backbone.layer4[-1]
    assert (block.conv2.weight.grad[D0:] == 0).all()
    assert (block.conv2.weight.grad[:D0] != 0).flatten(1).any(1).all()
    assert (block.conv1.weight.grad != 0).flatten(1).any(1).all()


def test_channel_gradients_equal_autograd():
    original, batch = method(), views(n=6)
    gradients = channel_gradients(original, batch)
    network = original.backbone
    maps = [network.forward_features(view) for view in batch[0]]  # the last block's output
    R = torch.stack([x.mean((2, 3)) for x in maps]).detach().requires_grad_()
    loss = sum(simclr(R[..., :D0]).values())
    (G,) = torch.autograd.grad(loss, R)
    torch.testing.assert_close(gradients["representation"], G.flatten(0, 1))
    assert gradients["block"].shape == (2 * 6 * 2 * 2, D_B)


def test_the_method_is_not_changed():
    original = method("diagonal").eval()
    before = deepcopy(original.state_dict())
    gradient_ranks(original, views())
    assert not original.training
    assert all(torch.equal(value, before[name]) for name, value in original.state_dict().items())
    assert all(p.grad is None for p in original.parameters())
    assert not original.backbone._forward_hooks


def test_the_teacher_is_ignored():
    original = TeacherStudent(
        backbone(),
        build_projector(ProjectorConfig(kind="sub-vector", d0=D0), D_B),
        byol,
        head=build_predictor(D0, 6),
        momentum=(0.9, 1.0),
    )
    assert gradient_ranks(original, views()) == {"representation": (D0, D_B), "block": (D_B, D_B)}


def test_a_network_that_is_not_a_resnet_raises():
    network = build_backbone(BackboneConfig(name="test_vit", arguments={"img_size": 32}))
    with pytest.raises(
        UserError,
        match=r"^the last residual block is defined only for timm's ResNets, got backbone 'VisionTransformer'",
    ):
        gradient_ranks(JointEmbedding(network, torch.nn.Identity(), simclr), [torch.randn(2, 4, 3, 32, 32)])
