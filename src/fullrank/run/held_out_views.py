"""Evaluate the objective on views of held-out images, and measure whether these views vary."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Real
from torch import Tensor

from fullrank.evaluation.frozen import restore_modes
from fullrank.methods import Method
from fullrank.objectives import total
from fullrank.training.seeding import mix
from fullrank.views import MultiViewTransform

CHUNK = 256  # number of images whose views are in memory at the same time
HELD_OUT_STREAM = 3  # extra hash input that separates these views from those of the training


@dataclass(frozen=True, kw_only=True)
class HeldOutViews:
    """The measurements on the views of one batch of held-out images."""

    image_deviation: float | None
    """Standard deviation of a pixel over the images, root mean square over the pixels: 0 if all images give the same
    view. The smallest value of all views; 1 is the standard deviation of the data. None for a single image."""
    pixel_deviation: float
    """Standard deviation over the pixels of a view, root mean square over the images: 0 if each view has a single
    colour. The smallest value of all views."""
    loss: float | None
    """The loss in eval mode; None if it was not asked for or is not finite, or if a smaller batch than in training is
    too small."""


@torch.no_grad()
def evaluate_held_out_views(
    method: Method,
    pixels: Real[Tensor, "n C S S"],
    transform: MultiViewTransform,
    *,
    seed: int,
    batch_size: int,
    with_loss: bool,
) -> HeldOutViews:
    """Draw views of the first `batch_size` held-out images, measure their deviations, and evaluate the objective on
    them.

    The images and their augmentation depend on the seed alone, so they are the same at every evaluation of a run. The
    method, its state and the global random generators are unchanged afterwards.

    Args:
        method: the method in training.
        pixels: uint8 or floats in [0, 1], (n, C, S, S), the held-out images.
        transform: draws the views.
        seed: seed of the run.
        batch_size: number of images of a training batch; the loss of most objectives depends on it.
        with_loss: whether to embed the views and to evaluate the objective.
    """
    parameter, pixels = next(method.parameters()), pixels[:batch_size]
    params = transform.make_params(mix(seed, HELD_OUT_STREAM), 0, len(pixels))

    def draw_views(start: int) -> list[Tensor]:
        part = slice(start, start + CHUNK)
        return transform(pixels[part].to(parameter.device), params.select_samples(part))

    with torch.random.fork_rng([parameter.device] if parameter.device.type == "cuda" else []), restore_modes(method):
        method.eval()
        views, loss = draw_views(0), None
        image_deviation, pixel_deviation = deviations(views)
        if with_loss:
            parts = [views, *(draw_views(start) for start in range(CHUNK, len(pixels), CHUNK))]
            embeddings = [method.forward([group.to(parameter.dtype) for group in part]) for part in parts]
            loss = evaluate_loss(
                method,
                {name: torch.cat([part[name] for part in embeddings], dim=1) for name in embeddings[0]},
                batch_size,
            )
    return HeldOutViews(image_deviation=image_deviation, pixel_deviation=pixel_deviation, loss=loss)


def deviations(views: list[Float[Tensor, "_ n C _ _"]]) -> tuple[float | None, float]:
    """Return the smallest deviation over the images, None for a single image, and the smallest deviation over the
    pixels.

    >>> [round(value, 6) for value in deviations([torch.tensor([0.0, 2.0]).reshape(1, 2, 1, 1, 1).expand(1, 2, 1, 4, 4)])]
    [1.0, 0.0]
    """
    over_images = [group.flatten(2).var(1, correction=0).mean(-1) for group in views]  # (V_k,)
    over_pixels = [group.flatten(3).var(-1, correction=0).mean((1, 2)) for group in views]
    image_deviation, pixel_deviation = (torch.cat(values).min().sqrt().item() for values in (over_images, over_pixels))
    return image_deviation if views[0].shape[1] > 1 else None, pixel_deviation


def evaluate_loss(method: Method, embeddings: dict[str, Tensor], batch_size: int) -> float | None:
    """Return the loss of a batch of embeddings; None if it is not finite, or if the objective refuses a batch below
    `batch_size`.
    """
    try:
        loss = float(total(method.terms(embeddings)))
    except (RuntimeError, ValueError):  # torch's errors of linear algebra are RuntimeErrors
        if embeddings["R"].shape[1] == batch_size:
            raise
        return None
    return loss if math.isfinite(loss) else None
