"""Projectors: what stands between the representation, which is kept, and the embedding, which the objective sees."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from torch import nn


@dataclass(frozen=True, kw_only=True)
class Projector:
    """A multi-layer perceptron: Linear, BatchNorm, ReLU for each hidden layer, then Linear."""

    widths: tuple[int, ...] = (2048, 2048, 1024)
    """Widths of the layers; the last is the dimension D of the embeddings. Empty: no projector."""
    batchnorm: bool = True
    """BatchNorm in the hidden layers."""


def build_projector(spec: Projector, features: int) -> nn.Sequential:
    """Build the projector: representations (n, `features`) to embeddings (n, D), D the last of `spec.widths`.

    >>> [type(layer).__name__ for layer in build_projector(Projector(widths=(64, 16)), features=32)]
    ['Linear', 'BatchNorm1d', 'ReLU', 'Linear']
    """
    return nn.Sequential(*_layers(spec, (features, *spec.widths)))


def _layers(spec: Projector, widths: tuple[int, ...]) -> Iterator[nn.Module]:
    for layer, (inputs, outputs) in enumerate(pairwise(widths), start=1):
        last = layer == len(widths) - 1
        hidden_norm = spec.batchnorm and not last
        yield nn.Linear(inputs, outputs, bias=not hidden_norm)  # BatchNorm has a shift of its own
        if hidden_norm:
            yield nn.BatchNorm1d(outputs)
        if not last:
            yield nn.ReLU(inplace=True)
