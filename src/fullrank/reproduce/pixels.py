"""Images as rows of numbers, which is all that linear networks need."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fullrank.errors import UserError


def pixels(
    data: str | None, count: int, *, seed: int, side: int = 32, classes: Sequence[int] | None = None, test: bool = False
) -> tuple[Float[Tensor, "n M"], Int64[Tensor, " n"]]:
    """Return the pixels in [0, 1] of `count` images, drawn at random, as float64 rows, and their labels (−1: none).

    Args:
        data: SOURCE of the images; None are the embedded digits.
        count: how many images, or how many of each of `classes`.
        seed: of the draw.
        side: larger images are resized to it.
        classes: draw from these labels alone.
        test: draw from the held-out images instead of those to train with.

    Raises:
        UserError: fewer images than that, or a source that cannot be read.

    >>> X, labels = pixels(None, 3, seed=0, classes=(0, 1))
    >>> X.shape, labels
    (torch.Size([6, 64]), tensor([0, 0, 0, 1, 1, 1]))
    """
    from fullrank.evaluation.baselines import raw_pixels  # here: they bring the training's libraries
    from fullrank.images import Preprocess, survey, train_and_test

    splits = train_and_test(data or "digits", seed=seed)
    images = splits.test if test else splits.train
    generator = np.random.default_rng(seed)
    groups = [np.arange(len(images))] if classes is None else [np.flatnonzero(images.labels == label) for label in classes]
    for name, group in zip(classes or ("any class",), groups, strict=True):
        if len(group) < count:
            raise UserError(f"{images.source} has {len(group)} images of label {name}, but {count} are needed; give a larger source")
    drawn = np.concatenate([generator.permutation(group)[:count] for group in groups])
    found = survey(images)
    whole = Preprocess(found.channels, min(side, *found.median), (0.0,) * found.channels, (1.0,) * found.channels)
    features = raw_pixels(images.subset(drawn), whole, side=side)
    return features.X.double(), torch.from_numpy(images.labels[drawn])
