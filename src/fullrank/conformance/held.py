"""Finite differences of a function that stops gradients: what it computes without gradient is held fixed."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class Held(TorchFunctionMode):
    """Remembers each tensor that is detached, or computed under `no_grad`, the first time, and gives it back at every later time.

    A stopped gradient is not the derivative of anything, but it is that of the function in which the stopped tensors are constants.

    >>> held, x = Held(), torch.tensor(3.0)
    >>> with held:
    ...     _ = x * x.detach()
    >>> with held.again():
    ...     print(2 * x * (2 * x).detach())
    tensor(18.)
    """

    def __init__(self) -> None:
        super().__init__()
        self.tape: list[Tensor] = []
        self.position: int | None = None

    def again(self) -> "Held":
        """Begin another time, at which the tape is played."""
        self.position = 0
        return self

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None):
        """Call `func`, and record what it returns, or replace it, where no gradient flows through it."""
        out = func(*args, **(kwargs or {}))
        stopped = func is Tensor.detach or not torch.is_grad_enabled()
        if not stopped or not isinstance(out, Tensor):
            return out
        if self.position is None:
            self.tape.append(out.clone())
            return out
        self.position += 1
        recorded = self.tape[self.position - 1].clone()
        return out.copy_(recorded) if args and out is args[0] else recorded  # what was changed in place stays itself
