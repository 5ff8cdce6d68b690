"""The contenders of `losses.py`: each objective in the library, as a plain formula (`formulas.py`), and in lightly if
it is installed."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks import formulas
from fullrank.objectives import OBJECTIVES, total
from fullrank.objectives.signature import hyperparameters
from fullrank.testing.case import ObjectiveCase

try:
    from benchmarks.lightly_losses import counterpart
except ModuleNotFoundError:
    counterpart = None

CONTENDERS = ("fullrank", "formula", "lightly", "own formula")  # the last: of an objective with a faster form
IN_LIGHTLY = (  # names in the order of the table
    *("frossl", "barlow_twins", "vicreg", "simclr", "moco", "swav"),
    *("simsiam", "byol", "dino", "wmse", "tico", "directclr"),
)
LARGEST_D = {"wmse": 64, "corinfomax": 64}  # they decompose a covariance, and have few dimensions in a run too
QUEUE = 4096
Loss = Callable[..., Tensor]


def inputs(name: str, N: int, D: int, *, device: str = "cpu", dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Return random tensors for an objective by name; embeddings require a gradient. The state is that before the first
    batch."""
    case = ObjectiveCase(name=name, objective=OBJECTIVES[name], views=2)
    torch.manual_seed(0)
    with torch.device(device):
        X, T = torch.randn(2, 2, N, D, dtype=dtype)
        state = case.state.initial(V=2, D=D, K=D, size=QUEUE) if case.state else {}
    tensors = case.tensors(X, T, {key: t.to(dtype) for key, t in state.items()})
    return {key: t.detach().requires_grad_(key in case.embedding_names) for key, t in tensors.items()}


def losses(name: str, tensors: dict[str, Tensor]) -> dict[str, Loss]:
    """Return the contenders: functions of the tensors that return a scalar, with the same hyperparameters."""
    hyper = hyperparameters(OBJECTIVES[name])
    if "d0" in hyper:
        hyper["d0"] = min(hyper["d0"], next(iter(tensors.values())).shape[-1])
    theirs = counterpart(name, tensors, hyper) if counterpart else None
    own: Any = getattr(OBJECTIVES[name], "formula", None)
    found: dict[str, Loss | None] = {
        "fullrank": lambda **t: total(OBJECTIVES[name](**t, **hyper)),
        "formula": lambda **t: getattr(formulas, name)(**t, **hyper),
        "lightly": theirs,
        "own formula": own and (lambda **t: total(own(**t, **hyper))),
    }
    return {who: loss for who, loss in found.items() if loss}


def gradients(loss: Loss, tensors: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """Run forward and backward."""
    return torch.autograd.grad(loss(**tensors), [t for t in tensors.values() if t.requires_grad])


def products(Z: Tensor) -> None:
    """Compute the smaller of ZᵀZ and ZZᵀ, and its product with Z, for each view."""
    for z in Z:
        _ = z @ (z.T @ z) if z.shape[0] >= z.shape[1] else (z @ z.T) @ z


def agreement(name: str, *, N: int = 24, D: int = 8) -> dict[str, Any]:
    """Require that the formula has our value and gradients in float64; return the cosine of lightly's gradient with
    ours, which is 1 if lightly's loss is ours up to a factor and a constant.

    Raises:
        AssertionError: the formula has another value or gradient.
    """
    tensors = inputs(name, N, D, dtype=torch.float64)
    found = {}
    for who, loss in losses(name, tensors).items():
        torch.manual_seed(0)  # for the directions of LeJEPA
        value = loss(**tensors).detach()
        torch.manual_seed(0)
        found[who] = value, gradients(loss, tensors)
    torch.testing.assert_close(
        found["formula"], found["fullrank"], rtol=1e-6, atol=1e-9, msg=lambda text: f"{name}: formula differs. {text}"
    )
    if "lightly" not in found:
        return {"cosine with lightly": None}
    ours, theirs = (torch.cat([g.flatten() for g in found[who][1]]) for who in ("fullrank", "lightly"))
    return {"cosine with lightly": round(torch.cosine_similarity(ours, theirs, dim=0).item(), 4)}
