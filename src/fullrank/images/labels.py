"""Labels and splits. One reader of labels: class folders, label columns, members of tar files, lists in memory → class
numbers. The names of splits come from files and folders, or from a column.
"""

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fullrank.errors import UserError, printable
from fullrank.images.reading import Labels
from fullrank.images.source import Images

TRAIN = ("train", "training")
# Larger integers number the images or something else; a classifier of so many classes would fill the memory.
MAX_CLASSES = 2**16
MIN_IMAGES = 20  # with fewer images, the numbers of different labels and the sizes of folders say nothing
MAX_MAJORITY = 0.75  # class folders are assumed only if none holds a larger share of the images
MAX_CELLS = 2**31  # images times classes of multi-label images: more would fill the memory

ALL = "all"  # name of the only split of a source without named splits
OTHER = "other"  # name of the split of all files outside the named splits
TEST = ("test", "testing", "validation", "val", "valid", "dev", "eval")  # in the order of preference
MAX_SPLITS = 100
SPLITS = (*TRAIN, *TEST, "unlabeled", "unlabelled")

_SHARD = re.compile(r"^(?P<split>\w[\w.]*)-\d+-of-\d+$")  # train-00000-of-00001, as on the hub
_WORD = re.compile(rf"^(?P<split>{'|'.join(sorted(SPLITS, key=len, reverse=True))})([-_.]?\d.*|[-_.].*)?$")


@dataclass(frozen=True)
class Labelled:
    """The labels of all images of a source, and what was decided about them; `Images` describes the fields."""

    labels: np.ndarray
    classes: tuple[str, ...] = ()
    multi_labels: np.ndarray | None = None
    notes: tuple[str, ...] = ()

    def part(self, rows: slice) -> "Labelled":
        """Return the labels of some of the images."""
        several = None if self.multi_labels is None else self.multi_labels[rows]
        return replace(self, labels=self.labels[rows], multi_labels=several)


def unlabelled(n: int, *notes: str) -> Labelled:
    """Return n images without labels."""
    return Labelled(np.full(n, -1, dtype=np.int64), notes=notes)


def read_labels(
    values: Sequence[Any], what: str, *, names: Sequence[str] = (), requested: bool = False, sure: bool = False
) -> Labelled:
    """Return the labels of images.

    Args:
        values: the label of each image: a class number, the name of a class, a list of these (several labels per image;
            an empty list is an image without any class), or None (no label).
        what: what the values are, for the user: `"column 'breed'"`.
        names: the names of the classes that integers number.
        requested: the user named these labels, so that what does not look like labels is an error, not a note.
        sure: these are labels, also if nearly all of them differ.

    Raises:
        UserError: the values were requested, but cannot be labels.

    >>> read_labels(["cat", None, "dog"], "column 'breed'").labels.tolist()
    [0, -1, 1]
    """
    several = any(isinstance(value, list) for value in values)
    cells = [value if isinstance(value, list) else [value] for value in values]
    if len({isinstance(label, str) for cell in cells for label in cell if label is not None}) > 1:
        names, cells = (), [[_as_text(label) for label in cell] for cell in cells]  # other splits have names
    cells = [[label for label in cell if label is not None] for cell in cells]
    found: list[Any] = sorted({label for cell in cells for label in cell})
    numbers = bool(found) and not isinstance(found[0], str)
    if several and not names and not found:
        return unlabelled(len(values), f"no labels, because no cell of {what} has one")
    given, reason = sum(value is not None for value in values), None
    if numbers and (found[-1] >= MAX_CLASSES or (several and names and not {*found} <= {*range(len(names))})):
        expected = f"expected class numbers below {len(names) or MAX_CLASSES}"
        reason = f"its integers go from {found[0]} to {found[-1]}, {expected}"
    elif several and (len(found) >= MAX_CLASSES or len(found) * len(cells) > MAX_CELLS):
        reason = f"it has {len(found):,} different labels, which are too many for classes"
    elif not (sure or requested) and given >= MIN_IMAGES and 2 * len(found) > given:
        reason = f"{len(found)} different values for {given} images"
    if reason and requested:
        raise UserError(f"{what} cannot be the labels: {reason}; name another one, or give --data.labels none")
    if reason:
        note = f"no labels, because {what} does not look like labels: {reason} (--data.label-column NAME uses it)"
        return unlabelled(len(values), note)
    if several:
        known = list(range(len(names))) if names else found
        table = np.zeros((len(cells), len(known)), dtype=np.int8)
        number = {label: k for k, label in enumerate(known)}
        for row, cell in zip(table, cells, strict=True):
            row[[number[label] for label in cell]] = 1
        table[[value is None for value in values]] = -1
        many = f"{(table == 1).sum():,} labels of {len(known)} classes (--data.labels none: no labels)"
        classes = tuple(names) or tuple(printable(f"{label}") for label in found)
        note = f"{what} has several labels per image: {many}"
        return replace(unlabelled(len(values), note), multi_labels=table, classes=classes)
    number: dict[Any, int] = {label: label if numbers else k for k, label in enumerate(found)}
    labels = np.array([max(number[cell[0]], -1) if cell else -1 for cell in cells], dtype=np.int64)
    classes = tuple(names) if numbers else tuple(map(printable, found))
    return Labelled(labels, classes, notes=(f"{what} is the label (--data.labels none: no labels)",))


def _as_text(label: Any) -> str | None:
    return None if label is None or (isinstance(label, int) and label < 0) else str(label)


def folder_labels(files: Sequence[str], splits: Sequence[str | None], labels: Labels) -> Labelled:
    """Return the labels of files, from their top folders inside their splits.

    The classes are the sorted top folders, if there are at least two; those of a training split apply to all splits,
    and an image of another class has no label. With `labels="auto"` and without named splits, the folders are classes
    only if `why_no_classes` finds no reason against it; `"folders"` always uses them, `"none"` never.
    """
    tops = [top_folder(file) for file in files]
    trains = [(split or "").lower() in TRAIN for split in splits]
    everywhere = not any(trains)
    found = sorted({top for top, train in zip(tops, trains, strict=True) if top and (train or everywhere)})
    if len(found) < 2 or labels == "none":
        return unlabelled(len(files))
    if labels == "auto" and not any(splits) and (reason := why_no_classes(files)):
        note = f"no labels, because {reason} (--data.labels folders: the {len(found)} folders are classes)"
        return unlabelled(len(files), note)
    number: dict[Any, int] = {top: k for k, top in enumerate(found)}
    numbers = np.array([number.get(top, -1) for top in tops], dtype=np.int64)
    note = f"the {len(found)} folders are classes (--data.labels none: no labels)"
    return Labelled(numbers, tuple(map(printable, found)), notes=(note,))


def top_folder(file: str) -> str | None:
    """Return the first folder of a relative path, None if there is none."""
    return file.partition("/")[0] if "/" in file else None


def why_no_classes(files: Sequence[str]) -> str | None:
    """Return why the top folders of these files are probably not classes, or None.

    Folders of classes contain the images themselves and are of comparable size.

    >>> why_no_classes(["2019/may/a.png", "2020/june/b.png"])
    'most images are in folders inside these folders'
    >>> why_no_classes(["cat/a.png", "dog/b.png"])
    """
    sizes = Counter(top for file in files if (top := top_folder(file)) is not None)
    n = sizes.total()
    if 2 * sum(file.count("/") > 1 for file in files) > n:
        return "most images are in folders inside these folders"
    if n < MIN_IMAGES:
        return None
    largest, count = sizes.most_common(1)[0]
    if count > MAX_MAJORITY * n:
        return f"{count / n:.0%} of the images are in one folder, '{largest}'"
    return f"there are {len(sizes)} folders for {n} images" if 2 * len(sizes) > n else None


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
