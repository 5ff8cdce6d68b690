"""The label column of a table: one label for each image, or several, as lists or as texts with a separator."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fullrank.errors import UserError, printable
from fullrank.images.columns import Rows
from fullrank.images.source import MAX_CLASSES

MIN_ROWS = 20  # with fewer rows, the number of different labels says nothing
SEPARATORS = "|;"
"""Characters that separate labels in one cell, as a note tells the user."""
MAX_CELLS = 2**31
"""Largest number of images times classes of several labels an image: more would fill the memory."""


class TableLabels(NamedTuple):
    """The labels of the rows of a table, and what was decided about them; `Images` describes the fields."""

    labels: np.ndarray
    classes: tuple[str, ...]
    notes: tuple[str, ...]
    multi_labels: np.ndarray | None = None


def is_list(kind: pa.DataType) -> bool:
    """Return whether the cells of a column are lists."""
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def read_labels(
    tables: Sequence[tuple[Rows, str | None]], *, requested: bool = False, separator: str | None = None
) -> list[TableLabels]:
    """Return the labels of the rows of each split, given with the name of its label column; None: the split has no
    labels.

    All splits together decide on the classes and on whether a column has labels, because each split may lack some
    classes. Integers of -1 mean no label. Without a request for the column, integers or texts that seem to number or to
    describe the images are not used. A column of lists, or of texts with a separator, has several labels an image.

    Raises:
        UserError: the column was requested, but its integers are too large for classes; or a separator is given for
            other cells than texts and integers.

    >>> tables = [(Rows(pa.table({"label": names})), "label") for names in (["cat", "dog"], ["dog"])]
    >>> [(part.labels.tolist(), part.classes) for part in read_labels(tables)]
    [([0, 1], ('cat', 'dog')), ([1], ('cat', 'dog'))]
    """
    found = [TableLabels(np.full(len(rows), -1, dtype=np.int64), (), ()) for rows, _ in tables]
    columns = {k: rows.column(name) for k, (rows, name) in enumerate(tables) if name is not None}
    for lists in (False, True):
        chosen = [k for k, values in columns.items() if is_list(values.type) == lists]
        if not chosen:
            continue
        column = tables[chosen[0]][1] or ""
        given = [tuple(map(printable, tables[k][0].columns[tables[k][1] or ""].names)) for k in chosen]
        values, names = _joined([columns[k] for k in chosen], given)
        sure = requested or any(given)
        if lists or separator is not None:
            all_labels = _read_several(values, column, names, requested=requested, sure=sure, separator=separator)
        else:
            all_labels = _read_one(values, column, names, requested=requested, sure=sure)
        for k, start in zip(chosen, np.cumsum([0, *(len(columns[k]) for k in chosen)]).tolist(), strict=False):
            rows = slice(start, start + len(columns[k]))
            multi = None if all_labels.multi_labels is None else all_labels.multi_labels[rows]
            found[k] = all_labels._replace(labels=all_labels.labels[rows], multi_labels=multi)
    return found


def _joined(
    columns: Sequence[pa.ChunkedArray], names: Sequence[tuple[str, ...]]
) -> tuple[pa.ChunkedArray, tuple[str, ...]]:
    """Return the labels of all splits and the names of the classes; texts if the splits number their classes in
    different ways.
    """
    inner = [values.type.value_type if is_list(values.type) else values.type for values in columns]
    integers, named = {pa.types.is_integer(kind) for kind in inner}, set(names) - {()}
    if len(integers) == 1 and len(named) <= 1:
        kind = columns[0].type
        if any(values.type != kind for values in columns):
            base = pa.int64() if integers == {True} else pa.large_string()
            kind = pa.large_list(base) if is_list(kind) else base
        chunks = [chunk for values in columns for chunk in values.cast(kind).chunks]
        return pa.chunked_array(chunks, kind), named.pop() if named else ()
    cells = [_text(cell, own) for values, own in zip(columns, names, strict=True) for cell in values.to_pylist()]
    return pa.chunked_array([pa.array(cells, pa.list_(pa.string()) if is_list(columns[0].type) else pa.string())]), ()


def _text(cell: Any, names: tuple[str, ...]) -> Any:
    """Return the name of a class, or those of a list; None for no label."""
    if isinstance(cell, list):
        return [_text(label, names) for label in cell]
    if not isinstance(cell, int):
        return cell
    return None if cell < 0 else names[cell] if cell < len(names) else str(cell)


def _read_one(
    values: pa.ChunkedArray, column: str, names: tuple[str, ...], *, requested: bool, sure: bool
) -> TableLabels:
    """Return one label an image."""
    none = np.full(len(values), -1, dtype=np.int64)
    reason = None if sure else _why_no_labels(values)
    are_texts = not pa.types.is_integer(values.type)
    largest = None if are_texts else pc.call_function("max", [values]).as_py()
    if largest is not None and largest >= MAX_CLASSES:
        reason = f"its integers go up to {largest}, expected class numbers below {MAX_CLASSES}"
        if requested:
            raise UserError(
                f"column '{column}' cannot be the labels: {reason}; name another column, or give --data.labels none"
            )
    if reason:
        refused = f"no labels, because column '{column}' does not look like labels: {reason} (--data.label_column {column} uses it)"
        return TableLabels(none, (), (*_separator_note(values, column), refused))
    note = (f"column '{column}' is the label (--data.labels none: no labels)",)
    if are_texts:
        texts = values.to_pylist()
        classes = sorted(set(texts) - {None})
        class_index = {name: k for k, name in enumerate(classes)}
        return TableLabels(
            np.array([class_index.get(name, -1) for name in texts], dtype=np.int64),
            tuple(map(printable, classes)),
            (*_separator_note(values, column), *note),
        )
    integers = (
        values.cast(pa.int64()).fill_null(-1).to_numpy().clip(min=-1)
    )  # a copy, because torch warns about read-only memory
    return TableLabels(integers, names, note)


def _why_no_labels(values: pa.ChunkedArray) -> str | None:
    n, different = len(values) - values.null_count, pc.call_function("count_distinct", [values]).as_py()
    return f"{different} different values in {n} rows" if n >= MIN_ROWS and 2 * different > n else None


def _read_several(
    values: pa.ChunkedArray, column: str, names: tuple[str, ...], *, requested: bool, sure: bool, separator: str | None
) -> TableLabels:
    """Return several labels an image. An empty list or text is an image with no class, null an image without labels."""
    none = np.full(len(values), -1, dtype=np.int64)
    if separator == "":
        raise UserError("data.label_separator is empty, expected the text between two labels of a cell, such as '|'")
    texts: list[str | None] = []
    if separator is not None:
        if is_list(values.type):
            raise UserError(
                f"column '{column}' contains lists of labels, which need no --data.label_separator; leave it out"
            )
        if names:
            raise UserError(
                f"column '{column}' has one class number an image, which needs no --data.label_separator; leave it out"
            )
        texts = [None if value is None else str(value) for value in values.to_pylist()]
        cells = [
            None if text is None else [part for each in text.split(separator) if (part := each.strip())]
            for text in texts
        ]
    else:
        cells = values.to_pylist()
    found: list[Any] = sorted({label for cell in cells if cell for label in cell} - {None})
    labelled = sum(cell is not None for cell in cells)
    reason = None
    if names and found and not 0 <= found[0] <= found[-1] < len(names):
        reason = f"its lists have integers from {found[0]} to {found[-1]}, expected numbers of its {len(names)} classes"
    elif len(found) >= MAX_CLASSES or len(found) * len(values) > MAX_CELLS:
        reason = f"it has {len(found):,} different labels, which are too many for classes"
    elif not names and not found:
        return TableLabels(none, (), (f"no labels, because no cell of column '{column}' has one",))
    elif not sure and separator is None and labelled >= MIN_ROWS and 2 * len(found) > labelled:
        reason = f"{len(found)} different values in {labelled} rows"
    if reason and (requested or separator is not None):
        raise UserError(
            f"column '{column}' cannot be the labels: {reason}; name another column, or give --data.labels none"
        )
    if reason:
        return TableLabels(none, (), (f"no labels, because column '{column}' does not look like labels: {reason}",))
    classes: list[Any] = list(range(len(names))) if names else found
    number = {label: k for k, label in enumerate(classes)}
    multi = np.zeros((len(cells), len(classes)), dtype=np.int8)
    for row, cell in enumerate(cells):
        if cell is None:
            multi[row] = -1
        else:
            multi[row, [number[label] for label in cell if label is not None]] = 1
    kinds = f"column '{column}' has several labels an image, of {len(classes)} classes"
    note = f"{kinds}: {int((multi == 1).sum()):,} labels of {labelled:,} images (--data.labels none: no labels)"
    if separator is not None and not any(separator in text for text in texts if text):
        note += f"; but the separator '{separator}' is in none of its cells"
    return TableLabels(none, names or tuple(printable(str(label)) for label in classes), (note,), multi)


def _separator_note(values: pa.ChunkedArray, column: str) -> tuple[str, ...]:
    """Return a note if a tenth of the texts look like several labels each: parts between separators that occur again in
    other cells.
    """
    if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        return ()
    texts = [text for text in values.to_pylist() if text]
    for mark in SEPARATORS:
        split = [text.split(mark) for text in texts if mark in text]
        parts = Counter(part.strip() for cell in split for part in cell)
        if len(split) >= max(2, len(texts) / 10) and 2 * len(parts) <= parts.total():
            many = f"{len(split):,} of {len(texts):,} cells of column '{column}' contain '{mark}'"
            return (f"{many}; if they are several labels an image, split them with --data.label_separator '{mark}'",)
    return ()
