"""What an objective returns: its weighted terms by name, whose sum is the loss to minimise."""

import torch
from jaxtyping import Float
from torch import Tensor

Terms = dict[str, Float[Tensor, ""]]


def total(terms: Terms) -> Float[Tensor, ""]:
    """The loss to minimise, the sum of the terms.

    >>> total({"variance": torch.tensor(1.0), "invariance": torch.tensor(2.0)})
    tensor(3.)
    """
    return torch.stack(list(terms.values())).sum()
