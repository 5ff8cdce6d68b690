"""The splits of a source: their names, from those of files and folders or from a column."""

import os
import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fullrank.errors import UserError, printable
from fullrank.images.labels import TRAIN, top_folder
from fullrank.images.source import Images

ALL = "all"  # name of the only split of a source without named splits
OTHER = "other"  # name of the split of all files outside the named splits
TEST = ("test", "testing", "validation", "val", "valid", "dev", "eval")  # in the order of preference
MAX_SPLITS = 100
SPLITS = (*TRAIN, *TEST, "unlabeled", "unlabelled")

_SHARD = re.compile(r"^(?P<split>\w[\w.]*)-\d+-of-\d+$")  # train-00000-of-00001, as on the hub
_WORD = re.compile(rf"^(?P<split>{'|'.join(sorted(SPLITS, key=len, reverse=True))})([-_.]?\d.*|[-_.].*)?$")


def is_split(name: str) -> bool:
    return name.lower() in SPLITS


def split_of_file(path: str) -> str | None:
    """Return the split of a Parquet or tar file, from the file name or else from the folders.

    >>> [split_of_file(f"{name}.parquet") for name in ("data/train-00000-of-00004", "test_1", "val/a")]
    ['train', 'test', 'val']
    """
    *folders, file = os.path.splitext(path)[0].split("/")
    if match := _SHARD.match(file) or _WORD.match(file.lower()):
        return match["split"]
    return next((folder.lower() for folder in reversed(folders) if is_split(folder)), None)


def splits_of_folders(files: Sequence[str]) -> tuple[list[str | None], list[str]]:
    """Return the split of each file, and its name inside the folder of the split.

    The top folders are splits if all top folders, or at least two, have the name of a split (`train`, `test`, `val`,
    …): a class may have the name "train".

    >>> splits_of_folders(["train/cat/1.png", "val/2.png"]), splits_of_folders(["train/1.png", "bus/2.png"])
    ((['train', 'val'], ['cat/1.png', '2.png']), ([None, None], ['train/1.png', 'bus/2.png']))
    """
    tops = [top_folder(file) for file in files]
    named = {top for top in tops if top is not None and is_split(top)}
    if len(named) < 2 and named != set(tops) - {None}:
        return [None] * len(files), list(files)
    return tops, [file.removeprefix(f"{top}/") for file, top in zip(files, tops, strict=True)]


def rows_of_splits(names: Sequence[str | None]) -> dict[str, np.ndarray]:
    """Return the rows of each split, given the name of the split of each row; rows without a name are the split
    `"other"`, and without any name there is only the split `"all"`.

    >>> rows_of_splits(["test", None, "test"])
    {'other': array([1]), 'test': array([0, 2])}
    """
    if not any(name is not None for name in names):
        return {ALL: np.arange(len(names))}
    found, codes = np.unique([OTHER if name is None else name for name in names], return_inverse=True)
    return {printable(str(name)): np.flatnonzero(codes == k) for k, name in enumerate(found)}


def by_split(images: Images, source: str, names: Sequence[str | None]) -> dict[str, Images]:
    """Return the images of each split, given the name of the split of each image.

    Raises:
        UserError: there are too many different names for splits.
    """
    rows = rows_of_splits(names)
    if len(rows) > MAX_SPLITS:
        raise UserError(f"{source} has {len(rows)} splits, expected at most {MAX_SPLITS}; name others (split_column)")
    return {split: replace(images.subset(rows[split]), source=named_source(source, split)) for split in rows}


def named_source(source: str, split: str) -> str:
    """Return the source URI with the split.

    >>> named_source("photos", "train"), named_source("photos", "all")
    ('photos[train]', 'photos')
    """
    return source if split == ALL else f"{source}[{split}]"
