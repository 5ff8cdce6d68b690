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
from fullrank.methods.gradients import gradients_of_channels
from fullrank.methods.heads import build_predictor
from fullrank.objectives import OBJECTIVES, byol, simclr

D_B, D0 = 8, 3


@pytest.fixture(autouse=True)
def _double_precision():
    torch.set_default_dtype(torch.float64)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield
    torch.set_default_dtype(torch.float32)


def backbone(*, zero=False, **spec):
    arguments = {"channels": [4, 4, 8, D_B], "layers": [1, 1, 1, 2], "zero_init_last": zero}
    return build_backbone(BackboneConfig(arguments=arguments, stem="small", **spec))


def method(kind="sub-vector", objective=simclr, network=None):
    return JointEmbedding(network or backbone(), build_projector(ProjectorConfig(kind=kind, d0=D0), D_B), objective)


def views(n=16):
    return [torch.randn(2, n, 3, 16, 16, generator=torch.Generator().manual_seed(1))]


@pytest.mark.parametrize("kind", ["sub-vector", "low-rank-diagonal", "low-rank", "dropout"])
@pytest.mark.parametrize("objective", ["simclr", "frossl", "vicreg"])
def test_a_projector_of_rank_d0_leaves_a_gradient_of_rank_d0_that_is_full_behind_the_last_block(kind, objective):
    ranks = gradient_ranks(method(kind, OBJECTIVES[objective]), views())
    assert ranks == {"representation": (D0, D_B), "block": (D_B, D_B)}


@pytest.mark.parametrize("kind", ["diagonal", "orthogonal", "groups"])
def test_a_projector_of_full_rank_leaves_a_gradient_of_full_rank(kind):
    assert gradient_ranks(method(kind), views())["representation"] == (D_B, D_B)


def test_without_the_last_shortcut_the_gradient_behind_the_block_is_full_too():
    assert gradient_ranks(method(network=backbone(last_residual=False)), views())["block"] == (D_B, D_B)


def test_a_block_that_begins_as_its_shortcut_passes_the_gradient_of_the_representation_on_as_it_is():
    ranks = gradient_ranks(method(network=backbone(zero=True)), views())
    assert ranks == {"representation": (D0, D_B), "block": (D0, D_B)}


def test_the_dimensions_that_the_loss_does_not_see_get_no_gradient_and_their_channels_do():
    gradients = gradients_of_channels(method(), views())
    assert (gradients["representation"][:, D0:] == 0).all()
    assert (gradients["representation"][:, :D0] != 0).any(0).all()
    assert (gradients["block"][:, D0:] != 0).any(0).all()


@pytest.mark.parametrize("last_residual", [True, False])
def test_the_last_filters_of_the_dimensions_that_the_loss_does_not_see_stay_as_they_were_drawn(last_residual):
    subject = method(network=backbone(last_residual=last_residual))
    torch.stack(list(subject.terms(subject(views())).values())).sum().backward()
    block = subject.backbone.layer4[-1]
    assert (block.conv2.weight.grad[D0:] == 0).all()
    assert (block.conv2.weight.grad[:D0] != 0).flatten(1).any(1).all()
    assert (block.conv1.weight.grad != 0).flatten(1).any(1).all()


def test_the_gradients_are_those_of_autograd_in_rows_of_channels():
    subject, batch = method(), views(n=6)
    gradients = gradients_of_channels(subject, batch)
    network = subject.backbone
    maps = [network.forward_features(view) for view in batch[0]]  # the last block's output
    R = torch.stack([x.mean((2, 3)) for x in maps]).detach().requires_grad_()
    loss = sum(simclr(R[..., :D0]).values())
    (G,) = torch.autograd.grad(loss, R)
    torch.testing.assert_close(gradients["representation"], G.flatten(0, 1))
    assert gradients["block"].shape == (2 * 6 * 2 * 2, D_B)


def test_the_method_is_left_as_it_was():
    subject = method("diagonal").eval()
    before = deepcopy(subject.state_dict())
    gradient_ranks(subject, views())
    assert not subject.training
    assert all(torch.equal(value, before[name]) for name, value in subject.state_dict().items())
    assert all(p.grad is None for p in subject.parameters())
    assert not subject.backbone._forward_hooks


def test_a_target_network_is_not_looked_at():
    subject = TeacherStudent(
        backbone(), build_projector(ProjectorConfig(kind="sub-vector", d0=D0), D_B), byol, head=build_predictor(D0, 6), momentum=(0.9, 1.0)
    )
    assert gradient_ranks(subject, views()) == {"representation": (D0, D_B), "block": (D_B, D_B)}


def test_another_network_than_a_resnet_is_refused():
    network = build_backbone(BackboneConfig(name="test_vit", arguments={"img_size": 32}))
    with pytest.raises(UserError, match=r"^the last residual block is known of timm's ResNets alone, got backbone 'VisionTransformer'"):
        gradient_ranks(JointEmbedding(network, torch.nn.Identity(), simclr), [torch.randn(2, 4, 3, 32, 32)])
