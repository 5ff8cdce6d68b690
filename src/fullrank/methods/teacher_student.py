"""Teacher-student methods: the student is trained; the teacher, an EMA of the student, provides targets without
gradient.
"""

import math
from copy import deepcopy
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.optim.swa_utils import get_ema_multi_avg_fn

from fullrank.methods.method import Method
from fullrank.methods.projectors import IterNorm

# Layers that drop something at random → the attribute with their probability. Names, to import no timm.
DROPOUTS = {"DropPath": "drop_prob", "PatchDropout": "prob", "PatchDropoutWithIndices": "prob"}
DROPOUTS |= {"DropBlock2d": "drop_prob", "StochasticDepth": "p", "MultiheadAttention": "dropout"}


class EMA(nn.Module):
    """The exponential moving average of a sequence of modules: θ' ← τ θ' + (1 − τ) θ, for parameters and for
    BatchNorm's buffers.

    In train mode, the BatchNorm layers of the EMA network normalise with the statistics of the current batch. Their
    running statistics are the EMA of the student's running statistics; forward passes do not change them. The EMA
    network drops nothing (dropout, stochastic depth, patches), so that the targets are not noisy, as in the code of
    DINO and MoCo v3.

    >>> student = nn.Linear(2, 2)
    >>> teacher = EMA(student)
    >>> _ = nn.init.zeros_(student.bias), nn.init.ones_(student.weight)
    >>> teacher.update(student, momentum=0.0)
    >>> teacher(torch.ones(1, 2))
    tensor([[2., 2.]])
    """

    def __init__(self, *modules: nn.Module) -> None:
        super().__init__()
        self.network = nn.Sequential(*deepcopy(modules)).requires_grad_(False)
        for module in self.network.modules():
            if isinstance(module, _BatchNorm | IterNorm):
                module.momentum = 0.0
            if isinstance(module, _DropoutNd):
                module.p = 0.0
            for probability in (DROPOUTS[kind.__name__] for kind in type(module).__mro__ if kind.__name__ in DROPOUTS):
                setattr(module, probability, 0.0)

    @torch.no_grad()
    def forward(self, x: Any) -> Any:
        """Return the output of the averaged modules, without gradient."""
        return self.network(x)

    @torch.no_grad()
    def update(self, *modules: nn.Module, momentum: float) -> None:
        """Update the average with the current weights of the modules."""
        averages = [t for m in self.network for t in (*m.parameters(), *m.buffers())]
        values = [t for m in modules for t in (*m.parameters(), *m.buffers())]
        floats = []
        for average, value in zip(averages, values, strict=True):
            if average.is_floating_point():
                floats.append((average, value.detach().to(average.dtype)))
            else:
                average.copy_(value)  # BatchNorm's number of batches
        if floats:
            means, news = map(list, zip(*floats, strict=True))
            get_ema_multi_avg_fn(momentum)(means, news, 0)  # a few kernels on a GPU instead of one for each tensor


def cosine_momentum(step: int, total: int, start: float, end: float) -> float:
    """Return the momentum of step `step` of `total`, from `start` to `end` by half a cosine; `start` if `total` is 0.

    τ = end − (end − start) (cos(π step / total) + 1) / 2

    Source: Grill et al. 2020, Bootstrap Your Own Latent, with end = 1.

    >>> cosine_momentum(0, 10, 0.9, 1.0), round(cosine_momentum(5, 10, 0.9, 1.0), 4), cosine_momentum(10, 10, 0.9, 1.0)
    (0.9, 0.95, 1.0)
    """
    return end - (end - start) * (math.cos(math.pi * min(step / total, 1.0) if total else 0.0) + 1) / 2


class TeacherStudent(Method):
    """A method for objectives that take two kinds of embedding: the first tensor from the student, the second from the
    teacher.

    student  backbone → projector → head, for all views: (V, n, D) or (V, n, K)
    teacher  the EMA of backbone and projector (and head, if `teacher_head`), or the projector's output without
             gradient, for full-size views only: (V_0, n, …)

    Args:
        networks: backbone, projector and objective, as in `Method`; the objective is a function of the student's
            tensor, the teacher's tensor, and the state.
        momentum: (first, last) momentum of the EMA, with a half-cosine schedule over the run; None: the teacher is the
            student.
        teacher_head: whether the teacher has a head too.
        keywords: `head`, the student's predictor or prototypes, and `state`, as in `Method`.

    >>> from fullrank.methods.heads import build_predictor
    >>> from fullrank.objectives import byol
    >>> backbone, projector = nn.Sequential(nn.Flatten(), nn.Linear(12, 5)), nn.Linear(5, 4)
    >>> method = TeacherStudent(backbone, projector, byol, head=build_predictor(4, 8), momentum=(0.99, 1.0))
    >>> {name: tuple(tensor.shape) for name, tensor in method([torch.randn(2, 8, 3, 2, 2)]).items()}
    {'R': (2, 8, 5), 'Z': (2, 8, 4), 'P': (2, 8, 4), 'T': (2, 8, 4)}
    """

    def __init__(
        self, *networks: Any, momentum: tuple[float, float] | None = None, teacher_head: bool = False, **keywords: Any
    ) -> None:
        super().__init__(*networks, **keywords)
        self.student_name, self.teacher_name = self.input_names[:2]
        self.momentum = momentum
        self.teacher_head = teacher_head
        self.teacher = None if momentum is None else EMA(*self._averaged_modules())

    def _averaged_modules(self) -> tuple[nn.Module, ...]:
        return (self.backbone, self.projector, self.head) if self.teacher_head else (self.backbone, self.projector)

    def forward(self, views: list[Float[Tensor, "_ n C _ _"]]) -> dict[str, Float[Tensor, "_ n _"]]:
        """Embed views, a list of (V_k, n, C, S_k, S_k), full size first."""
        full = len(views[0])
        representations = [self.backbone(view) for group in views for view in group]
        Z = torch.stack([self.projector(r) for r in representations])
        T = torch.stack([self.teacher(view) for view in views[0]]) if self.teacher else Z[:full].detach()
        student = torch.stack([self.head(z) for z in Z])
        return {"R": torch.stack(representations[:full]), "Z": Z, self.student_name: student, self.teacher_name: T}

    def after_step(self, step: int, embeddings: dict[str, Tensor]) -> None:
        """Update the teacher, then the state."""
        if self.teacher is not None and self.momentum is not None:
            momentum = cosine_momentum(step, self.training_length.total, *self.momentum)
            self.teacher.update(*self._averaged_modules(), momentum=momentum)
        super().after_step(step, embeddings)
