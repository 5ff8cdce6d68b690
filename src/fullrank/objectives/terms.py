"""The return type of an objective: weighted terms by name, with the loss as their sum."""

import pickle
import re

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

Terms = dict[str, Float[Tensor, ""]]

# Names of terms that can be columns of a table and scalars of TensorBoard.
TERM_NAME = r"\w(?:[\w -]*\w)?"
RETURN_FORM = 'return {"name": weighted scalar, …}; the loss is their sum'

TAKE_A_GENERATOR = "take them from a keyword argument `generator: torch.Generator`, a function of (seed, step)"


def total(terms: Terms) -> Float[Tensor, ""]:
    """Return the loss, the sum of the terms.

    >>> total({"variance": torch.tensor(1.0), "invariance": torch.tensor(2.0)})
    tensor(3.)
    """
    return torch.stack(list(terms.values())).sum()


def form_error(returned: object) -> str:
    """Return the error in the form of an objective's return value; empty if the form is correct.

    >>> form_error({"variance": torch.tensor(1.0)}), form_error({"variance": 1.0}), form_error(torch.ones(2))
    ('', "'variance' is a float", 'a bare tensor (2,)')
    """
    if isinstance(returned, Tensor):
        return f"a bare tensor {tuple(returned.shape)}"
    if not isinstance(returned, dict):
        return f"a {type(returned).__name__}"
    for name, value in returned.items():
        if not (isinstance(name, str) and re.fullmatch(TERM_NAME, name)):
            return f"a term with the name {name!r}; letters, digits, spaces, - and _ are possible"
        if not isinstance(value, Tensor):
            return f"'{name}' is a {type(value).__name__}"
        if value.shape:
            return f"'{name}' has the shape {tuple(value.shape)}"
        if not value.is_floating_point():
            return f"'{name}' has the type {str(value.dtype).removeprefix('torch.')}"
    return "" if returned else "no term"


class GlobalRandomState:
    """The state of the global random generators of torch and NumPy, to find functions that draw from them.

    >>> state = GlobalRandomState()
    >>> state.changed()
    []
    """

    def __init__(self) -> None:
        self.before = self._read()

    @staticmethod
    def _read() -> dict[str, bytes]:
        return {
            "torch": torch.get_rng_state().numpy().tobytes(),
            "NumPy": pickle.dumps(np.random.get_state()),  # noqa: NPY002 (the global generator is meant)
        }

    def changed(self) -> list[str]:
        """Return the names of the generators from which something has been drawn."""
        return [name for name, state in self._read().items() if state != self.before[name]]
