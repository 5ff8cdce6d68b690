"""What an objective returns: its weighted terms by name, whose sum is the loss to minimise."""

from jaxtyping import Float
from torch import Tensor

Terms = dict[str, Float[Tensor, ""]]
