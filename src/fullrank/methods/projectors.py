"""Projectors: the networks between the representation r, which is used downstream, and the embedding z, which the
objective takes.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

import torch
from torch import nn

from fullrank.errors import UserError
from fullrank.methods.config import ProjectorConfig
from fullrank.methods.directclr_projectors import (
    Diagonal,
    RandomDropout,
    SubVector,
    fixed_linear,
    orthogonal_linear,
    random_low_rank_matrix,
)


def build_projector(config: ProjectorConfig, features: int, *, seed: int = 0) -> nn.Sequential:
    """Build the projector: representations (n, `features`) to embeddings (n, D), with D =
    `config.dimensions(features)`.

    Fixed random matrices are drawn like weights, from torch's global generator, and are saved with them.

    Args:
        config: the configuration of the projector.
        features: dimension D_b of the representation.
        seed: seed of the dimensions that 'dropout' selects in each step.

    Raises:
        UserError: d0 is more than D_b, or less than 1.

    Source: Jing et al. 2022, Understanding Dimensional Collapse in Contrastive Self-supervised Learning, Table 2 and
    Appendix F.

    >>> [type(layer).__name__ for layer in build_projector(ProjectorConfig(widths=(64, 16)), features=32)]
    ['Linear', 'BatchNorm1d', 'ReLU', 'Linear']
    >>> build_projector(ProjectorConfig(kind="sub-vector", d0=2), features=4)(torch.arange(4.0)[None])
    tensor([[0., 1.]])
    """
    D_b, d0 = features, config.d0
    if config.kind in ("low-rank", "low-rank-diagonal", "sub-vector", "dropout") and not 1 <= d0 <= D_b:
        remedy = f"choose 1 to {D_b}, for example projector.d0 = {max(D_b // 4, 1)}"
        raise UserError(f"projector.d0 is {d0}, but representations have {D_b} dimensions; {remedy}")
    build: dict[str, Callable[[], Iterable[nn.Module]]] = {
        "mlp": lambda: _mlp_layers(config, (D_b, *config.widths)),
        "diagonal": lambda: [Diagonal(torch.ones(D_b), trained=True)],
        "orthogonal": lambda: [orthogonal_linear(D_b)],
        "low-rank": lambda: [fixed_linear(random_low_rank_matrix(d0, D_b))],
        "low-rank-diagonal": lambda: [Diagonal((torch.arange(D_b) < d0).to(torch.get_default_dtype()))],
        "sub-vector": lambda: [SubVector(d0)],
        "dropout": lambda: [RandomDropout(D_b, d0, seed=seed)],
        "groups": lambda: [],
    }
    return nn.Sequential(*build[config.kind]())


def _mlp_layers(config: ProjectorConfig, widths: tuple[int, ...]) -> Iterator[nn.Module]:
    for layer, (inputs, outputs) in enumerate(pairwise(widths), start=1):
        last = layer == len(widths) - 1
        norm = config.output_batchnorm if last else config.batchnorm
        yield nn.Linear(inputs, outputs, bias=config.bias and not norm)  # BatchNorm subtracts it
        if norm:
            yield nn.BatchNorm1d(outputs, affine=config.output_affine or not last)
        if not last:
            yield nn.GELU() if config.activation == "gelu" else nn.ReLU(inplace=True)
