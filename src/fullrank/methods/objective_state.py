"""What an objective remembers from batch to batch: a queue, a centre, running moments."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fullrank.methods.precision import at_least_float32
from fullrank.objectives.signature import tensor_names


class ObjectiveState(nn.Module):
    """Buffers that an objective takes beside the embeddings, and the pure function that moves them on after a step.

    They are the same on every process, since each sees the embeddings of the whole batch, and are saved with the weights.

    Args:
        update: takes embeddings and buffers by their names, and returns the new buffers, in the order of `start`; a single one bare.
        start: the buffers by name.

    >>> from fullrank.objectives.moco import moco_queue
    >>> memory = ObjectiveState(moco_queue, queue=torch.zeros(6, 2))
    >>> memory.update({"K": torch.ones(2, 2, 2)})
    >>> memory.tensors()["queue"].count_nonzero(0)
    tensor([4, 4])
    """

    def __init__(self, update: Callable[..., Tensor | tuple[Tensor, ...]], **start: Tensor) -> None:
        super().__init__()
        self._update = update
        for name, tensor in start.items():
            self.register_buffer(name, tensor)

    def tensors(self) -> dict[str, Tensor]:
        """Return the buffers by name."""
        return dict(self.named_buffers())

    @torch.no_grad()
    def update(self, embeddings: dict[str, Tensor]) -> None:
        """Move on by the embeddings of the whole batch."""
        known = {name: at_least_float32(Z) for name, Z in embeddings.items()} | self.tensors()
        new = self._update(*(known[name] for name in tensor_names(self._update)))  # pyright: ignore[reportArgumentType]
        for buffer, value in zip(self.buffers(), (new,) if isinstance(new, Tensor) else new, strict=True):
            buffer.copy_(value)


def no_memory() -> ObjectiveState:
    """Return the memory of an objective that has none.

    >>> no_memory().tensors()
    {}
    """
    return ObjectiveState(lambda: ())
