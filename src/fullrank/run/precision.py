"""The precision of a run: what 'auto' stands for on this machine."""

import os
from contextlib import suppress
from dataclasses import replace

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fullrank.distributed import all_gather_object
from fullrank.errors import UserError
from fullrank.methods import Method
from fullrank.models.features import restore_modes
from fullrank.recipes import Recipe
from fullrank.recipes.dry_running import on_cpu, recorded_convolutions
from fullrank.recipes.recipe import view_sizes


def on_cuda(recipe: Recipe) -> bool:
    """Return whether the recipe trains on the GPUs of this machine."""
    return recipe.machine.accelerator in ("auto", "cuda", "gpu") and torch.cuda.is_available()


def resolve_precision(recipe: Recipe) -> str:
    """Return the precision of a recipe; 'auto' is bf16-mixed on a GPU that supports it, else 32-true.

    The recipe of a run has the choice of `choose_precision` instead of 'auto'.

    >>> resolve_precision(Recipe(machine=replace(Recipe().machine, accelerator="cpu")))
    '32-true'
    """
    if recipe.machine.precision != "auto":
        return recipe.machine.precision
    return "bf16-mixed" if on_cuda(recipe) and torch.cuda.is_bf16_supported() else "32-true"


def choose_precision(recipe: Recipe, method: Method) -> Recipe:
    """Return the recipe of a new run with its precision instead of 'auto', so that the run keeps it, also on another
    machine.

    On a CPU, 'auto' is bf16-mixed if the processor multiplies bfloat16 in tiles (AMX), all processes run on this
    machine, the method is the library's, and `bfloat16_is_safe` for its networks; else 32-true. Without tiles, bfloat16
    is not faster than float32.

    Args:
        recipe: the recipe.
        method: its method, on the CPU.
    """
    precision = resolve_precision(recipe)
    if recipe.machine.precision == "auto" and on_cpu(recipe) and has_bfloat16_tiles() and not recipe.method_builder:
        one_machine = os.environ.get("LOCAL_WORLD_SIZE", "1") == os.environ.get("WORLD_SIZE", "1")
        precision = "bf16-mixed" if one_machine and bfloat16_is_safe(method, recipe) else precision
    return replace(recipe, machine=replace(recipe.machine, precision=precision))


def require_one_precision(recipe: Recipe) -> None:
    """Check that all processes chose the same precision: each tests bfloat16 for itself, before the processes are
    connected.

    Raises:
        UserError: they did not; all processes raise it.
    """
    if len(found := set(all_gather_object(recipe.machine.precision))) > 1:
        chosen = f"the processes chose the precisions {' and '.join(sorted(found))}, expected one"
        raise UserError(f"{chosen}; give --machine.precision 32-true")


def has_bfloat16_tiles() -> bool:
    """Return whether the processor has AMX with bfloat16, and torch's library for convolutions, oneDNN, may use it."""
    isa = os.environ.get("ONEDNN_MAX_CPU_ISA", "ALL").upper()  # oneDNN's own variable
    allowed = isa in ("ALL", "DEFAULT") or "AMX" in isa
    return allowed and torch.backends.mkldnn.is_available() and bool(torch.cpu.get_capabilities().get("amx_bf16"))


def bfloat16_is_safe(method: Method, recipe: Recipe) -> bool:
    """Return whether no convolution has a stride larger than its input: in bfloat16 on a CPU, oneDNN leaves a part of
    its gradient uninitialised (docs/log.md). For networks that raise an exception the answer is no; the dry run
    explains it.
    """
    sizes, channels = view_sizes(recipe).items(), recipe.data.channels
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad(), restore_modes(method):
        method.eval()  # no statistic changes
        with recorded_convolutions(method) as unsafe, suppress(Exception):  # networks of timm raise many types
            method.forward([torch.empty(V, 2, channels, size, size) for size, V in sizes])
            return not unsafe
    return False
