"""One reader of labels: class folders, label columns, members of tar files, lists in memory → class numbers."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fullrank.errors import UserError, printable
from fullrank.images.reading import Labels
from fullrank.images.source import MAX_CLASSES
from fullrank.images.splits import ALL, TRAIN

MIN_IMAGES = 20  # with fewer images, the numbers of different labels and the sizes of folders say nothing
MAX_MAJORITY = 0.75  # class folders are assumed only if none holds a larger share of the images
MAX_CELLS = 2**31  # images times classes of several labels an image: more would fill the memory


class Labelled(NamedTuple):
    """The labels of the images of one split, and what was decided about them; `Images` describes the fields."""

    labels: np.ndarray
    classes: tuple[str, ...] = ()
    multi_labels: np.ndarray | None = None
    notes: tuple[str, ...] = ()


def class_numbers(values: Sequence[Any], classes: Sequence[Any]) -> np.ndarray:
    """Return the number of each value among the classes, (n,) int64; -1 for any other value.

    >>> class_numbers(["cat", None, "dog"], ["cat", "dog"])
    array([ 0, -1,  1])
    """
    number = {name: k for k, name in enumerate(classes)}
    return np.array([number.get(value, -1) for value in values], dtype=np.int64)


def read_labels(
    values: Mapping[str, Sequence[Any]],
    what: str,
    *,
    names: Sequence[str] = (),
    requested: bool = False,
    sure: bool = False,
) -> dict[str, Labelled]:
    """Return the labels of each split, the classes being those of all splits together.

    Args:
        values: for each split, the label of each image: a class number, the name of a class, a list of these (several
            labels an image; an empty list is an image without any class), or None (no label).
        what: what the values are, for the user: `"column 'breed'"`.
        names: the names of the classes that integers number.
        requested: the user named these labels, so that what does not look like labels is an error, not a note.
        sure: these are labels, also if nearly all of them differ.

    Raises:
        UserError: the values were requested, but cannot be labels.

    >>> read_labels({"all": ["cat", None, "dog"]}, "column 'breed'")["all"].labels.tolist()
    [0, -1, 1]
    """
    cells = [value for part in values.values() for value in part]
    several = any(isinstance(value, list) for value in cells)
    given = [value for value in cells if value is not None]
    single: list[Any] = [
        label for cell in given for label in (cell if isinstance(cell, list) else [cell]) if label is not None
    ]
    if any(isinstance(value, str) for value in single) and any(not isinstance(value, str) for value in single):
        return read_labels(_as_texts(values), what, requested=requested, sure=sure)
    found: list[Any] = sorted(set(single))
    numbers = bool(found) and not isinstance(found[0], str)
    reason = None
    if several and not names and not found:
        return _unlabelled(values, f"no labels, because no cell of {what} has one")
    if numbers and (found[-1] >= MAX_CLASSES or (several and names and not {*found} <= {*range(len(names))})):
        reason = (
            f"its integers go from {found[0]} to {found[-1]}, expected class numbers below {len(names) or MAX_CLASSES}"
        )
    elif several and (len(found) >= MAX_CLASSES or len(found) * len(cells) > MAX_CELLS):
        reason = f"it has {len(found):,} different labels, which are too many for classes"
    elif not (sure or requested) and len(given) >= MIN_IMAGES and 2 * len(found) > len(given):
        reason = f"{len(found)} different values for {len(given)} images"
    if reason and requested:
        raise UserError(f"{what} cannot be the labels: {reason}; name another one, or give --data.labels none")
    if reason:
        return _unlabelled(
            values, f"no labels, because {what} does not look like labels: {reason} (--data.label_column NAME uses it)"
        )
    if several:
        return _several(values, what, names, found)
    classes = tuple(names) if numbers else tuple(map(printable, found))
    notes = (f"{what} is the label (--data.labels none: no labels)",)
    return {
        split: Labelled(
            np.array([-1 if value is None else max(value, -1) for value in part], dtype=np.int64)
            if numbers
            else class_numbers(part, found),
            classes,
            notes=notes,
        )
        for split, part in values.items()
    }


def _several(
    values: Mapping[str, Sequence[Any]], what: str, names: Sequence[str], found: list[Any]
) -> dict[str, Labelled]:
    known = list(range(len(names))) if names else found
    classes, number = tuple(names) or tuple(printable(f"{x}") for x in found), {x: k for k, x in enumerate(known)}
    tables = {}
    for split, part in values.items():
        tables[split] = np.zeros((len(part), len(known)), dtype=np.int8)
        for row, cell in zip(tables[split], part, strict=True):
            labels = cell if isinstance(cell, list) else [cell]
            row[[number[label] for label in labels if label is not None]] = 1
            if cell is None:
                row[:] = -1
    many = sum(int((table == 1).sum()) for table in tables.values())
    note = (
        f"{what} has several labels an image: {many:,} labels of {len(known)} classes (--data.labels none: no labels)"
    )
    return {
        split: Labelled(np.full(len(table), -1, dtype=np.int64), classes, table, (note,))
        for split, table in tables.items()
    }


def _as_texts(values: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """Return integers as texts, because other splits have names."""

    def text(value: Any) -> Any:
        if isinstance(value, list):
            return [text(label) for label in value]
        return value if value is None or isinstance(value, str) else None if value < 0 else str(value)

    return {split: [text(value) for value in part] for split, part in values.items()}


def _unlabelled(values: Mapping[str, Sequence[Any]], note: str) -> dict[str, Labelled]:
    return {split: Labelled(np.full(len(part), -1, dtype=np.int64), notes=(note,)) for split, part in values.items()}


def folder_labels(files: Mapping[str, Sequence[str]], labels: Labels) -> dict[str, Labelled]:
    """Return the labels of the files of each split, from their top folders.

    The classes are the sorted top folders, if there are at least two; those of a training split apply to all splits,
    and an image of another class has no label. With `labels="auto"` and without named splits, the folders are classes
    only if `why_no_classes` finds no reason against it; `"folders"` always uses them, `"none"` never.
    """
    tops = {split: [top_folder(file) for file in part] for split, part in files.items()}
    training = [part for split, part in tops.items() if split.lower() in TRAIN] or list(tops.values())
    found = sorted({top for part in training for top in part if top is not None})
    reason = why_no_classes(files[ALL]) if ALL in files and labels == "auto" else None
    if len(found) < 2 or labels == "none":
        classes, notes = [], ()
    elif reason:
        classes = []
        notes = (f"no labels, because {reason} (--data.labels folders: the {len(found)} folders are classes)",)
    else:
        classes, notes = found, (f"the {len(found)} folders are classes (--data.labels none: no labels)",)
    names = tuple(map(printable, classes))
    return {split: Labelled(class_numbers(part, classes), names, notes=notes) for split, part in tops.items()}


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
