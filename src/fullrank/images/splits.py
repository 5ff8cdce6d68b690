"""Recognise the names of splits; hold out images for the test and for validation, and take a subset of the training images."""

import re
from dataclasses import dataclass

import numpy as np

from fullrank.errors import UserError
from fullrank.images.source import Images

ALL = "all"  # name of the only split of a source without named splits
OTHER = "other"  # name of the split of all files outside the named splits
TRAIN = ("train", "training")
TEST = ("test", "testing", "validation", "val", "valid", "dev", "eval")  # in the order of preference
SPLITS = (*TRAIN, *TEST, "unlabeled", "unlabelled")

_SHARD = re.compile(r"^(?P<split>\w[\w.]*)-\d+-of-\d+$")  # train-00000-of-00001, as on the hub
_WORD = re.compile(rf"^(?P<split>{'|'.join(sorted(SPLITS, key=len, reverse=True))})([-_.]?\d.*|[-_.].*)?$")


def is_split(name: str) -> bool:
    return name.lower() in SPLITS


def split_of_file(path: str) -> str | None:
    """Return the split of a Parquet file, from the file name or else from the folders.

    >>> split_of_file("data/train-00000-of-00004.parquet"), split_of_file("test_1.parquet"), split_of_file("val/a.parquet")
    ('train', 'test', 'val')
    """
    *folders, file = path.removesuffix(".parquet").split("/")
    if match := _SHARD.match(file) or _WORD.match(file.lower()):
        return match["split"]
    return next((folder.lower() for folder in reversed(folders) if is_split(folder)), None)


def hold_out(images: Images, *, seed: int = 0) -> tuple[Images, Images]:
    """Return (training images, held-out images); a fifth is held out.

    The images are sorted by label and shuffled within each label; then every fifth image is held out. Each class, and the unlabelled
    images, therefore contributes a fifth of its images, up to rounding.
    """
    n = len(images)
    if n < 5:
        raise UserError(
            f"{images.source} has {n} images, expected at least 5 to hold out a fifth; give more images, "
            "or name a test split: --data.test of fullrank pretrain, --test of fullrank evaluate"
        )
    order = np.lexsort((np.random.default_rng(seed).permutation(n), images.labels))
    is_held_out = np.zeros(n, dtype=bool)
    is_held_out[order[2::5]] = True
    return images.subset(np.flatnonzero(~is_held_out)), images.subset(np.flatnonzero(is_held_out))


def stratified_order(labels: np.ndarray) -> np.ndarray:
    """Return the indices of images in a random order of which every beginning has the shares of the classes, up to rounding.

    The r-th image (from 0) of a class of n_c images gets the position (r + ½)/n_c, where a random permutation orders the images of each
    class, and also the images of equal position. Sorted by position, the first k of n images contain round(k n_c/n) ± 1 of the class. The
    order is the same for every call, so that a smaller subset is a part of a larger one.

    Args:
        labels: (n,) class indices; −1, no label, counts as a class.

    >>> labels = np.array([0] * 80 + [1] * 20)
    >>> [np.bincount(labels[stratified_order(labels)[:k]]).tolist() for k in (5, 10, 50)]
    [[4, 1], [8, 2], [40, 10]]
    """
    n = len(labels)
    shuffled = np.random.default_rng(0).permutation(n)
    by_class = np.lexsort((shuffled, labels))
    _, counts = np.unique(labels, return_counts=True)
    rank = np.arange(n) - np.repeat(np.cumsum(counts) - counts, counts)
    position = (rank + 0.5) / np.repeat(counts, counts)
    return by_class[np.lexsort((shuffled[by_class], position))]


@dataclass(frozen=True)
class Reduced:
    """Training images of which some are held out for validation, and of which the rest is all or a subset."""

    train: Images
    validation: Images | None
    statements: tuple[str, ...]


def reduce_training(images: Images, *, validation: float = 0.0, subset: int = 0) -> Reduced:
    """Hold out training images for validation, and take a subset of the others.

    The subset consists of the first images of `stratified_order`, the validation images of the last. Both are the same for every seed, and
    as long as they do not meet, neither depends on the size of the other.

    Args:
        images: the training images.
        validation: share of the images for validation; 0 for none.
        subset: number of images of the subset; 0 for all.

    Raises:
        UserError: validation images are asked for, but the share is below one image or leaves none; or the subset is too large.

    >>> from fullrank.images import open_images
    >>> reduced = reduce_training(open_images("digits")["all"], validation=0.1, subset=500)
    >>> reduced.statements
    ('180 of 1,797 training images held out for validation; the test images are not used', 'training on a subset of 500 of 1,617 images')
    """
    n, statements = len(images), []
    held_out = round(validation * n)
    if validation and not 0 < held_out < n:
        raise UserError(
            f"data.validation is {validation:g}, which is {held_out} of the {n:,} training images of {images.source}; "
            f"give a share that leaves some for both, such as {max(0.1, 1 / n):.2g}, or 0"
        )
    order, rest, held = stratified_order(images.labels), n - held_out, None
    if subset > rest:
        remain = f"has {rest:,} training images" + (f" beside the {held_out:,} for validation" if held_out else "")
        raise UserError(f"data.subset is {subset:,}, but {images.source} {remain}; give at most {rest}, or 0 for all")
    if held_out:
        held = images.subset(np.sort(order[rest:]))
        held.source = f"{images.source} (validation)"
        statements.append(f"{held_out:,} of {n:,} training images held out for validation; the test images are not used")
    if subset:
        statements.append(f"training on a subset of {subset:,} of {rest:,} images")
    chosen = order[: subset or rest]
    train = images if len(chosen) == n else images.subset(np.sort(chosen))
    return Reduced(train, held, tuple(statements))
