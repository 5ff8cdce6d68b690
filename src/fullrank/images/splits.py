"""Recognise the names of splits, and hold out a fifth of the images if there is no test split."""

import re

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
