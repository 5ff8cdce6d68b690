"""Images, and random crops of them, as rows of numbers, which is all that linear networks need."""

import math
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
    from fullrank.images import Preprocess, dataset_info, train_and_test

    splits = train_and_test(data or "digits", seed=seed)
    images = splits.test if test else splits.train
    generator = np.random.default_rng(seed)
    groups = {"": np.arange(len(images))} if classes is None else {f" of label {c}": np.flatnonzero(images.labels == c) for c in classes}
    for which, group in groups.items():
        if len(group) < count:
            raise UserError(f"{images.source} has {len(group)} images{which}, but {count} are needed; give a larger source")
    drawn = np.concatenate([generator.permutation(group)[:count] for group in groups.values()])
    found = dataset_info(images)
    whole = Preprocess(found.channels, min(side, *found.median), (0.0,) * found.channels, (1.0,) * found.channels)
    features = raw_pixels(images.subset(drawn), whole, side=side)
    return features.X.double(), torch.from_numpy(images.labels[drawn])


def crops(X: Float[Tensor, "n M"], *, area: float, seed: int, noise: float = 0.0) -> Float[Tensor, "2 n M"]:
    """Return two random crops of each image, resized to its size, as rows of pixels in [0, 1].

    Args:
        X: square images, grey or RGB, as `pixels` gives them.
        area: least area of a crop, as a share of the image's.
        seed: of the draw.
        noise: standard deviation of the Gaussian noise that is added to each crop.

    >>> crops(pixels(None, 3, seed=0)[0], area=0.5, seed=0).shape
    torch.Size([2, 3, 64])
    """
    from fullrank.views import (  # here: they bring the training's libraries
        CropConfig,
        JitterConfig,
        MultiViewTransform,
        NoiseConfig,
        ViewConfig,
    )

    channels = 1 if math.isqrt(X.shape[1]) ** 2 == X.shape[1] else 3  # 3k² is never a square
    side = math.isqrt(X.shape[1] // channels)
    images = (255 * X).round().to(torch.uint8).reshape(len(X), channels, side, side)
    crop = ViewConfig(
        size=side,
        crop=CropConfig(scale=(area, 1.0)),
        flip=0.0,
        jitter=JitterConfig(probability=0.0),
        grayscale=0.0,
        noise=NoiseConfig(probability=float(noise > 0), std=noise),
    )
    views = MultiViewTransform(crop, mean=(0.0,) * channels, std=(1.0,) * channels, channels=channels)
    (Z,) = views(images, views.make_params(seed, 0, len(images)))
    return Z.double().flatten(2)
