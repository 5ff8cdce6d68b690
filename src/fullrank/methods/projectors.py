"""Projectors: what stands between the representation r, which is kept, and the embedding z, which the objective sees."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.parametrizations import orthogonal

from fullrank.errors import UserError
from fullrank.methods.step_random import StepRandomModule, shuffled


@dataclass(frozen=True, kw_only=True)
class ProjectorConfig:
    """A map of representations r of D_b dimensions to embeddings z: a perceptron, or one of those that DirectCLR's paper compares."""

    kind: Literal["mlp", "diagonal", "orthogonal", "low-rank", "low-rank-diagonal", "sub-vector", "dropout", "groups"] = "mlp"
    """'mlp': Linear, BatchNorm, ReLU for each hidden layer, then Linear; one width makes a linear projector, none leaves it out.
    'diagonal': s r, element by element, s learnt. 'orthogonal': Q r, Q learnt. 'low-rank': U V'r, fixed at random, of rank d0.
    'low-rank-diagonal': r with its dimensions from d0 on set to zero. 'sub-vector': the first d0 dimensions of r.
    'dropout': r with all but d0 dimensions set to zero, random ones at each step.
    'groups': r; the objective is summed over groups of dimensions, random ones at each step."""
    widths: tuple[int, ...] = (2048, 2048, 1024)
    """Widths of the layers of an mlp; the last is the dimension D of the embeddings. Empty: no projector."""
    batchnorm: bool = True
    """BatchNorm in the hidden layers of an mlp."""
    output_batchnorm: bool = False
    """BatchNorm behind the last layer of an mlp too."""
    bias: bool = True
    """Biases in an mlp, where no BatchNorm follows that has a shift of its own."""
    d0: int = 360
    """Rank of 'low-rank' and 'low-rank-diagonal'; dimensions that 'sub-vector' and 'dropout' let through."""
    groups: int = 8
    """Number of groups of 'groups'."""

    @property
    def absent(self) -> bool:
        """Whether the embedding is the representation, and the objective sees it whole."""
        return self.kind == "mlp" and not self.widths

    def dimensions(self, features: int) -> int:
        """Return the dimension D of the embeddings of representations of `features` dimensions.

        >>> [ProjectorConfig(kind=kind, widths=(64, 16), d0=8).dimensions(32) for kind in ("mlp", "sub-vector", "dropout")]
        [16, 8, 32]
        """
        return {"mlp": (features, *self.widths)[-1], "sub-vector": self.d0}.get(self.kind, features)


def build_projector(spec: ProjectorConfig, features: int, *, seed: int = 0) -> nn.Sequential:
    """Build the projector: representations (n, `features`) to embeddings (n, D), D = `spec.dimensions(features)`.

    What is fixed at random is drawn like weights, from torch's global generator, and is saved with them.

    Args:
        spec: which projector.
        features: dimensions D_b of the representation.
        seed: of what is drawn anew at each step.

    Raises:
        UserError: d0 is more than D_b, or less than 1.

    Source: Jing et al. 2022, Understanding Dimensional Collapse in Contrastive Self-supervised Learning, Table 2 and Appendix F.

    >>> [type(layer).__name__ for layer in build_projector(ProjectorConfig(widths=(64, 16)), features=32)]
    ['Linear', 'BatchNorm1d', 'ReLU', 'Linear']
    >>> build_projector(ProjectorConfig(kind="sub-vector", d0=2), features=4)(torch.arange(4.0)[None])
    tensor([[0., 1.]])
    """
    return nn.Sequential(*_layers(spec, features, seed))


def _layers(spec: ProjectorConfig, D_b: int, seed: int) -> Iterator[nn.Module]:
    match spec.kind:
        case "mlp":
            yield from _perceptron(spec, (D_b, *spec.widths))
        case "diagonal":
            yield Diagonal(nn.Parameter(torch.ones(D_b)))
        case "orthogonal":
            yield rotation(D_b)
        case "low-rank":
            yield Fixed(low_rank(_within(spec.d0, D_b), D_b))
        case "low-rank-diagonal":
            yield Diagonal((torch.arange(D_b) < _within(spec.d0, D_b)).float())
        case "sub-vector":
            yield SubVector(_within(spec.d0, D_b))
        case "dropout":
            yield RandomDropout(D_b, _within(spec.d0, D_b), seed=seed)


def _within(d0: int, D_b: int) -> int:
    """Return d0 where a representation has as many dimensions."""
    if not 1 <= d0 <= D_b:
        remedy = f"choose 1 to {D_b} of them, for instance --projector.d0 {max(D_b // 4, 1)}"
        raise UserError(f"projector.d0 is {d0}, but representations have {D_b} dimensions; {remedy}")
    return d0


def _perceptron(spec: ProjectorConfig, widths: tuple[int, ...]) -> Iterator[nn.Module]:
    for layer, (inputs, outputs) in enumerate(pairwise(widths), start=1):
        last = layer == len(widths) - 1
        norm = spec.output_batchnorm if last else spec.batchnorm
        yield nn.Linear(inputs, outputs, bias=spec.bias and not norm)  # BatchNorm has a shift of its own
        if norm:
            yield nn.BatchNorm1d(outputs)
        if not last:
            yield nn.ReLU(inplace=True)


class Diagonal(nn.Module):
    """z = s r, element by element; s learns where it is a parameter, and is fixed where it is a tensor.

    >>> Diagonal(torch.tensor([1.0, 0.0]))(torch.tensor([[3.0, 4.0]]))
    tensor([[3., 0.]])
    """

    weight: Tensor

    def __init__(self, s: Tensor) -> None:
        super().__init__()
        if isinstance(s, nn.Parameter):
            self.weight = s
        else:
            self.register_buffer("weight", s)

    def forward(self, R: Float[Tensor, "n D_b"]) -> Float[Tensor, "n D_b"]:
        """Scale each dimension."""
        return R * self.weight


class Fixed(nn.Module):
    """z = W r with a matrix W that does not learn.

    >>> Fixed(torch.tensor([[0.0, 1.0]]))(torch.tensor([[3.0, 4.0]]))
    tensor([[4.]])
    """

    weight: Tensor

    def __init__(self, W: Float[Tensor, "D D_b"]) -> None:
        super().__init__()
        self.register_buffer("weight", W)

    def forward(self, R: Float[Tensor, "n D_b"]) -> Float[Tensor, "n D"]:
        """Multiply."""
        return nn.functional.linear(R, self.weight)


def low_rank(d0: int, D_b: int) -> Float[Tensor, "D_b D_b"]:
    """Draw W = U S V' with d0 singular values of 1 and the others 0, U and V uniform among the orthogonal matrices.

    >>> torch.linalg.svdvals(low_rank(2, 4)).round(decimals=4).abs()
    tensor([1., 1., 0., 0.])
    """
    U, V = (nn.init.orthogonal_(torch.empty(D_b, d0)) for _ in range(2))  # the d0 columns that S leaves
    return U @ V.mT


def rotation(D_b: int) -> nn.Linear:
    """Make z = Q r with Q = Q_0 exp(A − A'), Q_0 uniform among the orthogonal matrices, and A, lower triangular, learnt.

    Source: Casado and Martínez-Rubio 2019, Cheap Orthogonal Constraints in Neural Networks, as the paper has it.

    >>> Q = rotation(4).weight
    >>> torch.testing.assert_close(Q @ Q.mT, torch.eye(4))
    """
    linear = nn.Linear(D_b, D_b, bias=False)
    nn.init.orthogonal_(linear.weight)  # which the parametrization takes as Q_0
    orthogonal(linear, orthogonal_map="matrix_exp")
    return linear


class SubVector(nn.Module):
    """z = r[:d0]: the other dimensions get no gradient.

    >>> SubVector(2)(torch.tensor([[3.0, 4.0, 5.0]]))
    tensor([[3., 4.]])
    """

    def __init__(self, d0: int) -> None:
        super().__init__()
        self.d0 = d0

    def forward(self, R: Float[Tensor, "n D_b"]) -> Float[Tensor, "n d0"]:
        """Cut off."""
        return R[:, : self.d0]


class RandomDropout(StepRandomModule):
    """z = r with all but d0 dimensions set to zero, others at each step, and all of r in eval mode.

    The set is one for all samples, views and processes. The dimensions keep their places, so that what looks at one for longer than a
    step (a predictor, a queue, a running covariance) still knows it; an objective of unit rows cannot tell zeros from absence.

    Args:
        D_b: dimensions of the representation.
        d0: dimensions that are let through.
        seed: the set is a function of (seed, step); before the first step it is that of step 0.

    >>> dropout = RandomDropout(4, 2, seed=0)
    >>> dropout(torch.ones(3, 4)).sum(1), dropout.eval()(torch.ones(3, 4)).sum(1)
    (tensor([2., 2., 2.]), tensor([4., 4., 4.]))
    """

    dropped: Tensor

    def __init__(self, D_b: int, d0: int, *, seed: int) -> None:
        super().__init__()
        self.d0, self.seed = d0, seed
        self.register_buffer("dropped", torch.empty(D_b, dtype=torch.bool), persistent=False)  # (seed, step) tell it
        self.before_step(0)

    def before_step(self, step: int) -> None:
        """Draw the d0 dimensions."""
        self.dropped.copy_(shuffled(self.seed, step, len(self.dropped)) >= self.d0)

    def forward(self, R: Float[Tensor, "n D_b"]) -> Float[Tensor, "n D_b"]:
        """Set to zero what is dropped."""
        return R.masked_fill(self.dropped, 0) if self.training else R
