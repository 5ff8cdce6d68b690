"""The return type of an objective: weighted terms by name, with the loss as their sum."""

import torch
from jaxtyping import Float
from torch import Tensor

Terms = dict[str, Float[Tensor, ""]]


def total(terms: Terms) -> Float[Tensor, ""]:
    """Return the loss, the sum of the terms.

    >>> total({"variance": torch.tensor(1.0), "invariance": torch.tensor(2.0)})
    tensor(3.)
    """
    return torch.stack(list(terms.values())).sum()
