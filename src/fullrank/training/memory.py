"""Errors about memory: micro-batches that would change BatchNorm, and the remedy for an out-of-memory error."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import OutOfMemoryError, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fullrank.distributed import world_size
from fullrank.errors import UserError
from fullrank.training.micro_batches import count_micro_batches

# Messages of allocators that raise a plain RuntimeError.
ALLOCATOR_MESSAGES = ("DefaultCPUAllocator: ", "CUBLAS_STATUS_ALLOC_FAILED", "MPS backend out of memory")


def check_micro_batch(method: nn.Module, share: int, micro_batch: int, *, ghost: bool) -> None:
    """Check that micro-batches leave the gradient that of the whole batch, or that ghost batch normalisation (Hoffer et
    al. 2017) is chosen, if each process embeds `share` images per step.

    Raises:
        UserError: BatchNorm would normalise each micro-batch by itself, and `ghost` is false; or a micro-batch would be
            a single image, which BatchNorm cannot normalise.

    >>> check_micro_batch(nn.BatchNorm1d(3), share=256, micro_batch=99, ghost=True)
    >>> check_micro_batch(nn.LayerNorm(3), share=256, micro_batch=99, ghost=False)
    """
    pieces = count_micro_batches(share, micro_batch)
    if pieces == 1 or not has_batchnorm(method):
        return
    if share // pieces * world_size() < 2:
        raise UserError(f"machine.micro_batch is {micro_batch}, but BatchNorm needs at least 2 images; change it")
    if not ghost:
        others = [child for name, child in method.named_children() if name not in ("projector", "teacher")]
        only_projector = hasattr(method, "projector") and not any(map(has_batchnorm, others))
        layers = "--projector.no-batchnorm --projector.no-output-batchnorm --projector.output-iternorm 0"
        exact = layers if only_projector else "a network without BatchNorm"
        raise UserError(
            f"machine.micro_batch {micro_batch} divides the batch into {pieces}, and BatchNorm would normalise each by "
            f"itself, which changes the gradient; accept it with --machine.ghost-batchnorm, or use {exact}"
        )


@contextmanager
def explain_out_of_memory(method: nn.Module, share: int, micro_batch: int) -> Iterator[None]:
    """Turn an out-of-memory error inside the context into a `UserError` with a micro-batch size to try.

    Args:
        method: the method that is trained.
        share: number of images per step that one process embeds.
        micro_batch: maximum number of images in one forward pass; 0: all.
    """
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        piece = -(-share // count_micro_batches(share, micro_batch))
        remedy = out_of_memory_remedy(piece, batchnorm=has_batchnorm(method))
        raise UserError(f"out of memory with {piece} images in one forward pass; {remedy}") from error


def is_out_of_memory(error: RuntimeError) -> bool:
    """Return whether an allocator of any device raised `error`.

    >>> is_out_of_memory(OutOfMemoryError("CUDA out of memory. …")), is_out_of_memory(RuntimeError("other"))
    (True, False)
    """
    return isinstance(error, OutOfMemoryError) or any(message in str(error) for message in ALLOCATOR_MESSAGES)


def out_of_memory_remedy(piece: int, *, batchnorm: bool) -> str:
    """Return the remedy if `piece` images in one forward pass do not fit into memory.

    >>> out_of_memory_remedy(256, batchnorm=False)
    'give --machine.micro-batch 128, which changes neither loss nor gradient, or a smaller --batch-size'
    """
    half = piece // 2
    if half < 1 + batchnorm:
        return "give a smaller --batch-size, smaller views or a smaller backbone"
    effect = "only the statistics of BatchNorm" if batchnorm else "neither loss nor gradient"
    ghost = " --machine.ghost-batchnorm" if batchnorm else ""
    return f"give --machine.micro-batch {half}{ghost}, which changes {effect}, or a smaller --batch-size"


def has_batchnorm(method: nn.Module) -> bool:
    """Return whether the method has a BatchNorm or an `IterNorm`, which also normalises by the batch.

    >>> has_batchnorm(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))), has_batchnorm(nn.LayerNorm(4))
    (True, False)
    """
    return any(isinstance(layer, _BatchNorm) or hasattr(layer, "running_root") for layer in method.modules())
