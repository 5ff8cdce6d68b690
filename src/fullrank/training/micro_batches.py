"""Micro-batches: a batch is embedded in pieces, and the objective still taken once, on all of it (GradCache)."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import get_device_states, set_device_states


def embed(
    fabric: Any, method: Any, views: list[Float[Tensor, "_ n C _ _"]], *, micro_batch: int
) -> tuple[dict[str, Tensor], Callable[[Tensor], None]]:
    """Embed n images, at most m at once; return the named embeddings, and the function that takes a loss on them back to the weights.

    Pieces B₁ … B_k of the batch, a network f_θ, and a loss L of all embeddings at once:

        1. Zᵢ = f_θ(Bᵢ), without gradient: nothing else is kept      2. Gᵢ = ∂L/∂Zᵢ      3. ∂L/∂θ = Σᵢ ∂⟨f_θ(Bᵢ), Gᵢ⟩/∂θ, piece by piece

    The activations of one piece are held at a time, for a second forward pass. That pass starts from the random numbers and the buffers
    of the first and so repeats it: dropout falls on the same units, and BatchNorm's running statistics move once for each piece. Loss
    and gradient are those of the undivided batch, but for layers that look at several images: BatchNorm normalises a piece by itself.

    Gradients are shared by the processes once, with the last piece.

    Args:
        fabric: a launched `lightning.fabric.Fabric`.
        method: a `Method`, set up.
        views: a list of (V_k, n, C, S_k, S_k).
        micro_batch: m; 0: all at once.

    Source: Gao et al. 2021, Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup, arXiv:2101.06983.

    >>> from lightning.fabric import Fabric
    >>> from fullrank.methods import JointEmbedding
    >>> from fullrank.objectives import frossl
    >>> fabric = Fabric(accelerator="cpu", devices=1)
    >>> module = JointEmbedding(torch.nn.Flatten(), torch.nn.Linear(12, 4), frossl)
    >>> method = fabric.setup(module)
    >>> embeddings, backward = embed(fabric, method, [torch.randn(2, 8, 3, 2, 2)], micro_batch=3)
    >>> backward(sum(module.terms(embeddings).values()))
    >>> embeddings["Z"].shape, module.projector.weight.grad.shape
    (torch.Size([2, 8, 4]), torch.Size([4, 12]))
    """
    pieces = divide(views, micro_batch)
    if len(pieces) == 1:
        return method(views), fabric.backward
    embeddings, states = _first_pass(method, pieces)

    def backward(loss: Tensor) -> None:
        gradients = torch.autograd.grad(loss, list(embeddings.values()), allow_unused=True)
        cached = {name: G.tensor_split(len(pieces), dim=1) for name, G in zip(embeddings, gradients, strict=True) if G is not None}
        for i, (piece, state) in enumerate(zip(pieces, states, strict=True)):
            _set_random_state(state, piece)
            with fabric.no_backward_sync(method, enabled=i < len(pieces) - 1):
                again = method(piece)
                # A target's product is a constant, since its network gives it without gradient, whatever the loss does with it.
                fabric.backward(torch.stack([(again[name] * G[i]).sum() for name, G in cached.items()]).sum())

    return embeddings, backward


def count_pieces(n: int, micro_batch: int) -> int:
    """Return in how many pieces n images are embedded, at most `micro_batch` in each; 0: all in one.

    >>> count_pieces(256, 100), count_pieces(256, 128), count_pieces(256, 0)
    (3, 2, 1)
    """
    return -(-n // micro_batch) if micro_batch else 1


def divide(views: list[Float[Tensor, "_ n C _ _"]], micro_batch: int) -> list[list[Tensor]]:
    """Split views into the fewest pieces of at most `micro_batch` images; their sizes differ by one at most.

    >>> [[tuple(group.shape[:2]) for group in piece] for piece in divide([torch.empty(2, 5, 3, 8, 8), torch.empty(4, 5, 3, 4, 4)], 3)]
    [[(2, 3), (4, 3)], [(2, 2), (4, 2)]]
    """
    pieces = count_pieces(views[0].shape[1], micro_batch)
    return [list(groups) for groups in zip(*(group.tensor_split(pieces, dim=1) for group in views), strict=True)]


_RandomState = tuple[Tensor, list[int], list[Tensor]]


@torch.no_grad()
def _first_pass(method: Any, pieces: list[list[Tensor]]) -> tuple[dict[str, Tensor], list[_RandomState]]:
    """Embed each piece; return the embeddings as leaves that take a gradient, and the random state before each piece."""
    before = [buffer.clone() for buffer in method.buffers()]
    states, outputs = [], []
    for piece in pieces:
        states.append(_random_state(piece))
        outputs.append(method(piece))
    for buffer, value in zip(method.buffers(), before, strict=True):
        buffer.copy_(value)
    return {name: torch.cat([output[name] for output in outputs], dim=1).requires_grad_() for name in outputs[0]}, states


def _random_state(piece: list[Tensor]) -> _RandomState:
    return torch.get_rng_state(), *get_device_states(piece[0])


def _set_random_state(state: _RandomState, piece: list[Tensor]) -> None:
    cpu, devices, states = state
    torch.set_rng_state(cpu)
    set_device_states(devices, states, device_type=piece[0].device.type)
