"""The rank of the gradient at the representation and behind the last block (DirectCLR, Fig. 10)."""

import pytest
import torch

from fullrank import methods
from fullrank.methods.backbones import build_backbone
from fullrank.objectives import OBJECTIVES, simclr
from fullrank_papers.figures.directclr.gradient_ranks import channel_gradients, gradient_ranks

D_B, D0 = 8, 3
pytestmark = pytest.mark.usefixtures("double_precision")


def backbone(*, zero=False, **spec):
    arguments = {"channels": [4, 4, 8, D_B], "layers": [1, 1, 1, 2], "zero_init_last": zero}
    return build_backbone(methods.BackboneConfig(arguments=arguments, stem="small", **spec))


def method(kind="sub-vector", objective=simclr, network=None):
    return methods.JointEmbedding(
        network or backbone(), methods.build_projector(methods.ProjectorConfig(kind=kind, d0=D0), D_B), objective
    )


def views(n=16):
    return [torch.randn(2, n, 3, 16, 16, generator=torch.Generator().manual_seed(1))]


@pytest.mark.parametrize("kind", ["sub-vector", "low-rank-diagonal", "low-rank", "dropout"])
@pytest.mark.parametrize("objective", ["simclr", "frossl", "vicreg"])
def test_a_projector_of_rank_d0_gives_a_gradient_of_rank_d0_and_full_rank_behind_the_last_block(kind, objective):
    ranks = gradient_ranks(method(kind, OBJECTIVES[objective]), views())
    assert ranks == {"representation": (D0, D_B), "block": (D_B, D_B)}


@pytest.mark.parametrize(("spec", "rank"), [({}, D0), ({"last_residual": False}, D_B)])
def test_a_zero_initialised_last_norm_leaves_rank_d0_behind_a_block_with_a_shortcut(spec, rank):
    assert gradient_ranks(method(network=backbone(zero=True, **spec)), views())["block"] == (rank, D_B)


def test_unused_dimensions_get_no_gradient_but_their_input_channels_do():
    gradients = channel_gradients(method(), views())
    assert (gradients["representation"][:, D0:] == 0).all()
    assert (gradients["representation"][:, :D0] != 0).any(0).all()
    assert (gradients["block"][:, D0:] != 0).any(0).all()


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
