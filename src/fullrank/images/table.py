"""Images in tables: files of paths (CSV, Parquet), Parquet files of images, data sets of `save_to_disk` and of the
Hugging Face hub. Each is a table of the `datasets` library, from which nothing is decoded.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
from datasets import ClassLabel, Dataset, Features, Value
from datasets.table import InMemoryTable
from huggingface_hub.constants import HF_HUB_CACHE

from fullrank.errors import UserError, explain_errors, pick, printable
from fullrank.files import check_file
from fullrank.images.folder import EXTENSIONS, walk
from fullrank.images.labels import (
    ALL,
    Labelled,
    by_split,
    named_source,
    read_labels,
    rows_of_splits,
    split_of_file,
    unlabelled,
)
from fullrank.images.parquet import CACHE, parquet_columns, read_parquet, read_saved, readable
from fullrank.images.reading import USUAL, Reading
from fullrank.images.source import IMAGE_KEYS, FileRows, Images, ItemRows, Rows

LABELS = ("label", "labels", "fine_label")
# Names of label columns that count less than the type ClassLabel.
OTHER_LABELS = ("class", "klass", "category", "target")
# Names of columns of paths.
PATHS = ("path", "image", "file", "image_path", "img_path", "file_path")
PATHS += ("filepath", "file_name", "filename", "image_file")
SPLIT = "split"


def _has_images(column: Any) -> bool:
    return isinstance(column, datasets.Image) or (isinstance(column, dict) and {"bytes", "path"} <= column.keys())


def _has(column: Any, *kinds: str) -> bool:
    """Return whether the values of a column have one of these types, such as "string" or "large_string"."""
    return isinstance(column, Value) and column.dtype.removeprefix("large_").rstrip("0123456789") in kinds


def _element(column: Any) -> Any:
    """Return the type of the elements of a column of lists, or of the values of another column."""
    return column.feature if isinstance(column, datasets.List | datasets.LargeList) else column


def _may_be_label(column: Any) -> bool:
    return isinstance(column, ClassLabel) or _has(column, "int", "uint", "string")


def class_names(column: Any) -> tuple[str, ...]:
    """Return the names of the classes that the metadata of a column give."""
    return tuple(getattr(_element(column), "names", None) or ())


class Columns(NamedTuple):
    """The names of the columns that are used; None: there is no such column."""

    image: str
    label: str | None
    group: str | None
    split: str | None


def choose_columns(columns: Features, source: str, reading: Reading) -> Columns:
    """Return the columns that are used: those that were asked for, or else

    - images: the only column with `bytes` and `path`, or of bytes, or a column of texts with one of the names `PATHS`;
    - labels: the first of `LABELS`, the only ClassLabel column, the first of `OTHER_LABELS`, in upper or lower case;
    - splits: in a table of paths, the column `split`.

    Raises:
        UserError: a column does not exist or has the wrong type, or there are no or several image columns.
    """
    if reading.labels == "folders":
        raise UserError(f"data.labels is folders, but {source} is a table; give auto or none, or --data.label-column")
    for flag in ("image_column", "label_column", "group_column", "split_column"):
        if (name := getattr(reading, flag)) is None:
            continue
        column = pick(name, columns, f"column of {source}")
        valid, expected = _may_be_label(_element(column) if flag == "label_column" else column), "integers or texts"
        if flag == "image_column":
            valid, expected = _has_images(column) or _has(column, "binary", "string"), "images (bytes) or paths"
        if not valid:
            raise UserError(f"column '{name}' of {source} contains {column}, expected {expected}")
    image, label, split = reading.image_column or _find_images(columns, source), reading.label_column, None
    if label is None and reading.labels == "auto":
        labels = {name: column for name, column in columns.items() if _may_be_label(_element(column))}
        typed = [name for name, column in labels.items() if isinstance(_element(column), ClassLabel)]
        label = _first((*LABELS, *(typed if len(typed) == 1 else ()), *OTHER_LABELS), labels)
    if _has(columns[image], "string"):
        split = _first((SPLIT,), [name for name, column in columns.items() if _has(column, "string", "int", "uint")])
    label = None if reading.labels == "none" else label
    return Columns(image, label, reading.group_column, reading.split_column or split)


def _first(names: Sequence[str], columns: Collection[str]) -> str | None:
    """Return the column that has the first of these names, in upper or lower case."""
    given = {column.lower(): column for column in reversed(list(columns))}
    return next((given[name.lower()] for name in names if name.lower() in given), None)


def _find_images(columns: Features, source: str) -> str:
    found = [name for name, column in columns.items() if _has_images(column)]
    found = found or [name for name, column in columns.items() if _has(column, "binary")]
    paths = _first(PATHS, [name for name, column in columns.items() if _has(column, "string")])
    found = found or ([paths] if paths else [])
    if len(found) == 1:
        return found[0]
    count = f"{len(found)} image columns ({', '.join(found)})" if found else "no image column"
    raise UserError(f"{source} has {count}; its columns are {', '.join(columns)}; name one with --data.image-column")


def _rows(table: Dataset, column: str, split: str) -> Rows:
    """Return the rows of a table with a column of paths, or of images, which have names such as `"train[17]"`."""
    if _has(table.features[column], "string"):
        return FileRows([path or "" for path in _values(table, column)])
    cells = table.select_columns([column]).with_format(None)
    if isinstance(table.features[column], datasets.Image):
        cells = cells.cast_column(column, datasets.Image(decode=False))
    # a table, not its column: datasets selects the column anew for each cell, which takes longer than to decode it
    return ItemRows(cells.rename_columns({column: IMAGE_KEYS[0]}), what=split)


def _values(table: Dataset, column: str | None) -> list[Any]:
    """Return all values of a column, as the indices of the table select them; None for each row without a column."""
    if column is None:
        return [None] * len(table)
    selected: Any = table.select_columns([column]).with_format("arrow")
    return selected[:].column(0).to_pylist()


def table_splits(
    source: str, tables: Mapping[str, Dataset], *, roots: tuple[str, ...] | None, reading: Reading = USUAL
) -> dict[str, Images]:
    """Return the images of each split, in the given or detected image and label columns.

    Args:
        source: The source URI.
        tables: A table for each split.
        roots: Real paths of the folders that may contain the files which the rows name; None: any folder.
        reading: How to read the source.

    Raises:
        UserError: a column does not exist or has the wrong type, or the rows do not have the types of the columns.
    """
    chosen = {split: choose_columns(table.features, source, reading) for split, table in tables.items()}
    with readable(source):  # the rows of an untrusted table need not have the types that its metadata declare
        found = _read_labels(tables, {split: columns.label for split, columns in chosen.items()}, reading)
        groups = [value for split in tables for value in _values(tables[split], chosen[split].group)]
        number = {value: k for k, value in enumerate(sorted({f"{group}" for group in groups if group is not None}))}
        numbers = np.array([-1 if group is None else number[f"{group}"] for group in groups], dtype=np.int64)
        parts, start = {}, 0
        for split, table in tables.items():
            name, own = chosen[split].split, slice(start, start := start + len(table))
            rows, labels = _rows(table, chosen[split].image, split), vars(found.part(own))
            limits = {"roots": roots, "max_pixels": reading.max_pixels}
            images = Images(named_source(source, split), rows, **labels, groups=numbers[own], **limits)
            names = [None if cell is None else f"{cell}" for cell in _values(table, name)]
            parts |= {split: images} if name is None or len(tables) > 1 else by_split(images, source, names)
    return parts


def _read_labels(tables: Mapping[str, Dataset], names: Mapping[str, str | None], reading: Reading) -> Labelled:
    """Return the labels of all splits together; those of a split without a label column are missing.

    Splits may list their classes in another order, or only some of them: classes of one name have one number, that of
    the training split, or of the longest list.

    Raises:
        UserError: the splits number their classes differently, or there is a separator but no texts.
    """
    kinds = {split: tables[split].features[name] for split, name in names.items() if name is not None}
    if not kinds:
        columns, known = ", ".join(next(iter(tables.values())).features), " or ".join((*LABELS, *OTHER_LABELS))
        note = f"no labels: no column is called {known} (--data.label-column NAME; its columns are {columns})"
        return unlabelled(sum(map(len, tables.values())), *([note] if reading.labels == "auto" else []))
    what = f"column '{next(name for name in names.values() if name is not None)}'"
    named = {split: given for split, kind in kinds.items() if (given := class_names(kind))}
    training_first = sorted(named, key=lambda split: not split.lower().startswith("train"))
    classes = max((named[split] for split in training_first), key=len, default=())
    texts = any(_has(_element(kind), "string") for kind in kinds.values())
    if named and (texts or not all({*given} <= {*classes} for given in named.values())):
        raise UserError(f"the splits {', '.join(tables)} name the classes of {what} differently; give all one list")
    values = []
    for split, table in tables.items():
        numbers, cells = [classes.index(name) for name in named.get(split, classes)], _values(table, names[split])
        values += cells if numbers == [*range(len(classes))] else [_renumber(cell, numbers) for cell in cells]
    if (separator := reading.label_separator) is not None:
        if not separator or not all(_has(kind, "string", "int", "uint") for kind in kinds.values()):
            raise UserError(f"data.label_separator is '{separator}', but {what} has no texts to split; leave it out")
        cells = [None if value is None else f"{value}".split(separator) for value in values]
        values = [cell and [label.strip() for label in cell if label.strip()] for cell in cells]
    requested, printed = reading.label_column is not None, tuple(map(printable, classes))
    return read_labels(values, what, names=printed, requested=requested, sure=bool(separator or classes))


def _renumber(value: Any, numbers: Sequence[int]) -> Any:
    """Return the number of a class among those of all splits, given these numbers for the classes of its split."""
    if isinstance(value, list):
        return [_renumber(each, numbers) for each in value]
    return value if value is None or value < 0 else numbers[value]


def open_hub(source: str, name: str, reading: Reading) -> dict[str, Images]:
    """Return the images of each split of a data set of the hub.

    Files that the rows name are read only in the copy of the data set and in what it unpacked.
    """
    repository = name.partition(":")[0].replace("/", "--")
    roots = tuple(map(os.path.realpath, (f"{HF_HUB_CACHE}/datasets--{repository}", f"{CACHE}/downloads")))
    tables = load_from_hub(name)
    if reading.split_column is not None:  # the column names the splits, not the repository
        with readable(source):
            tables = {ALL: datasets.concatenate_datasets([*tables.values()])}
    return table_splits(source, tables, roots=roots, reading=reading)


def load_from_hub(name: str, **options: Any) -> Any:
    """Load `OWNER/NAME`, or `OWNER/NAME:CONFIG` if a data set has several configurations. Its code is never run.

    Raises:
        UserError: the data set or configuration does not exist, access is denied, or there is neither a network nor a
            cached copy.
    """
    path, _, configuration = name.partition(":")
    remedy = "check hf:OWNER/NAME:CONFIG, your access (`hf auth login`) and the network, or give parquet:PATH"
    with explain_errors(f"cannot load 'hf:{name}'", remedy):
        return datasets.load_dataset(path, configuration or None, **options)


def open_tables(source: str, kind: str, root: Path, files: list[str], reading: Reading) -> dict[str, Images]:
    """Return the images of each split of Parquet files, or of what `save_to_disk` wrote, or of a CSV file of paths."""
    if kind == "arrow":  # a `DatasetDict` has a folder for each split; other files are caches of `datasets`
        files = [file for file in files if file.rpartition("/")[2].startswith(("data-", "dataset"))]
        if not files:
            raise UserError(f"'{root}' contains no images, Parquet files or files of save_to_disk (data-*.arrow)")
    names = [split_of_file(file) if kind == "parquet" else file.rpartition("/")[0] or None for file in files]
    if reading.split_column is not None:  # the column names the splits, not the files
        names = [None] * len(files)
    tables = {}
    for split, indices in rows_of_splits(names).items():
        paths = [os.path.join(root, files[k]) for k in indices]
        if kind == "csv":
            columns = choose_columns(read_csv(paths[0]).features, source, reading)
            tables[split] = read_csv(paths[0], texts=[columns.image, columns.group, columns.split])
        elif kind == "parquet":
            columns = choose_columns(parquet_columns(paths[0]), source, reading)
            needed = list(dict.fromkeys(name for name in columns if name is not None))
            tables[split] = read_parquet(paths, needed, max_expansion=reading.max_expansion)
        else:
            tables[split] = datasets.concatenate_datasets(read_saved(paths))
    splits = table_splits(source, tables, roots=(os.path.realpath(root),), reading=reading)
    paths = [part.name(k) for part in splits.values() if isinstance(part.rows, FileRows) for k in range(len(part))]
    if paths and not any(os.path.exists(root / os.path.expanduser(path)) for path in paths):
        same = next((file for file in walk(root, EXTENSIONS)[0] if Path(file).name == Path(paths[0]).name), None)
        found = f"it was found at {same}: write paths like this" if same else "give paths relative to its folder"
        raise UserError(f"none of the {len(paths):,} files of {source} exists, as '{paths[0]}' in {root}; {found}")
    return splits


def read_csv(path: str, *, texts: Sequence[str | None] = ()) -> Dataset:
    """Read a CSV file whose first line has the names of the columns. An empty cell is null.

    The delimiter is the most frequent of comma, semicolon and tab in the first line.

    Args:
        path: the file.
        texts: columns that are read as text, so that the number 007 differs from 7.

    Raises:
        UserError: the file cannot be read, is no UTF-8 table, has no rows, or names a column twice.
    """
    with explain_errors(f"cannot read the table '{path}'", "give a CSV file in UTF-8"):
        check_file(Path(path))
        with open(path, "rb") as file:
            head = file.readline(2**20)
        types = {name: pa.string() for name in texts if name is not None}
        delimiter = max(",;\t", key=lambda mark: head.count(mark.encode()))
        table = pc.read_csv(
            path,
            parse_options=pc.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            convert_options=pc.ConvertOptions(
                column_types=types,
                null_values=[""],
                strings_can_be_null=True,
                true_values=[],  # "true" is a text, such as a label
                false_values=[],
            ),
        )
    names = table.column_names
    image = next((name for name in names if os.path.splitext(name)[1].lower() in EXTENSIONS), None)
    for wrong, received, remedy in (
        (len(set(names)) < len(names), f"has several columns of one name ({', '.join(names)})", "one name for each"),
        (image, f"has an image in its first line, '{image}'", "the names of the columns, such as path,label"),
        (not table.num_rows, "has no rows", "one line for each image after the names of the columns"),
    ):
        if wrong:
            raise UserError(f"the table '{path}' {received}, expected {remedy}")
    return Dataset(InMemoryTable(table), fingerprint="csv")
