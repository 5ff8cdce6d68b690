"""Training and test images: the named splits, or a held-out fifth; validation images and a subset for training."""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fullrank.errors import UserError, pick, printable
from fullrank.images.labels import SPLITS, TEST, TRAIN
from fullrank.images.reading import USUAL, Reading
from fullrank.images.source import Images
from fullrank.images.source_uri import open_images


class Splits(NamedTuple):
    """Training and test images, and a sentence that describes where they come from.

    Attributes:
        test: The test images, or the validation images that take their place.
    """

    train: Images
    test: Images
    statement: str


def train_and_test(
    source: str | Path | Images,
    reading: Reading = USUAL,
    *,
    seed: int = 0,
    validation: float = 0.0,
    subset: int = 0,
    subset_seed: int = 0,
) -> Splits:
    """Return the training and the test images.

    The default splits are `train`, and `test` or else `validation`, `val`, `valid`, …; a test split with labels is
    preferred, because the labels of some test splits, such as ImageNet's, are secret. Without a test split, a fifth of
    each class is held out; the choice depends only on `seed`.

    Validation images, if there are any, take the place of the test images, and are not training images
    (`reduce_training`).

    Args:
        source: The source URI, see `open_images`, or opened images, of which a fifth is held out.
        reading: How to read it, with the names of the splits.
        seed: Seed of the held-out fifth.
        validation: Share of the training images that is held out for validation; 0 for none.
        subset: Number of training images; 0 for all.
        subset_seed: Seed of the choice of the subset and of the validation images.

    Raises:
        UserError: a split is unknown, or there are too few images for the splits, for validation or for the subset.

    >>> train_and_test("digits").statement
    'digits has no test split: 20 % of its images are held out, stratified by label, seed 0 (train 1438, test 359)'
    """
    reading = USUAL if isinstance(source, Images) else reading  # opened images have no named splits
    splits = open_images(source, reading)
    found = _matching_splits(splits, TRAIN) or list(splits)
    if reading.train is None and len(found) > 1 and found[0].lower() not in TRAIN:
        raise UserError(f"{source} has no split 'train', only {', '.join(splits)}; name the training split")
    train_name, test_name = reading.train or found[0], reading.test
    train = pick(train_name, splits, f"split of {source}")
    if not len(train):
        raise UserError(f"{train} has no images; give at least one, or name another split with --data.train")
    if test_name is None:
        others = [name for name in _matching_splits(splits, TEST) if name != train_name and len(splits[name])]
        # for ties, min returns the first
        test_name = min(others, key=lambda name: splits[name].strata.max(initial=-1) < 0, default=None)
    used = [train_name, test_name]
    # unused splits whose names are none of the usual ones may be mistyped
    others = [f"{name} ({len(splits[name])} images)" for name in splits if name not in (*SPLITS, *used)]
    unused = f"; not used: {', '.join(others)}" if others else ""
    if test_name is None:
        train, test, statement = hold_out_test(train, seed=seed)
    else:
        test = pick(test_name, splits, f"split of {source}")
        if not len(test):
            raise UserError(f"{test} has no images; give at least one, or name another split with --data.test")
        tested = "" if validation else f", test with {test} ({len(test)} images)"
        statement = f"train with {train} ({len(train)} images){tested}"
    if test_name == train_name and not validation:
        unused += "; warning: the test images are the training images; name others with --data.test"
    elif shared := len(np.setdiff1d(np.intersect1d(train.groups, test.groups), -1)):
        unused += f"; warning: {shared} groups have images in both"
    options = {"validation": validation, "subset": subset, "seed": subset_seed}
    return reduce_training(Splits(train, test, statement + unused), **options)


def _matching_splits(splits: dict[str, Images], names: tuple[str, ...]) -> list[str]:
    """Return the splits with one of the names (ignoring case), in the order of `names`."""
    return [split for name in names for split in sorted(splits, key=name.__ne__) if split.lower() == name]


def hold_out_test(images: Images, *, seed: int = 0) -> Splits:
    """Hold out a fifth of the images of a source without a test split."""
    rest, held_out = hold_out(images, seed=seed)
    how = "stratified by label" if images.classes or images.strata.max() >= 0 else "drawn at random"
    how = "stratified by the set of labels" if images.multi_labels is not None else how
    share = "20 %"
    if images.groups.max() >= 0:
        how, share = f"{how}, groups kept whole", f"{100 * len(held_out) / len(images):.0f} %"
    sizes = f"train {len(rest)}, test {len(held_out)}"
    statement = f"{images.source} has no test split: {share} of its images are held out, {how}, seed {seed} ({sizes})"
    return Splits(rest, held_out, statement)


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
        remedy = "give more images, or name a test split: --data.test"
        raise UserError(f"{images.source} has {n} images, expected at least 5 to hold out a fifth; {remedy}")
    units = group_images(images.groups, images.strata)
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
        raise UserError(f"all {n} images of {images.source} are one group, expected two or more; name a test split")
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


def group_images(groups: np.ndarray, labels: np.ndarray) -> Units:
    """Return the units of images with these groups (-1: none) and labels.

    >>> units = group_images(np.array([-1, 5, 5, -1]), np.array([0, 1, 1, 3]))
    >>> units.unit.tolist(), units.labels.tolist()
    ([0, 1, 1, 2], [0, 1, 3])
    """
    n = len(labels)
    if n == 0 or groups.max() < 0:
        return Units(np.arange(n), np.ones(n, dtype=np.int64), labels)
    _, first, unit = np.unique(np.where(groups < 0, -1 - np.arange(n), groups), return_index=True, return_inverse=True)
    unit = np.argsort(np.argsort(first))[unit]
    (units, values), counts = np.unique(np.stack([unit, labels]), axis=1, return_counts=True)
    best = np.lexsort((-counts, units))  # of each unit, the most frequent label comes first
    starts = np.unique(units[best], return_index=True)[1]
    return Units(unit, np.bincount(unit), values[best][starts])


def stratified_order(labels: np.ndarray, seed: int = 0) -> np.ndarray:
    """Return the indices of images in a random order of which every beginning has the shares of the classes, up to
    rounding.

    The r-th image (from 0) of a class of n_c images gets the position (r + ½)/n_c, where a random permutation orders
    the images of each class, and also the images of equal position. Sorted by position, the first k of n images contain
    round(k n_c/n) ± 1 of the class. The order depends only on the seed, so that a smaller subset is a part of a larger
    one.

    Args:
        labels: (n,) class indices; −1, no label, counts as a class.
        seed: seed of the permutation.

    >>> labels = np.array([0] * 80 + [1] * 20)
    >>> [np.bincount(labels[stratified_order(labels)[:k]]).tolist() for k in (5, 10, 50)]
    [[4, 1], [8, 2], [40, 10]]
    """
    n = len(labels)
    shuffled = np.random.default_rng(seed).permutation(n)
    by_class = np.lexsort((shuffled, labels))
    _, counts = np.unique(labels, return_counts=True)
    rank = np.arange(n) - np.repeat(np.cumsum(counts) - counts, counts)
    position = (rank + 0.5) / np.repeat(counts, counts)
    return by_class[np.lexsort((shuffled[by_class], position))]


def reduce_training(splits: Splits, *, validation: float = 0.0, subset: int = 0, seed: int = 0) -> Splits:
    """Hold out training images for validation, in place of the test images, and take a subset of the others.

    The subset consists of the first images of `stratified_order`, the validation images of the last. As long as they
    do not meet, neither depends on the size of the other. Groups (`Images.groups`)
    are held out as a whole.

    Args:
        splits: the training and the test images.
        validation: share of the training images for validation; 0 for none.
        subset: number of images of the subset; 0 for all.
        seed: seed of the choice.

    Raises:
        UserError: validation images are asked for, but the share is below one image or leaves none; or the subset is
            too large.
    """
    images, test, statements = splits.train, splits.test, [splits.statement]
    n, held_out = len(images), round(validation * len(images))
    if validation and not 0 < held_out < n:
        received = f"data.validation is {validation:g}, which is {held_out} of the {n:,} training images"
        raise UserError(f"{received} of {images.source}; give a share that leaves some for both, or 0")
    units, rest = group_images(images.groups, images.strata), n - held_out
    order_of_units = stratified_order(units.labels, seed)
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
        test = replace(images.subset(np.sort(order[rest:])), source=f"{images.source} (validation)")
        held = f"{held_out:,} of {n:,} training images held out for validation"
        statements.append(f"{held}; the test images are not used")
    if subset:
        statements.append(f"training on a subset of {subset:,} of {rest:,} images")
    plain = {"".join(name.split()).casefold(): name for name in images.classes}
    for name in sorted({*images.classes} - {*plain.values()})[:3]:
        statements.append(f"warning: class '{name}' differs from another one only by case or blanks; is it the same?")
    chosen = order[: subset or rest]
    train = images if len(chosen) == n else images.subset(np.sort(chosen))
    return Splits(train, test, printable("; ".join([*statements, *images.notes])))
