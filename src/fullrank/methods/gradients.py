"""Where the gradient of a loss on part of the representation becomes one of full rank."""

from copy import deepcopy

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fullrank.methods.backbones import last_block
from fullrank.methods.method import Method


def gradients_of_channels(method: Method, views: list[Float[Tensor, "_ n C _ _"]]) -> dict[str, Float[Tensor, "_ _"]]:
    """Return the loss's gradient at the representation r and at the input h of the backbone's last block, a row a vector of channels.

    With h (n, C, H, W) the block's input for one view,

        "representation": ∂ℒ/∂r (V n, D_b)        "block": ∂ℒ/∂h (V n H W, C)

    Both are of one batch, in train mode; the method is left as it is.

    Args:
        method: of one branch, on a timm ResNet.
        views: a batch.

    Raises:
        UserError: the backbone is no timm ResNet.
    """
    method = deepcopy(method).train().requires_grad_(False)
    block = last_block(method.backbone, type(method.backbone).__name__)
    r: list[Tensor] = []
    h: list[Tensor] = []

    def keep_output(_: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        r.append(output)

    def begin_here(_: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        h.append(inputs[0].requires_grad_())  # no graph is kept of what comes before
        return (h[-1],)

    method.backbone.register_forward_hook(keep_output)
    block.register_forward_pre_hook(begin_here)
    loss = torch.stack(list(method.terms(method(views)).values())).sum()
    gradients = torch.autograd.grad(loss, r + h)
    rows = [G.movedim(1, -1).flatten(0, -2) for G in gradients]
    return {"representation": torch.cat(rows[: len(r)]), "block": torch.cat(rows[len(r) :])}


def gradient_ranks(method: Method, views: list[Float[Tensor, "_ n C _ _"]]) -> dict[str, tuple[int, int]]:
    """Return (rank, channels) of the loss's gradient at the representation, and at the input of the backbone's last block.

    With a loss on the first d0 dimensions of r alone, the first rank is at most d0. Behind the convolutions of the last block the
    gradient takes every channel of h; h reaches r through the block's shortcut, and so what the loss does not see of r learns.
    Where the block's last BatchNorm is still zero, as timm begins, its convolutions pass nothing back, and the first d0 channels alone
    get a gradient there too.

    A rank counts the singular values above the largest times the machine's ε times the longer side; in single precision that counts
    rounding errors as well, so take the method and the views in float64. It can be no more than the number of rows.

    Args:
        method: of one branch, on a timm ResNet.
        views: a batch.

    Raises:
        UserError: the backbone is no timm ResNet.

    Source: Jing et al. 2022, Understanding Dimensional Collapse in Contrastive Self-supervised Learning, Fig. 10.

    >>> from fullrank.methods import BackboneConfig, JointEmbedding, ProjectorConfig, build_backbone, build_projector
    >>> from fullrank.objectives import simclr
    >>> arguments = {"channels": [4, 4, 4, 4], "layers": [1, 1, 1, 2], "zero_init_last": False}
    >>> backbone = build_backbone(BackboneConfig(arguments=arguments, stem="small"))
    >>> method = JointEmbedding(backbone, build_projector(ProjectorConfig(kind="sub-vector", d0=2), 4), simclr).double()
    >>> gradient_ranks(method, [torch.randn(2, 16, 3, 16, 16, dtype=torch.float64)])["representation"]
    (2, 4)
    """
    gradients = gradients_of_channels(method, views)
    return {name: (int(torch.linalg.matrix_rank(G)), G.shape[1]) for name, G in gradients.items()}
