"""How often votes are right."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

MANY_CLASSES = 10  # top-5 says little where there are no more classes than this: one in two is right by chance


@dataclass(frozen=True)
class Score:
    """What a probe makes of the test images."""

    accuracy: float
    """Share of the labelled test images whose class is named, in [0, 1]."""
    top5: float | None
    """Share whose class is among the five with most votes; None at 10 classes or fewer."""
    predicted: Int64[Tensor, " n"]
    """The class named for each test image, labelled or not."""


def score(votes: Float[Tensor, "n K"], y: Int64[Tensor, " n"]) -> Score:
    """Compare votes for K classes with labels; rows labelled -1 are predicted, and not judged.

    >>> score(torch.eye(3), torch.tensor([0, 2, -1]))
    Score(accuracy=0.5, top5=None, predicted=tensor([0, 1, 2]))
    """
    judged = y >= 0
    assert judged.any(), "no test image has a label"
    best = votes.topk(min(5, votes.shape[1]), dim=1).indices
    hits = (best == y[:, None])[judged].cpu().double()  # on the CPU, as MPS has no float64
    top5 = hits.sum(1).mean().item() if votes.shape[1] > MANY_CLASSES else None
    return Score(hits[:, 0].mean().item(), top5, best[:, 0])


def labelled(X: Float[Tensor, "n D"], y: Int64[Tensor, " n"]) -> tuple[Float[Tensor, "m D"], Int64[Tensor, " m"]]:
    """Return the rows that have a label."""
    known = y >= 0
    return X[known], y[known]


def count_classes(*labels: Int64[Tensor, " _"]) -> int:
    """Return how many classes there are, when they are numbered from 0.

    >>> count_classes(torch.tensor([0, -1]), torch.tensor([4]))
    5
    """
    return int(torch.cat(labels).max()) + 1
