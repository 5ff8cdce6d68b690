"""The precision of a run: what 'auto' stands for on this machine."""

import os
from contextlib import suppress
from dataclasses import replace

import torch

from fullrank.distributed import all_gather_object
from fullrank.errors import UserError
from fullrank.methods import Method
from fullrank.recipes import Recipe, dry_run
from fullrank.recipes.dry_running import on_cpu


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
    return "bf16-mixed" if on_cuda(recipe) and torch.cuda.is_bf16_supported(including_emulation=False) else "32-true"


def choose_precision(recipe: Recipe, method: Method) -> Recipe:
    """Return the recipe of a new run with its precision instead of 'auto', so that the run keeps it, also on another
    machine.

    On a CPU, 'auto' is bf16-mixed if the processor multiplies bfloat16 in tiles (AMX), all processes run on this
    machine, the method is the library's, and a dry run in bfloat16 succeeds; else 32-true. Without tiles, bfloat16 is
    not faster than float32.

    Args:
        recipe: the recipe.
        method: its method, on the CPU.
    """
    machine, precision = recipe.machine, resolve_precision(recipe)
    one_machine = os.environ.get("LOCAL_WORLD_SIZE", "1") == os.environ.get("WORLD_SIZE", "1")
    fast = on_cpu(recipe) and has_bfloat16_tiles()
    if machine.precision == "auto" and fast and one_machine and not recipe.method_builder:
        with suppress(UserError):  # the dry run before training explains networks that fail in float32 too
            dry_run(method, replace(recipe, machine=replace(machine, precision="bf16-mixed")), losses=False)
            precision = "bf16-mixed"
        method.train()
    return replace(recipe, machine=replace(machine, precision=precision))


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
