"""The precision of a run: what 'auto' stands for on this machine."""

import os
from dataclasses import replace

import torch
from torch import Tensor

from fullrank.distributed import all_gather_object
from fullrank.errors import UserError
from fullrank.methods import Method
from fullrank.models.features import restore_modes
from fullrank.recipes import Recipe
from fullrank.recipes.dry_running import on_cpu, recorded_convolutions
from fullrank.recipes.recipe import view_sizes

TEST_IMAGES = 4  # images of the test of bfloat16
# Minimum cosine of the gradient of a weight in bfloat16 and in float32; those of the recipes are above 0.98.
MIN_COSINE = 0.9
POISONED_BYTES = [4**k for k in range(4, 13)]  # sizes of freed memory that holds NaN, from 256 bytes to 16 MiB


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
        method: its method, on the CPU; its weights and statistics keep their values, and may get the layout of the
            training.
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
    """Return whether a backward pass in bfloat16 on this CPU gives the right gradients.

    No convolution may have a stride larger than its input: oneDNN leaves a part of its gradient uninitialised
    (docs/log.md). And for a few images the gradient of each weight must be finite, with the direction of that in
    float32. Before the backward pass, freed memory is filled with NaN, so that uninitialised gradients show. For
    networks that raise an exception the answer is no; the dry run explains it.
    """
    rng = torch.Generator().manual_seed(0)
    sizes, channels = view_sizes(recipe).items(), recipe.data.channels
    views = [torch.randn(V, TEST_IMAGES, channels, size, size, generator=rng) for size, V in sizes]
    if recipe.machine.channels_last:  # as in training; the default layout has other kernels
        method.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    try:
        with torch.random.fork_rng(devices=()), restore_modes(method), recorded_convolutions(method) as unsafe:
            method.eval()  # no statistic changes
            exact, rounded = (_gradients(method, views, bfloat16=bfloat16) for bfloat16 in (False, True))
            if unsafe or not all(gradient.isfinite().all() for gradient in rounded):
                return False
            # gradients are zero behind a weight that starts at zero
            return all(b @ a >= MIN_COSINE * a.norm() * b.norm() for a, b in zip(exact, rounded, strict=True))
    except Exception:  # networks of timm raise exceptions of many types
        return False


def _gradients(method: Method, views: list[Tensor], *, bfloat16: bool) -> list[Tensor]:
    """Return the gradient of a function of the embeddings for each parameter, as vectors."""
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        embeddings = [Z for Z in method.forward(views).values() if Z.requires_grad]
    rng = torch.Generator().manual_seed(1)
    loss = torch.stack([(Z.float() * torch.randn(Z.shape, generator=rng)).sum() for Z in embeddings]).sum()
    poison = [torch.full((size // 4,), torch.nan) for size in POISONED_BYTES]
    del poison
    parameters = [parameter for parameter in method.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    return [gradient.flatten().float() for gradient in gradients if gradient is not None]
