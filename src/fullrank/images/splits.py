"""Splits: recognise their names, hold out images for the test and for validation, take a subset for training."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fullrank.errors import UserError, printable
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

    >>> [split_of_file(f"{name}.parquet") for name in ("data/train-00000-of-00004", "test_1", "val/a")]
    ['train', 'test', 'val']
    """
    *folders, file = path.removesuffix(".parquet").split("/")
    if match := _SHARD.match(file) or _WORD.match(file.lower()):
        return match["split"]
    return next((folder.lower() for folder in reversed(folders) if is_split(folder)), None)


def by_split(names: Sequence[str | None]) -> dict[str, np.ndarray]:
    """Return the rows of each split, given the name of the split of each row; rows without a name are the split
    `"other"`, and without any name there is only the split `"all"`.

    >>> by_split(["test", None, "test"])
    {'other': array([1]), 'test': array([0, 2])}
    """
    if not any(name is not None for name in names):
        return {ALL: np.arange(len(names))}
    found, codes = np.unique([OTHER if name is None else name for name in names], return_inverse=True)
    return {printable(str(name)): np.flatnonzero(codes == k) for k, name in enumerate(found)}


def splits_of_folders(tops: Sequence[str | None]) -> list[str | None]:
    """Return the split of each file, given its top folder: folders with the name of a split, if all folders have one,
    or at least two (a class may have the name "train").
    """
    named = {top for top in tops if top is not None and is_split(top)}
    if len(named) < 2 and named != set(tops) - {None}:
        return [None] * len(tops)
    return list(tops)


def named_source(source: str, split: str) -> str:
    """Return the source URI with the split.

    >>> named_source("photos", "train"), named_source("photos", "all")
    ('photos[train]', 'photos')
    """
    return source if split == ALL else f"{source}[{split}]"


def hold_out(images: Images, *, seed: int = 0) -> tuple[Images, Images]:
    """Return (training images, held-out images); a fifth is held out.

    The images are sorted by label and shuffled within each label; then every fifth image is held out. Each class, and
    the unlabelled images, therefore contributes a fifth of its images, up to rounding. A group of images
    (`Images.groups`) is held out as a whole or not at all; it counts with its most frequent label.

    Raises:
        UserError: there are fewer than 5 images, or all images belong to one group.
    """
    n = len(images)
    if n < 5:
        raise UserError(
            f"{images.source} has {n} images, expected at least 5 to hold out a fifth; give more images, "
            "or name a test split: --data.test of fullrank pretrain, --test of fullrank evaluate"
        )
    units = group_images(images)
    held = np.zeros(len(units.labels), dtype=bool)
    position, due = 0, 0  # every fifth position is due; a unit is held out when more than half of its images are
    for k in np.lexsort((np.random.default_rng(seed).permutation(len(held)), units.labels)).tolist():
        size = int(units.sizes[k])
        due += (position + size + 2) // 5 - (position + 2) // 5
        position += size
        if 2 * due > size:
            held[k] = True
            due -= size
    if not held.any():  # a few large groups
        held[units.sizes.argmin()] = True
    if held.all():
        raise UserError(
            f"all {n} images of {images.source} are one group, expected at least two to hold one out; name a test split"
        )
    is_held_out = held[units.unit]
    return images.subset(np.flatnonzero(~is_held_out)), images.subset(np.flatnonzero(is_held_out))


class Units(NamedTuple):
    """The units of a source: images that stay together, those of one group or one image without a group.

    Attributes:
        unit: (n,) the unit of each image; units are numbered in the order of their first images.
        sizes: (m,) number of images of each unit.
        labels: (m,) the most frequent label of each unit.
    """

    unit: np.ndarray
    sizes: np.ndarray
    labels: np.ndarray


def group_images(images: Images) -> Units:
    """Return the units of a source.

    >>> from fullrank.images import open_images
    >>> images = open_images("digits")["all"].subset([0, 1, 11, 3])
    >>> images.groups = np.array([-1, 5, 5, -1])
    >>> group_images(images).unit.tolist(), group_images(images).labels.tolist()
    ([0, 1, 1, 2], [0, 1, 3])
    """
    n, groups, labels = len(images), images.groups, images.strata
    if n == 0 or groups.max() < 0:
        return Units(np.arange(n), np.ones(n, dtype=np.int64), labels)
    _, first, unit = np.unique(np.where(groups < 0, -1 - np.arange(n), groups), return_index=True, return_inverse=True)
    unit = np.argsort(np.argsort(first))[unit]
    (units, values), counts = np.unique(np.stack([unit, labels]), axis=1, return_counts=True)
    best = np.lexsort((-counts, units))  # of each unit, the most frequent label comes first
    starts = np.unique(units[best], return_index=True)[1]
    return Units(unit, np.bincount(unit), values[best][starts])


def stratified_order(labels: np.ndarray) -> np.ndarray:
    """Return the indices of images in a random order of which every beginning has the shares of the classes, up to
    rounding.

    The r-th image (from 0) of a class of n_c images gets the position (r + ½)/n_c, where a random permutation orders
    the images of each class, and also the images of equal position. Sorted by position, the first k of n images contain
    round(k n_c/n) ± 1 of the class. The order is the same for every call, so that a smaller subset is a part of a
    larger one.

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

    The subset consists of the first images of `stratified_order`, the validation images of the last. Both are the same
    for every seed, and as long as they do not meet, neither depends on the size of the other. Groups (`Images.groups`)
    are held out as a whole.

    Args:
        images: the training images.
        validation: share of the images for validation; 0 for none.
        subset: number of images of the subset; 0 for all.

    Raises:
        UserError: validation images are asked for, but the share is below one image or leaves none; or the subset is
            too large.

    >>> from fullrank.images import open_images
    >>> reduced = reduce_training(open_images("digits")["all"], validation=0.1, subset=500)
    >>> reduced.statements[1]
    'training on a subset of 500 of 1,617 images'
    """
    n, statements = len(images), []
    held_out = round(validation * n)
    if validation and not 0 < held_out < n:
        raise UserError(
            f"data.validation is {validation:g}, which is {held_out} of the {n:,} training images of {images.source}; "
            f"give a share that leaves some for both, such as {max(0.1, 1 / n):.2g}, or 0"
        )
    units, rest, held = group_images(images), n - held_out, None
    order_of_units = stratified_order(units.labels)
    order = np.argsort(np.argsort(order_of_units)[units.unit], kind="stable")
    if held_out and len(order_of_units) < n:  # the limit moves to the nearest end of a unit
        ends = np.cumsum(units.sizes[order_of_units])[:-1]
        if not len(ends):
            raise UserError(f"all {n:,} training images of {images.source} are one group, which cannot be divided")
        rest = int(ends[np.abs(ends - rest).argmin()])
        held_out = n - rest
    if subset > rest:
        remain = f"has {rest:,} training images" + (f" beside the {held_out:,} for validation" if held_out else "")
        raise UserError(f"data.subset is {subset:,}, but {images.source} {remain}; give at most {rest}, or 0 for all")
    if held_out:
        held = images.subset(np.sort(order[rest:]))
        held.source = f"{images.source} (validation)"
        statements.append(
            f"{held_out:,} of {n:,} training images held out for validation; the test images are not used"
        )
    if subset:
        statements.append(f"training on a subset of {subset:,} of {rest:,} images")
    chosen = order[: subset or rest]
    train = images if len(chosen) == n else images.subset(np.sort(chosen))
    return Reduced(train, held, tuple(statements))
