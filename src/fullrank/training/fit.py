"""The training loop as a generator: one optimizer step after another, for whoever wants to look between them."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float, Int64
from torch import Tensor

from fullrank.distributed import gather
from fullrank.methods import Method
from fullrank.objectives import total
from fullrank.training.micro_batches import embed


@dataclass(frozen=True)
class Step:
    """What one optimizer step leaves behind; tensors are detached, stay on the device, and cover the whole batch."""

    step: int
    """Number of steps taken, this one included."""
    terms: dict[str, Float[Tensor, ""]]
    """The objective's weighted terms; their sum is the loss."""
    lr: float
    """Learning rate of this step."""
    R: Float[Tensor, "_ N _"]
    """Representations (V_0, N, D_b) of the full-size views."""
    embeddings: dict[str, Tensor]
    """Z (V, N, D), the projector's output, and the other tensors that the objective took."""
    labels: Int64[Tensor, " N"]
    """(N,) labels of the batch, −1 where there is none."""


def fit(
    fabric: Any,
    method: Any,
    optimizer: Any,
    batches: Iterable[tuple[list[Float[Tensor, "_ n C _ _"]], Int64[Tensor, " n"]]],
    learning_rate: Callable[[int], float],
    *,
    start: int = 0,
    micro_batch: int = 0,
) -> Iterator[Step]:
    """Take one optimizer step for each of `batches`, and yield after each.

    `method` and `optimizer` come from `fabric.setup`. Each process embeds its share of the batch; the embeddings are gathered with
    gradient and the objective is taken once, on the whole batch, so that loss and gradient do not depend on the number of processes.

    Gradients are cleared at the beginning of a step: between two steps those of the last one are there to be looked at, and whatever
    the one who looks adds to them does not enter the training.

    Args:
        fabric: a launched `lightning.fabric.Fabric`.
        method: a `Method`, set up.
        optimizer: its optimizer, set up.
        batches: pairs of views, a list of (V_k, n, C, S_k, S_k), and labels (n,), from step `start` on.
        learning_rate: step (from 0) to learning rate.
        start: number of steps already taken.
        micro_batch: images that one process embeds at once, the objective being taken on the whole batch all the same; 0: its share.

    >>> import torch
    >>> from lightning.fabric import Fabric
    >>> from torch import nn
    >>> from fullrank.methods import JointEmbedding
    >>> from fullrank.objectives import frossl
    >>> fabric = Fabric(accelerator="cpu", devices=1)
    >>> module = JointEmbedding(nn.Sequential(nn.Flatten(), nn.Linear(12, 5)), nn.Linear(5, 4), frossl)
    >>> method, optimizer = fabric.setup(module, torch.optim.SGD(module.parameters()))
    >>> batches = [([torch.randn(2, 8, 3, 2, 2)], torch.full((8,), -1))] * 2
    >>> [(step.step, step.lr, sorted(step.terms)) for step in fit(fabric, method, optimizer, batches, lambda step: 0.1 * (step + 1))]
    [(1, 0.1, ['invariance', 'variance']), (2, 0.2, ['invariance', 'variance'])]
    """
    inner: Method = method.module
    for index, (views, labels) in enumerate(batches, start=start):
        lr = learning_rate(index)
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.zero_grad()
        inner.before_step(index)
        method.train()
        local, backward = embed(fabric, method, views, micro_batch=micro_batch)
        embeddings = {name: gather(local[name]) for name in inner.input_names}
        terms = inner.terms(embeddings)
        loss = total(terms)
        backward(loss)
        optimizer.step()
        embeddings = {name: Z.detach() for name, Z in embeddings.items()}
        inner.after_step(index, embeddings)
        whole = embeddings | {name: gather(local[name].detach()) for name in ("R", "Z") if name not in embeddings}
        yield Step(
            step=index + 1,
            terms={name: term.detach() for name, term in terms.items()},
            lr=lr,
            R=whole["R"],
            embeddings={"Z": whole["Z"]} | embeddings,
            labels=gather(labels, dim=0),
        )
