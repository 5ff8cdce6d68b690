"""The rank of the loss's gradient in the backbone, at the representation and before the last block.

Source: Jing et al. 2022, Understanding Dimensional Collapse in Contrastive Self-supervised Learning, Fig. 10.
"""

from copy import deepcopy
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.methods import Method
from fullrank.methods.backbones import last_block
from fullrank.objectives import total


def channel_gradients(method: Method, views: list[Float[Tensor, "_ n C _ _"]]) -> dict[str, Float[Tensor, "_ _"]]:
    """Return the gradient of the loss at the representation r and at the input h of the backbone's last block, as rows
    of channels.

    With h (n, C, H, W) the block's input for one view,

        "representation": ∂ℒ/∂r (V n, D_b)        "block": ∂ℒ/∂h (V n H W, C)

    Both are computed on one batch, in train mode, on a copy of the method.

    Args:
        method: a method with one encoder, on a timm ResNet.
        views: the views of one batch.

    Raises:
        UserError: the backbone is not a timm ResNet.
    """
    method = deepcopy(method).train().requires_grad_(False)
    block = last_block(method.backbone, type(method.backbone).__name__)
    tensors: dict[str, list[Any]] = {"representation": [], "block": []}
    method.backbone.register_forward_hook(lambda _, inputs, output: tensors["representation"].append(output))
    block.register_forward_pre_hook(lambda _, inputs: tensors["block"].append(inputs[0].requires_grad_()))  # a leaf
    loss = total(method.terms(method(views)))
    gradients = {name: torch.autograd.grad(loss, found, retain_graph=True) for name, found in tensors.items()}
    return {name: torch.cat([G.movedim(1, -1).flatten(0, -2) for G in found]) for name, found in gradients.items()}


def gradient_ranks(method: Method, views: list[Float[Tensor, "_ n C _ _"]]) -> dict[str, tuple[int, int]]:
    """Return (rank, channels) of the loss's gradient at the representation, and at the input of the backbone's last
    block.

    If the loss takes only the first d0 dimensions of r, the first rank is at most d0. Through the convolutions of the
    last block, all channels of h get a gradient; h reaches r through the block's shortcut, so all of r is trained. If
    the weight of the block's last BatchNorm is zero, as in timm's initialisation, the convolutions pass no gradient
    back, and only the first d0 channels of h get one.

    The rank is the number of singular values above (largest singular value) × (machine epsilon) × (longer side). In
    float32 it also counts rounding errors, so give the method and the views in float64. The rank is at most the number
    of rows.

    Args:
        method: a method with one encoder, on a timm ResNet.
        views: the views of one batch.

    Raises:
        UserError: the backbone is not a timm ResNet.

    Source: Jing et al. 2022, Fig. 10.

    >>> from fullrank.methods import BackboneConfig, JointEmbedding, ProjectorConfig, build_projector
    >>> from fullrank.methods.backbones import build_backbone
    >>> from fullrank.objectives import simclr
    >>> arguments = {"channels": [4, 4, 4, 4], "layers": [1, 1, 1, 2], "zero_init_last": False}
    >>> backbone = build_backbone(BackboneConfig(arguments=arguments, stem="small"))
    >>> method = JointEmbedding(backbone, build_projector(ProjectorConfig(kind="sub-vector", d0=2), 4), simclr).double()
    >>> gradient_ranks(method, [torch.randn(2, 16, 3, 16, 16, dtype=torch.float64)])["representation"]
    (2, 4)
    """
    gradients = channel_gradients(method, views)
    return {name: (int(torch.linalg.matrix_rank(G)), G.shape[1]) for name, G in gradients.items()}
