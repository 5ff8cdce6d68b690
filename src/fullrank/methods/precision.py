"""The precision in which an objective is taken."""

import torch
from jaxtyping import Float
from torch import Tensor


def at_least_float32(Z: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Cast half precision up to float32; leave float32 and float64 alone.

    >>> at_least_float32(torch.ones(2, dtype=torch.bfloat16)).dtype, at_least_float32(torch.ones(2, dtype=torch.float64)).dtype
    (torch.float32, torch.float64)
    """
    return Z.float() if Z.dtype in (torch.float16, torch.bfloat16) else Z
