"""The base class of methods, the buffers of an objective's state, and modules that depend on the training step."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fullrank.distributed import sample_axis
from fullrank.objectives import ObjectiveState, Terms
from fullrank.objectives.signature import EPOCH, GENERATOR, takes, tensor_names
from fullrank.seeding import mix

# Extra hash input that separates the random numbers of the objective from those of the views and of dropout.
OBJECTIVE_STREAM = 2


@dataclass(frozen=True)
class TrainingLength:
    """The length of a run. Schedules depend on it: the momentum of a teacher, and the epochs in which prototypes are
    frozen.

    Attributes:
        steps_per_epoch: Steps of an epoch.
        total: Steps of the run; 0 if unknown: then scheduled values stay constant.
    """

    steps_per_epoch: int = 1
    total: int = 0


class StepModule(nn.Module):
    """Abstract: a module that depends on the training step. `Method.before_step` calls its `before_step`.

    Attributes:
        frozen: Whether its parameters are not trained in this step (`Method.clear_frozen_gradients`).
    """

    frozen = False

    def before_step(self, step: int, training_length: TrainingLength) -> None:
        """Prepare for optimizer step `step` (from 0)."""
        raise NotImplementedError


HALF = (torch.float16, torch.bfloat16)


class StateBuffers(nn.Module):
    """Buffers with the state of an objective; they are saved with the weights.

    They are the same on every process, because each process updates them with the embeddings of the whole batch.

    Args:
        state: the description of the state.
        objective: the objective; the update uses the hyperparameters that it shares with the objective.
        sizes: size of each axis named in `state.tensors`.

    >>> from fullrank.objectives import find_state, moco
    >>> buffers = StateBuffers(find_state(moco), moco, size=6, D=2)
    >>> buffers.update({"K": torch.ones(2, 2, 2)})
    >>> buffers.tensors()["queue"][:4]
    tensor([[0.7071, 0.7071],
            [0.7071, 0.7071],
            [0.7071, 0.7071],
            [0.7071, 0.7071]])
    """

    def __init__(self, state: ObjectiveState, objective: Callable[..., Terms], **sizes: int) -> None:
        super().__init__()
        self._next = partial(state.next, objective=objective)
        for name, tensor in state.initial(**sizes).items():
            self.register_buffer(name, tensor.float() if tensor.dtype in HALF else tensor)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> "StateBuffers":
        """Move or convert the buffers, but not to half precision, in which an average would hardly change."""
        before = self.tensors()
        super()._apply(fn, recurse)
        for name, tensor in self.tensors().items():
            if tensor.dtype in HALF:
                setattr(self, name, before[name].to(tensor.device))
        return self

    def tensors(self) -> dict[str, Tensor]:
        """Return the buffers by name."""
        return dict(self.named_buffers())

    @torch.no_grad()
    def update(self, embeddings: dict[str, Tensor]) -> None:
        """Update the buffers with the embeddings of the whole batch."""
        buffers = self.tensors()
        for name, value in self._next({key: at_least_float32(Z) for key, Z in embeddings.items()} | buffers).items():
            buffers[name].copy_(value)


class Method(nn.Module):
    """Abstract: the networks and the state around an objective. A subclass implements `forward`.

    `forward` returns "R", the representations (V_0, n, D_b) of the full-size views; "Z", the embeddings (V, n,
    D) of all views as the objective gets them; and every other per-sample tensor that the objective takes.
    `state_tensors`, `optional_tensors`, `before_step` and `after_step` are hooks with a default.

    Attributes:
        training_length: Set by the training loop before the first step.
        seed: The recipe's seed.
        current_step: The number of optimizer steps taken; set by the training loop before each step.
        schedules: Name of a hyperparameter of the objective → its value as a function of the epoch; set by the builder
            of the method.

    Args:
        backbone: images (n, C, S, S) to representations (n, D_b).
        projector: representations (n, D_b) to embeddings (n, D).
        objective: the objective, a function of tensors of the whole batch and of the state.
        head: embeddings (n, D) to the input of the objective if that is not Z: a predictor, prototypes.
        state: the buffers of the objective's state.
    """

    training_length: TrainingLength = TrainingLength()
    seed: int = 0
    current_step: int = 0
    schedules: Mapping[str, Callable[[float], float]] = {}

    def __init__(
        self,
        backbone: nn.Module,
        projector: nn.Module,
        objective: Callable[..., Terms],
        *,
        head: nn.Module | None = None,
        state: StateBuffers | None = None,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.projector = projector
        self.objective = objective
        self.head = head or nn.Identity()
        self.state = state

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the embeddings that the objective takes: its tensors without the state and the labels."""
        return tuple(name for name in tensor_names(self.objective) if name not in {"labels", *self.state_tensors()})

    def forward(self, views: list[Float[Tensor, "_ n C _ _"]]) -> dict[str, Tensor]:
        """Embed this process's part of the batch: `views` is a list of (V_k, n, C, S_k, S_k), one entry for each size,
        full size first.
        """
        raise NotImplementedError

    def state_tensors(self) -> dict[str, Tensor]:
        """Return the state of the objective, the same on every process. A hook; the default returns the buffers."""
        return self.state.tensors() if self.state else {}

    def optional_tensors(self, samples: int) -> tuple[Tensor, ...]:
        """Return the optional tensors of the objective for a batch of `samples`. A hook; the default returns none."""
        return ()

    @property
    def epoch(self) -> float:
        """The epochs trained before the current step."""
        return self.current_step / self.training_length.steps_per_epoch

    def terms(self, embeddings: dict[str, Tensor]) -> Terms:
        """Return the terms of the objective on the embeddings of the whole batch, and on its "labels" (N,) if the
        objective takes them, in float32 or float64 under any autocast.
        """
        with torch.autocast(next(iter(embeddings.values())).device.type, enabled=False):
            inputs = {name: at_least_float32(embeddings[name]) for name in self.input_names}
            labels = {"labels": embeddings["labels"]} if "labels" in tensor_names(self.objective) else {}
            tensors = inputs | self.state_tensors() | labels
            optional = self.optional_tensors(samples=(Z := next(iter(inputs.values()))).shape[sample_axis(Z)])
            numbers: dict[str, Any] = {name: value(self.epoch) for name, value in self.schedules.items()}
            if takes(self.objective, GENERATOR):
                numbers[GENERATOR] = self.generator()
            if takes(self.objective, EPOCH):
                numbers[EPOCH] = self.epoch
            return self.objective(*(tensors[name] for name in tensor_names(self.objective)), *optional, **numbers)

    def generator(self) -> torch.Generator:
        """Return the random numbers of this step: a CPU generator, seeded by (seed, step), so that all processes draw
        the same numbers.

        >>> method = Method(nn.Identity(), nn.Identity(), dict)
        >>> torch.equal(torch.rand(3, generator=method.generator()), torch.rand(3, generator=method.generator()))
        True
        """
        return torch.Generator().manual_seed(mix(self.seed, self.current_step, OBJECTIVE_STREAM))

    def before_step(self, step: int) -> None:
        """Prepare for optimizer step `step` (from 0). A hook; the default prepares each `StepModule`, also those of a
        teacher.
        """
        for module in self.modules():
            if isinstance(module, StepModule):
                module.before_step(step, self.training_length)

    def clear_frozen_gradients(self) -> None:
        """Keep the optimizer from the parameters of each frozen `StepModule`, after the backward pass: with gradients
        of zero, Adam would move them by their weight decay.
        """
        for module in self.modules():
            if isinstance(module, StepModule) and module.frozen:
                module.zero_grad()

    def after_step(self, step: int, embeddings: dict[str, Tensor]) -> None:
        """Update everything that is not trained by gradient. A hook; the default updates the state.

        Args:
            step: number of the optimizer step (from 0).
            embeddings: the inputs of the objective, and "R" and "Z", for the whole batch, without gradient.
        """
        if self.state:
            self.state.update({name: embeddings[name] for name in self.input_names})


def at_least_float32(Z: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Return half precision as float32, and float32 and float64 unchanged.

    >>> [at_least_float32(torch.ones(2, dtype=dtype)).dtype for dtype in (torch.bfloat16, torch.float64)]
    [torch.float32, torch.float64]
    """
    return Z.float() if Z.dtype in HALF else Z
