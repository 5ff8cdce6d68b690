"""Which images train and which test: the named splits, or a fixed fifth."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fullrank.errors import UserError, pick
from fullrank.images.names import TEST, TRAIN
from fullrank.images.source import Images
from fullrank.images.source_uri import open_images


@dataclass(frozen=True)
class Splits:
    """Images to train and to test with, and the sentence that says where they come from."""

    train: Images
    test: Images
    statement: str


def train_and_test(
    source: str | Path,
    *,
    train: str | None = None,
    test: str | None = None,
    seed: int = 0,
    image: str | None = None,
    label: str | None = None,
) -> Splits:
    """Return the images to train and to test with.

    Named splits are used: `train`, and `test` or else `validation`, `val`, `valid`, …, one with labels before one without: those of
    ImageNet's test images are secret. Where there is none to test with, a fifth is held out, the same for the same seed, each class
    giving its share.

    Args:
        source: The SOURCE, see `open_images`.
        train: The name of the split to train with.
        test: The name of the split to test with.
        seed: Decides which fifth is held out.
        image: The image column of a table.
        label: The label column of a table.

    Raises:
        UserError: unknown splits, or too few images.

    >>> train_and_test("digits").statement
    'digits has no split to test with: 20 % of its images are held out, stratified by label, seed 0 (train 1438, test 359)'
    """
    splits = open_images(source, image=image, label=label)
    whole = _train(splits, train, f"{source}")
    if test is None:
        others = [name for name in _known(splits, TEST) if splits[name] is not whole]
        test = min(others, key=lambda name: splits[name].labels.max(initial=-1) < 0, default=None)  # the first of equals
    if test is not None:
        held = pick(test, splits, f"split of {source}")
        return Splits(whole, held, f"train with {whole.source} ({len(whole)} images), test with {held.source} ({len(held)} images)")
    rest, held = hold_out(whole, seed=seed)
    how = "stratified by label" if whole.classes or whole.labels.max() >= 0 else "drawn at random"
    counts = f"train {len(rest)}, test {len(held)}"
    return Splits(rest, held, f"{whole.source} has no split to test with: 20 % of its images are held out, {how}, seed {seed} ({counts})")


def _known(splits: dict[str, Images], names: tuple[str, ...]) -> list[str]:
    """The splits that are called so, in the order of preference, whatever their case."""
    return [split for name in names for split in splits if split.lower() == name]


def _train(splits: dict[str, Images], train: str | None, source: str) -> Images:
    if train is not None:
        return pick(train, splits, f"split of {source}")
    if known := _known(splits, TRAIN):
        return splits[known[0]]
    if len(splits) == 1:
        return next(iter(splits.values()))
    raise UserError(f"{source} has no split 'train'; name the split to train with; it has {', '.join(splits)}")


def hold_out(images: Images, *, seed: int = 0) -> tuple[Images, Images]:
    """Hold out every fifth image of an order that is sorted by label, and random within a label.

    So each class, unlabelled images among them, gives a fifth of its own up to rounding.
    """
    n = len(images)
    if n < 5:
        raise UserError(
            f"{images.source} has {n} images, expected at least 5 to hold out a fifth of them; give more images, "
            "or name a split to test with: --data.test of fullrank pretrain, --test of fullrank evaluate"
        )
    order = np.lexsort((np.random.default_rng(seed).permutation(n), images.labels))
    held = np.zeros(n, dtype=bool)
    held[order[2::5]] = True
    return images.subset(np.flatnonzero(~held)), images.subset(np.flatnonzero(held))
