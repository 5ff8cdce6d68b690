"""The training loop as a generator: it yields after each optimizer step, so the caller can measure between steps."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float, Int64
from torch import Tensor

from fullrank.distributed import gather, on_shards, pays_to_share, require_equal_shapes
from fullrank.errors import UserError
from fullrank.objectives import is_of_sums, total
from fullrank.training.micro_batches import forward_micro_batches
from fullrank.training.optimizers import set_learning_rate, set_weight_decay


@dataclass(frozen=True)
class Step:
    """Results of one optimizer step. The tensors are detached, stay on the device, and cover the whole batch.

    Attributes:
        step: Number of steps so far, including this one.
        terms: The objective's weighted terms; their sum is the loss.
        lr: Learning rate of this step.
        R: Representations (V_0, N, D_b) of the full-size views.
        embeddings: Z (V, N, D) as the objective gets it, and its other inputs.
        labels: Labels (N,) of the batch; −1 means no label.
    """

    step: int
    terms: dict[str, Float[Tensor, ""]]
    lr: float
    R: Float[Tensor, "_ N _"]
    embeddings: dict[str, Tensor]
    labels: Int64[Tensor, " N"]


def fit(
    fabric: Any,
    method: Any,
    optimizer: Any,
    batches: Iterable[tuple[list[Float[Tensor, "_ n C _ _"]], Int64[Tensor, " n"]]],
    learning_rate: Callable[[int], float],
    *,
    weight_decay: Callable[[int], float] | None = None,
    start: int = 0,
    micro_batch: int = 0,
    clip_norm: float = 0.0,
) -> Iterator[Step]:
    """Take one optimizer step per batch, and yield its results.

    Each process embeds its share of the batch. The embeddings are gathered with gradient, and each process computes the
    objective of the whole batch; in large batches, processes share the work of an objective of D × D sums
    (`pays_to_share`). Loss and gradient do not depend on the number of processes.

    Gradients are cleared at the beginning of a step. Between two steps the caller can read the gradients of the last
    step; gradients that the caller adds are discarded.

    Args:
        fabric: A launched `lightning.fabric.Fabric`.
        method: A `Method`, from `fabric.setup`.
        optimizer: The optimizer of the method, from `fabric.setup`.
        batches: Tuples (views, labels) of the steps from `start` on. `views` has one tensor (V_k, n, C, S_k, S_k) per
            view size: V_k views of S_k × S_k pixels. `labels` is (n,).
        learning_rate: Function from the step (from 0) to the learning rate; the groups of the optimizer follow it
            (`set_learning_rate`).
        weight_decay: Function from the step (from 0) to the weight decay of the groups of `set_weight_decay`; None: it
            stays the same.
        start: Number of steps already taken.
        micro_batch: Maximum number of images in one forward pass of a process; 0: the whole share of the batch. The
            objective is always computed on the whole batch.
        clip_norm: Largest norm c of the gradient g of all parameters together, on the whole batch: g ← g · min(1,
            c/(‖g‖ + 10⁻⁶)) before the step of the optimizer. 0: no clipping.

    Raises:
        UserError: the objective returns other terms than in the steps before, or the processes have unequal shares of
            the batch.

    >>> import torch
    >>> from lightning.fabric import Fabric
    >>> from torch import nn
    >>> from fullrank.methods import JointEmbedding
    >>> from fullrank.objectives import frossl
    >>> fabric = Fabric(accelerator="cpu", devices=1)
    >>> module = JointEmbedding(nn.Sequential(nn.Flatten(), nn.Linear(12, 5)), nn.Linear(5, 4), frossl)
    >>> method, optimizer = fabric.setup(module, torch.optim.SGD(module.parameters()))
    >>> batches = [([torch.randn(2, 8, 3, 2, 2)], torch.full((8,), -1))] * 2
    >>> steps = fit(fabric, method, optimizer, batches, lambda step: 0.1 * (step + 1))
    >>> [(step.step, step.lr, sorted(step.terms)) for step in steps]
    [(1, 0.1, ['invariance', 'variance']), (2, 0.2, ['invariance', 'variance'])]
    """
    unwrapped = method.module
    names: list[str] = []
    for index, (views, labels) in enumerate(batches, start=start):
        lr = learning_rate(index)
        set_learning_rate(optimizer, lr)
        if weight_decay is not None:
            set_weight_decay(optimizer, weight_decay(index))
        optimizer.zero_grad()
        unwrapped.current_step = index
        unwrapped.before_step(index)
        if not all(module.training for module in method.modules()):  # `train` takes a millisecond
            method.train()
        local, backward = forward_micro_batches(fabric, method, views, micro_batch=micro_batch)
        require_equal_shapes(*local.values(), labels)
        labels = gather(labels, checked=True)
        inputs = {name: local[name] for name in unwrapped.input_names}
        shared = is_of_sums(unwrapped.objective) and pays_to_share(local["Z"])
        embeddings = {name: gather(Z.detach() if shared else Z, checked=True) for name, Z in inputs.items()}
        terms = on_shards(unwrapped.terms, inputs) if shared else unwrapped.terms(embeddings | {"labels": labels})
        names = names or list(terms)
        if list(terms) != names:
            other = f"the objective returns {', '.join(terms)} in step {index + 1}, but {', '.join(names)} before"
            raise UserError(f"{other}; return the same in each step")
        loss = total(terms)
        backward(loss)
        if clip_norm:  # after the processes have averaged their gradients
            fabric.clip_gradients(method, optimizer, max_norm=clip_norm, error_if_nonfinite=False)
        unwrapped.clear_frozen_gradients()
        optimizer.step()
        embeddings = {name: Z.detach() for name, Z in embeddings.items()}
        whole = embeddings | {n: gather(local[n].detach(), checked=True) for n in ("R", "Z") if n not in embeddings}
        unwrapped.after_step(index, whole)
        yield Step(
            step=index + 1,
            terms={name: term.detach() for name, term in terms.items()},
            lr=lr,
            R=whole["R"],
            embeddings={"Z": whole["Z"]} | embeddings,
            labels=labels,
        )
