"""Training batches from images in memory: which images and which views are functions of (seed, step) alone."""

from collections.abc import Iterator

from torch import Tensor

from fullrank.images import MemoryImages, batch_indices
from fullrank.views import Views


def memory_batches(
    images: MemoryImages,
    views: Views,
    *,
    seed: int,
    batch: int,
    start: int,
    stop: int,
    rank: int = 0,
    world: int = 1,
) -> Iterator[tuple[list[Tensor], Tensor]]:
    """Yield (views, labels) of steps `start` to `stop`: this process's share of each whole batch.

    Indices and view parameters are drawn for the whole batch and sliced, so that W processes see together what one would.

    Args:
        images: the whole set; its pixels' device is where the views are made.
        views: their distributions.
        seed: of the order and of the views.
        batch: images of the whole batch, over all processes; a multiple of `world`.
        start: first step.
        stop: the step after the last.
        rank: of this process.
        world: number of processes.
    """
    share = batch // world
    rows = slice(rank * share, (rank + 1) * share)
    device = images.pixels.device
    for step in range(start, stop):
        indices = batch_indices(seed, step, batch, len(images.pixels))[rows].to(device)
        draws = views.rows(views.draw(seed, step, batch), rows)
        yield views(images.pixels[indices], draws), images.labels[indices]
