"""Images, and random crops of them, as rows of pixels: the inputs of linear networks."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from fullrank.errors import UserError


def load_pixels(
    data: str | None, count: int, *, seed: int, side: int = 32, classes: Sequence[int] | None = None, test: bool = False
) -> tuple[Float[Tensor, "n M"], Int64[Tensor, " n"]]:
    """Return the pixels in [0, 1] of `count` random images as float64 rows, and their labels (−1: none).

    Args:
        data: source URI of the images; None: the embedded digits.
        count: number of images, or of images per class if `classes` are given.
        seed: seed of the random choice.
        side: larger images are resized to `side` × `side` pixels.
        classes: labels to choose from.
        test: choose from the held-out images instead of the training images.

    Raises:
        UserError: the source has fewer images, or cannot be read.

    >>> X, labels = load_pixels(None, 3, seed=0, classes=(0, 1))
    >>> X.shape, labels
    (torch.Size([6, 64]), tensor([0, 0, 0, 1, 1, 1]))
    """
    from fullrank.evaluation import extract_features  # imported here: slow
    from fullrank.images import Preprocess, dataset_info, train_and_test

    splits = train_and_test(data or "digits", seed=seed)
    images = splits.test if test else splits.train
    generator = np.random.default_rng(seed)
    groups = {"": np.arange(len(images))}
    if classes is not None:
        groups = {f" of label {label}": np.flatnonzero(images.labels == label) for label in classes}
    for name, group in groups.items():
        if len(group) < count:
            found = f"{images.source} has {len(group)} images{name}, but {count} are needed"
            raise UserError(f"{found}; use a data set with more images (--data)")
    indices = np.concatenate([generator.permutation(group)[:count] for group in groups.values()])
    info = dataset_info(images)
    preprocess = Preprocess(info.channels, min(side, *info.median), (0.0,) * info.channels, (1.0,) * info.channels)
    features = extract_features(nn.Flatten(), images.subset(indices), preprocess)
    return features.X.double(), torch.from_numpy(images.labels[indices])


def random_crops(X: Float[Tensor, "n M"], *, area: float, seed: int, noise: float = 0.0) -> Float[Tensor, "2 n M"]:
    """Return two random crops of each image, resized to the image's size, as rows of pixels in [0, 1].

    Args:
        X: square images, grayscale or RGB, as `load_pixels` returns them.
        area: smallest area of a crop, as a share of the image's area.
        seed: seed of the crops and the noise.
        noise: standard deviation of the Gaussian noise that is added to each crop.

    >>> random_crops(load_pixels(None, 3, seed=0)[0], area=0.5, seed=0).shape
    torch.Size([2, 3, 64])
    """
    from fullrank import views  # imported here: slow

    channels = 1 if math.isqrt(X.shape[1]) ** 2 == X.shape[1] else 3  # 3k² is never a square
    side = math.isqrt(X.shape[1] // channels)
    images = (255 * X).round().to(torch.uint8).reshape(len(X), channels, side, side)
    config = views.ViewConfig(
        size=side,
        crop=views.CropConfig(scale=(area, 1.0)),
        flip=0.0,
        jitter=views.JitterConfig(probability=0.0),
        grayscale=0.0,
        noise=views.NoiseConfig(probability=float(noise > 0), std=noise),
    )
    transform = views.MultiViewTransform(config, mean=(0.0,) * channels, std=(1.0,) * channels, channels=channels)
    (Z,) = transform(images, transform.make_params(seed, 0, len(images)))
    return Z.double().flatten(2)
