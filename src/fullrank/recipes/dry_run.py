"""One step's loss without images, so that what an objective cannot take, or a user's own does wrong, is known before they are read."""

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from fullrank.conformance.check_result import exception_line
from fullrank.conformance.terms import RETURN_FORM, form_error
from fullrank.errors import UserError
from fullrank.methods import Method
from fullrank.objectives import total
from fullrank.objectives.signature import tensor_names
from fullrank.recipes.assemble import view_sizes
from fullrank.recipes.recipe import Recipe


def dry_run(method: Method, recipe: Recipe) -> None:
    """Take the objective on tensors of the recipe's shapes: one of the library's without content, a user's own on random numbers.

    Raises:
        UserError: what the objective says of the shapes, what a user's own raises, or what it returns that is no loss.
    """
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        method.eval()  # so that BatchNorm counts nothing
        images = [torch.empty(V, recipe.batch, recipe.data.channels, size, size) for size, V in view_sizes(recipe).items()]
        embeddings = method(images)
        if ":" not in recipe.objective:
            method.terms(embeddings)
        method.train()
    if ":" in recipe.objective:
        _examine(method, {name: tuple(embeddings[name].shape) for name in method.input_names}, recipe.objective)


def _examine(method: Method, shapes: dict[str, tuple[int, ...]], name: str) -> None:
    """Look at what a user's own objective gives on random numbers; values are there, so that `.item()` and `.numpy()` may be used."""
    rng = torch.Generator().manual_seed(0)
    tensors: dict[str, Tensor] = {key: torch.randn(shape, generator=rng).requires_grad_() for key, shape in shapes.items()}
    try:
        with torch.random.fork_rng(devices=()):
            known = tensors | method.state_tensors()
            terms = method.objective(*(known[key] for key in tensor_names(method.objective)))
    except UserError:
        raise
    except Exception as error:
        given = ", ".join(f"{key} {shape}" for key, shape in shapes.items())
        raise UserError(f"objective '{name}' fails on {given}: {exception_line(error)}; see fullrank check {name}") from error
    if form := form_error(terms):
        raise UserError(f"objective '{name}' returns {form}, expected named scalars; {RETURN_FORM}")
    if not total(terms).requires_grad:
        raise UserError(f"objective '{name}' returns a loss without gradient; leave out detach, no_grad, item and numpy on the way to it")
