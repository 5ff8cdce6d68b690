"""Training batches from images in memory: which images and which views are functions of (seed, step) alone."""

from collections.abc import Iterator

from jaxtyping import Float32, Int64
from torch import Tensor

from fullrank.images import MemoryImages, batch_indices
from fullrank.views import MultiViewTransform
from fullrank.views.apply import move


def memory_batches(
    images: MemoryImages,
    views: MultiViewTransform,
    *,
    seed: int,
    batch: int,
    start: int,
    stop: int,
    rank: int = 0,
    world: int = 1,
) -> Iterator[tuple[list[Float32[Tensor, "_ n C _ _"]], Int64[Tensor, " n"]]]:
    """Yield (views, labels) of steps `start` to `stop`: this process's share of each whole batch, n = `batch` / `world` images.

    Indices and view parameters are drawn for the whole batch and sliced, so that W processes see together what one would.
    Nothing is carried from step to step: a feed that starts late yields what one that started at 0 would.

    Args:
        images: the whole set; its pixels' device is where the views are made.
        views: their distributions.
        seed: of the order and of the views.
        batch: images of the whole batch, over all processes; a multiple of `world`.
        start: first step.
        stop: the step after the last.
        rank: of this process.
        world: number of processes.

    >>> import torch
    >>> from fullrank.views import ViewConfig
    >>> images = MemoryImages(torch.zeros(6, 1, 8, 8, dtype=torch.uint8), torch.arange(6), tuple("abcdef"), ())
    >>> views = MultiViewTransform(ViewConfig(size=8), mean=(0.5,), std=(0.5,), channels=1)
    >>> [(len(labels), *(tuple(x.shape) for x in xs)) for xs, labels in memory_batches(images, views, seed=0, batch=3, start=0, stop=2)]
    [(3, (2, 3, 1, 8, 8)), (3, (2, 3, 1, 8, 8))]
    """
    assert batch % world == 0, f"{batch} images for {world} processes"
    share = batch // world
    rows = slice(rank * share, (rank + 1) * share)
    device = images.pixels.device
    for step in range(start, stop):
        indices = move(batch_indices(seed, step, batch, len(images.pixels))[rows], device)
        draws = views.rows(views.draw(seed, step, batch), rows)
        yield views(images.pixels[indices], draws), images.labels[indices]
