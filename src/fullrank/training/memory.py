"""What a run says of memory: what differs when a batch is embedded in pieces, and which size to try when memory is short."""

from collections.abc import Iterator

from torch import OutOfMemoryError, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fullrank.distributed import world_size
from fullrank.errors import UserError
from fullrank.training import Step
from fullrank.training.micro_batches import count_micro_batches

# What the errors of other allocators say, which have no type of their own.
SHORT = ("DefaultCPUAllocator: ", "CUBLAS_STATUS_ALLOC_FAILED", "MPS backend out of memory")


def micro_batch_note(method: nn.Module, share: int, micro_batch: int) -> str | None:
    """Return what differs from an undivided batch when each process embeds its `share` of it in pieces; None: nothing.

    Raises:
        UserError: a piece would be a single image, which BatchNorm cannot normalise.

    >>> micro_batch_note(nn.BatchNorm1d(3), share=256, micro_batch=100)
    '--machine.micro_batch 100: BatchNorm normalises each of 3 pieces of a batch by itself and moves its statistics 3 times a step'
    """
    pieces = count_micro_batches(share, micro_batch)
    if pieces == 1 or not has_batchnorm(method):
        return None
    if share // pieces * world_size() < 2:
        raise UserError(f"machine.micro_batch is {micro_batch}, but BatchNorm takes 2 images or more; change --machine.micro_batch")
    return (
        f"--machine.micro_batch {micro_batch}: BatchNorm normalises each of {pieces} pieces of a batch by itself "
        f"and moves its statistics {pieces} times a step"
    )


def within_memory(steps: Iterator[Step], method: nn.Module, share: int, micro_batch: int) -> Iterator[Step]:
    """Pass on the steps of `fit`, in which each process embeds its `share` of a batch, at most `micro_batch` images at once.

    Raises:
        UserError: memory is short, with a size to try.
    """
    try:
        yield from steps
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        piece = -(-share // count_micro_batches(share, micro_batch))
        raise UserError(f"out of memory with {piece} images embedded at once; {smaller(piece, batchnorm=has_batchnorm(method))}") from error


def is_out_of_memory(error: RuntimeError) -> bool:
    """Return whether `error` is that of an allocator, of any device.

    >>> is_out_of_memory(OutOfMemoryError("CUDA out of memory. …")), is_out_of_memory(RuntimeError("mat1 and mat2 cannot be multiplied"))
    (True, False)
    """
    return isinstance(error, OutOfMemoryError) or any(words in str(error) for words in SHORT)


def smaller(piece: int, *, batchnorm: bool) -> str:
    """Return what to try when there is no memory to embed `piece` images at once.

    >>> smaller(256, batchnorm=False)
    'give --machine.micro_batch 128, which changes neither loss nor gradient, or a smaller --batch'
    """
    half = piece // 2
    if half < 1 + batchnorm:
        return "give a smaller --batch, smaller views or a smaller backbone"
    effect = (
        "which changes BatchNorm's statistics, but no other part of loss and gradient"
        if batchnorm
        else "which changes neither loss nor gradient"
    )
    return f"give --machine.micro_batch {half}, {effect}, or a smaller --batch"


def has_batchnorm(method: nn.Module) -> bool:
    """Return whether a layer normalises an image by the others of its batch.

    >>> has_batchnorm(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))), has_batchnorm(nn.LayerNorm(4))
    (True, False)
    """
    return any(isinstance(layer, _BatchNorm) for layer in method.modules())
