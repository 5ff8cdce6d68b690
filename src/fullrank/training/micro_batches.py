"""Micro-batches (GradCache): the network embeds a batch in parts; the objective is computed once, on the whole
batch.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import get_device_states, set_device_states

from fullrank.distributed import sample_axis


def forward_micro_batches(
    fabric: Any, method: Any, views: list[Float[Tensor, "_ n C _ _"]], *, micro_batch: int
) -> tuple[dict[str, Tensor], Callable[[Tensor], None]]:
    """Embed n images, at most m in one pass; return the named embeddings and the backward function of a loss on them.

    For micro-batches B₁ … B_k, a network f_θ, and a loss L of all embeddings:

        1. Zᵢ = f_θ(Bᵢ), without gradient or activations
        2. Gᵢ = ∂L/∂Zᵢ
        3. ∂L/∂θ = Σᵢ ∂⟨f_θ(Bᵢ), Gᵢ⟩/∂θ, one i at a time

    Only the activations of one micro-batch are in memory at a time, in a second forward pass. This pass repeats the
    first pass exactly, from the same random state and buffers: dropout uses the same masks, and BatchNorm's running
    statistics are updated once per micro-batch. Loss and gradient equal those of the whole batch, except with layers
    that mix images: BatchNorm normalises each micro-batch separately.

    Processes exchange gradients once, after the last micro-batch.

    Args:
        fabric: A launched `lightning.fabric.Fabric`.
        method: A `Method`, from `fabric.setup`.
        views: A list of (V_k, n, C, S_k, S_k).
        micro_batch: m; 0: the whole batch.

    Source: Gao et al. 2021, Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup, arXiv:2101.06983.

    >>> from lightning.fabric import Fabric
    >>> from fullrank.methods import JointEmbedding
    >>> from fullrank.objectives import frossl
    >>> fabric = Fabric(accelerator="cpu", devices=1)
    >>> module = JointEmbedding(torch.nn.Flatten(), torch.nn.Linear(12, 4), frossl)
    >>> method = fabric.setup(module)
    >>> embeddings, backward = forward_micro_batches(fabric, method, [torch.randn(2, 8, 3, 2, 2)], micro_batch=3)
    >>> backward(sum(module.terms(embeddings).values()))
    >>> embeddings["Z"].shape, module.projector.weight.grad.shape
    (torch.Size([2, 8, 4]), torch.Size([4, 12]))
    """
    micro_batches = split_views(views, micro_batch)
    if len(micro_batches) == 1:
        return method(views), fabric.backward
    embeddings, states = _first_pass(method, micro_batches)

    def backward(loss: Tensor) -> None:
        gradients = torch.autograd.grad(loss, list(embeddings.values()), allow_unused=True)
        cached = {
            name: G.tensor_split(len(micro_batches), dim=sample_axis(G))
            for name, G in zip(embeddings, gradients, strict=True)
            if G is not None
        }
        for i, (micro_views, state) in enumerate(zip(micro_batches, states, strict=True)):
            _set_random_state(state, micro_views)
            with fabric.no_backward_sync(method, enabled=i < len(micro_batches) - 1):
                outputs = method(micro_views)
                # The outputs of a target network have no gradient, so their products are constants.
                fabric.backward(torch.stack([(outputs[name] * G[i]).sum() for name, G in cached.items()]).sum())

    return embeddings, backward


def count_micro_batches(n: int, micro_batch: int) -> int:
    """Return the number of micro-batches of at most `micro_batch` images for n images; 1 if `micro_batch` is 0.

    >>> count_micro_batches(256, 100), count_micro_batches(256, 128), count_micro_batches(256, 0)
    (3, 2, 1)
    """
    return -(-n // micro_batch) if micro_batch else 1


def split_views(views: list[Float[Tensor, "_ n C _ _"]], micro_batch: int) -> list[list[Tensor]]:
    """Split views into the fewest micro-batches of at most `micro_batch` images; their sizes differ by at most one.

    >>> views = [torch.empty(2, 5, 3, 8, 8), torch.empty(4, 5, 3, 4, 4)]
    >>> [[tuple(group.shape[:2]) for group in part] for part in split_views(views, 3)]
    [[(2, 3), (4, 3)], [(2, 2), (4, 2)]]
    """
    parts = count_micro_batches(views[0].shape[1], micro_batch)
    return [list(groups) for groups in zip(*(group.tensor_split(parts, dim=1) for group in views), strict=True)]


_RandomState = tuple[Tensor, list[int], list[Tensor]]


@torch.no_grad()
def _first_pass(method: Any, micro_batches: list[list[Tensor]]) -> tuple[dict[str, Tensor], list[_RandomState]]:
    """Embed each micro-batch; return the embeddings as leaves that require a gradient, and the random state before each
    micro-batch.
    """
    before = [buffer.clone() for buffer in method.buffers()]
    states, outputs = [], []
    for views in micro_batches:
        states.append(_random_state(views))
        outputs.append(method(views))
    for buffer, value in zip(method.buffers(), before, strict=True):
        buffer.copy_(value)
    parts = {name: [each[name] for each in outputs] for name in outputs[0]}
    return {name: torch.cat(Zs, dim=sample_axis(Zs[0])).requires_grad_() for name, Zs in parts.items()}, states


def _random_state(views: list[Tensor]) -> _RandomState:
    return torch.get_rng_state(), *get_device_states(views[0])


def _set_random_state(state: _RandomState, views: list[Tensor]) -> None:
    cpu, devices, states = state
    torch.set_rng_state(cpu)
    set_device_states(devices, states, device_type=views[0].device.type)
