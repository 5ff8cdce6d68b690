"""Images in tables: files of paths (CSV, Parquet), Parquet files of images, data sets of `save_to_disk` and of the
Hugging Face hub.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from huggingface_hub.constants import HF_HUB_CACHE

from fullrank.errors import UserError, pick, printable
from fullrank.images.columns import Column, DatasetRows, Rows, read_columns
from fullrank.images.csv_table import read_csv
from fullrank.images.decode import open_cell
from fullrank.images.decode_errors import ImageDecodeError, convert_errors
from fullrank.images.files import OutsideError, check_regular
from fullrank.images.parquet import CACHE, first_line, parquet_columns, read_error, read_parquet
from fullrank.images.reading import MAX_PIXELS, USUAL, Reading
from fullrank.images.source import Images, RawImage
from fullrank.images.splits import ALL, OTHER, split_of_file
from fullrank.images.table_labels import TableLabels, is_list, read_labels

LABELS = ("label", "labels", "fine_label")
OTHER_LABELS = ("class", "klass", "category", "target")
"""Names of label columns that count less than the type ClassLabel."""
PATHS = (
    "path",
    "image",
    "file",
    "image_path",
    "img_path",
    "file_path",
    "filepath",
    "file_name",
    "filename",
    "image_file",
)
"""Names of columns of paths."""
SPLIT = "split"
MAX_SPLITS = 100


class TableImages(Images):
    """The rows of a table with a column of images or of paths, and an optional label column.

    Args:
        source: The source URI.
        split: Name of the split.
        rows: The rows.
        image: The image column.
        label: Labels of the rows, the names of the classes, and what was decided about the labels.
        roots: Real paths of the folders that may contain the files which the rows name, the first for relative paths;
            None: any folder.
        max_pixels: Refuse an image with more pixels.
    """

    def __init__(
        self,
        source: str,
        split: str,
        rows: Rows,
        image: str,
        label: TableLabels,
        *,
        roots: Sequence[str] | None,
        max_pixels: int = MAX_PIXELS,
    ):
        self.source = source if split == ALL else f"{source}[{split}]"
        self.split, self.image, self.roots, self.max_pixels = split, image, roots, max_pixels
        self.rows = rows.select([image])
        self.labels, self.classes, self.notes, self.multi_labels = label
        self.has_paths = _is_text(self.rows.columns[image].type)

    def name(self, index: int) -> str:
        """Return the path in a table of paths, or `"train[17]"`."""
        return (self.has_paths and self.rows.cell(index, self.image)) or f"{self.split}[{index}]"

    def open(self, index: int) -> RawImage:
        with convert_errors(self.name(index)):
            cell = self.rows.cell(index, self.image)
            cell = {"path": cell} if self.has_paths else cell
        root = self.roots[0] if self.roots else None
        try:
            return open_cell(cell, self.name(index), root=root, below=self.roots, max_pixels=self.max_pixels)
        except ImageDecodeError as error:
            if self.has_paths and root and isinstance(error.__cause__, FileNotFoundError):
                raise ImageDecodeError(
                    error.name, f"{error.reason} (paths are relative to the folder of the table, {root})"
                ) from error
            if self.has_paths and isinstance(error.__cause__, OutsideError):
                raise ImageDecodeError(
                    error.name, f"{error.reason}; put the table into a folder that contains the images"
                ) from error
            raise


def image_column(columns: Mapping[str, Column], source: str, requested: str | None = None) -> str:
    """Return the name of the image column: `requested`, or the only column of type Image or with `bytes` and `path`, or
    of bytes; or else a column of texts with one of the names `PATHS`, which has the paths of files.

    Raises:
        UserError: the column does not exist or has no images, or there are several image columns.
    """
    if requested is not None:
        column = pick(requested, columns, f"column of {source}")
        if _is_image(column) or _is_bytes(column.type) or _is_text(column.type):
            return requested
        raise UserError(
            f"column '{requested}' of {source} contains {column}, expected image files (bytes, or `bytes` and `path`) or paths"
        )
    found = [name for name, column in columns.items() if _is_image(column)]
    found = found or [name for name, column in columns.items() if _is_bytes(column.type)]
    found = (
        found
        or [given for name in PATHS for given in columns if given.lower() == name and _is_text(columns[given].type)][:1]
    )
    if len(found) == 1:
        return found[0]
    count = "no image column" if not found else f"{len(found)} image columns ({', '.join(found)})"
    raise UserError(
        f"{source} has {count}; its columns are {', '.join(columns)}; name the column of images or paths with --data.image_column "
        "(Reading(image_column=…) in Python)"
    )


def label_column(columns: Mapping[str, Column], source: str, requested: str | None = None) -> str | None:
    """Return the name of the label column: `requested`, the first of `LABELS`, the only ClassLabel column, the first of
    `OTHER_LABELS`, in upper or lower case; or None.

    Raises:
        UserError: the requested column does not exist, or contains neither integers nor strings, nor lists of them.
    """
    if requested is not None:
        if _is_label(pick(requested, columns, f"column of {source}")):
            return requested
        raise UserError(
            f"column '{requested}' of {source} contains {columns[requested]}, expected integers, strings, lists of these or a ClassLabel"
        )
    usable = {name.lower(): name for name, column in reversed(list(columns.items())) if _is_label(column)}
    typed = [name for name, column in columns.items() if column.kind == "label"]
    candidates = (*LABELS, *(typed if len(typed) == 1 else ()), *OTHER_LABELS)
    return next((usable[name.lower()] for name in candidates if name.lower() in usable), None)


def _is_image(column: Column) -> bool:
    if not pa.types.is_struct(column.type):
        return False
    fields = {field.name: field.type for field in column.type}
    if not {"bytes", "path"} <= fields.keys():
        return False
    data, path = fields["bytes"], fields["path"]
    return (_is_bytes(data) or pa.types.is_null(data)) and (_is_text(path) or pa.types.is_null(path))


def _is_bytes(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _is_label(column: Column) -> bool:
    kind = column.type.value_type if is_list(column.type) else column.type
    return pa.types.is_integer(kind) or _is_text(kind)


def table_splits(
    source: str, tables: Mapping[str, Any], *, roots: Sequence[str] | None, reading: Reading = USUAL
) -> dict[str, Images]:
    """Return the images of each split, in the given or detected image and label columns.

    Args:
        source: The source URI.
        tables: `Rows` or a `datasets.Dataset` for each split.
        roots: Real paths of the folders that may contain the files which the rows name; None: any folder.
        reading: How to read the source.

    Raises:
        UserError: a column does not exist or has the wrong type, or the rows do not have the types of the columns.
    """
    splits: dict[str, Images] = {}
    groups: dict[str, pa.ChunkedArray] = {}
    opened = {split: table if isinstance(table, Rows) else DatasetRows(table) for split, table in tables.items()}
    columns = {split: choose_columns(rows.columns, source, reading) for split, rows in opened.items()}
    requested, separator = reading.label_column is not None, reading.label_separator
    with _row_errors(source, *next(iter(columns.values()))):
        named = [(rows, columns[split][1]) for split, rows in opened.items()]
        found = read_labels(named, requested=requested, separator=separator)
    for (split, rows), labels in zip(opened.items(), found, strict=True):
        image, label = columns[split]
        group, column_of_splits = further_columns(rows.columns, source, image, reading)
        with _row_errors(source, image, label):
            max_pixels = reading.max_pixels
            images = TableImages(source, split, rows, image, labels, roots=roots, max_pixels=max_pixels)
            parts = {} if column_of_splits is None else read_splits(rows, column_of_splits, source)
            if not parts:
                splits[split] = images
            for name, indices in parts.items():
                splits[name] = images.subset(indices)
                splits[name].source = f"{source}[{name}]"
            if group is not None:
                values = rows.column(group)
                groups |= (
                    {name: values.take(pa.array(indices)) for name, indices in parts.items()}
                    if parts
                    else {split: values}
                )
    for split, numbers in number_groups(groups).items():
        splits[split].groups = numbers
    return splits


@contextmanager
def _row_errors(source: str, image: str, label: str | None) -> Iterator[None]:
    """Turn an error of the rows into a UserError: those of a stranger's table need not have the types that its metadata
    declare.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"cannot read the columns '{image}' and '{label}' of {source}: {first_line(error)}; repair the file"
        ) from error


def further_columns(
    columns: Mapping[str, Column], source: str, image: str, reading: Reading
) -> tuple[str | None, str | None]:
    """Return the group column and the column of splits; None: no such column. A table of paths has its splits in the
    column `split`.

    Raises:
        UserError: a column that was asked for does not exist or has the wrong type.
    """
    found: list[str | None] = []
    for flag in ("group_column", "split_column"):
        name = getattr(reading, flag)
        if name is not None and (
            not _is_label(pick(name, columns, f"column of {source}")) or is_list(columns[name].type)
        ):
            raise UserError(
                f"column '{name}' of {source} contains {columns[name]}, expected integers or strings (--data.{flag})"
            )
        found.append(name)
    group, split = found
    if split is None and _is_text(columns[image].type):
        split = next(
            (name for name, column in columns.items() if name.lower() == SPLIT and _is_text(column.type)), None
        )
    return group, split


def read_splits(rows: Rows, column: str, source: str) -> dict[str, np.ndarray]:
    """Return the indices of the rows of each split, by the names in a column; rows without a name are the split
    `"other"`.

    Raises:
        UserError: the column has too many different values for splits.
    """
    names = rows.column(column).cast(pa.string()).fill_null(OTHER).combine_chunks().dictionary_encode()
    if len(names.dictionary) > MAX_SPLITS:
        raise UserError(
            f"column '{column}' of {source} has {len(names.dictionary)} different values, expected at most {MAX_SPLITS} splits, such as "
            "train and test; name another column with --data.split_column"
        )
    codes = names.indices.to_numpy(zero_copy_only=False)
    return {
        printable(name): np.flatnonzero(codes == k)
        for k, name in sorted(enumerate(names.dictionary.to_pylist()), key=lambda p: p[1])
    }


def number_groups(values: Mapping[str, pa.ChunkedArray]) -> dict[str, np.ndarray]:
    """Return the group of each row of each split: equal values have one number, in all splits; null is -1.

    >>> number_groups({"train": pa.chunked_array([["ann", None, "bob"]]), "test": pa.chunked_array([["bob"]])})
    {'train': array([ 0, -1,  1]), 'test': array([1])}
    """
    if not values:
        return {}
    columns = [column.cast(pa.string()) for column in values.values()]
    codes = (
        pa.chunked_array([chunk for column in columns for chunk in column.chunks], pa.string())
        .combine_chunks()
        .dictionary_encode()
    )
    ranks = np.argsort(np.argsort(np.array(codes.dictionary.to_pylist() or [""])))
    numbers = np.append(ranks, -1)[codes.indices.fill_null(-1).to_numpy(zero_copy_only=False)].astype(np.int64)
    return dict(zip(values, np.split(numbers, np.cumsum([len(column) for column in columns])[:-1]), strict=True))


def choose_columns(columns: Mapping[str, Column], source: str, reading: Reading) -> tuple[str, str | None]:
    """Return the image column and the label column; None: no labels.

    Raises:
        UserError: a column does not exist or has the wrong type, or there are several image columns.
    """
    if reading.labels == "folders":
        raise UserError(
            f"data.labels is folders, but {source} is a table; expected auto or none, or --data.label_column NAME"
        )
    label = None if reading.labels == "none" else label_column(columns, source, reading.label_column)
    return image_column(columns, source, reading.image_column), label


def open_tables(
    source: str, kind: Literal["parquet", "arrow", "csv"], root: Path, files: list[str], reading: Reading
) -> dict[str, Images]:
    """Return the images of each split of Parquet files, or of what `save_to_disk` wrote, or of a CSV file of paths."""
    tables = {}
    if kind == "csv":
        return _open_csv(source, root, files[0], reading)
    found = parquet_files(root, files) if kind == "parquet" else saved_files(root, files)
    if reading.split_column is not None:  # the column names the splits, not the files
        found = {ALL: [file for members in found.values() for file in members]}
    for split, members in found.items():
        if kind == "parquet":
            columns = parquet_columns(members[0])
            image, label = choose_columns(columns, source, reading)
            used = [image, label, *further_columns(columns, source, image, reading)]
            needed = list(dict.fromkeys(name for name in used if name is not None))
            tables[split] = read_parquet(members, needed, max_expansion=reading.max_expansion)
        else:
            tables[split] = read_saved(members)
    return table_splits(source, tables, roots=[os.path.realpath(root)], reading=reading)


def _open_csv(source: str, root: Path, file: str, reading: Reading) -> dict[str, Images]:
    named = [reading.image_column, reading.group_column, reading.split_column]
    columns = read_csv(root / file).columns
    for name in filter(None, named):
        pick(name, columns, f"column of {source}")
    image = image_column(columns, source, reading.image_column) if reading.image_column is None else None
    rows = read_csv(root / file, texts=[name for name in (*named, image) if name is not None])
    splits = table_splits(source, {ALL: rows}, roots=[os.path.realpath(root)], reading=reading)
    if reading.label_column is None and reading.labels == "auto" and label_column(columns, source) is None:
        known = " or ".join((*LABELS, *OTHER_LABELS))
        note = (
            f"no labels, because no column of the table is called {known} (--data.label_column NAME; its columns are "
        )
        for images in splits.values():
            images.notes = (*images.notes, f"{note}{', '.join(columns)})")
    return splits


def saved_files(root: Path, files: list[str]) -> dict[str, list[str]]:
    """Group the Arrow files of `save_to_disk` by split: a `DatasetDict` has a folder for each; without folders, return
    `{"all": …}`.
    """
    groups: dict[str, list[str]] = {}
    for file in files:
        folder, _, name = file.rpartition("/")
        if name.startswith(("data-", "dataset")):  # other files are caches of `datasets`
            groups.setdefault(folder or ALL, []).append(str(root / file))
    if not groups:
        raise UserError(
            f"'{root}' contains no images, Parquet files or files of save_to_disk (data-00000-of-00001.arrow)"
        )
    return groups


def read_saved(files: list[str]) -> Rows:
    """Memory-map the Arrow files of one split.

    Raises:
        UserError: a file is damaged.
    """
    try:
        for file in files:
            check_regular(os.stat(file))
            with pa.memory_map(file) as source, pa.ipc.open_stream(source) as stream:
                for batch in stream:
                    # `save_to_disk` does not compress. Compressed batches could expand to any size.
                    if batch.nbytes > 2 * os.stat(file).st_size:
                        raise ValueError("the file is compressed, which save_to_disk never does")
                    batch.validate(full=True)  # Arrow would read outside the file for offsets that lead there
        rows = Rows(files=files)
        read_columns(rows.table.schema)  # a stranger's metadata may have any form
        return rows
    except Exception as error:  # Arrow raises many types for damaged files
        raise read_error(files[0], error) from error


def parquet_files(root: Path, files: list[str]) -> dict[str, list[str]]:
    """Group Parquet files by the split in their names: `"other"` has the files without a split; without any split,
    return `{"all": …}`.
    """
    split_of = {file: split_of_file(file) for file in files}
    rest = OTHER if any(split_of.values()) else ALL
    groups: dict[str, list[str]] = {}
    for file, split in split_of.items():
        groups.setdefault(split or rest, []).append(str(root / file))
    return dict(sorted(groups.items()))


def hub_folders(name: str) -> list[str]:
    """Return the folders that may contain the files which the rows of a data set of the hub name: its copy, and what it
    unpacked.
    """
    repository = name.partition(":")[0].replace("/", "--")
    return [os.path.realpath(path) for path in (f"{HF_HUB_CACHE}/datasets--{repository}", f"{CACHE}/downloads")]


def import_datasets() -> Any:
    """Import the `datasets` library, which takes a second, and return it.

    Raises:
        UserError: it is not installed.
    """
    try:
        import datasets
    except ImportError as error:
        raise UserError(
            f"hf:NAME and streams need the package datasets ({error}); install it, or give local files as parquet:PATH"
        ) from error
    return datasets


def load_from_hub(name: str, **options: Any) -> Any:
    """Load `OWNER/NAME`, or `OWNER/NAME:CONFIG` if a data set has several configurations. Its code is never run.

    Raises:
        UserError: the data set or configuration does not exist, access is denied, or there is neither a network nor a
            cached copy.
    """
    datasets = import_datasets()
    from datasets.exceptions import DatasetNotFoundError, DatasetsError

    path, _, configuration = name.partition(":")
    try:
        return datasets.load_dataset(path, configuration or None, **options)
    except DatasetNotFoundError as error:
        raise UserError(
            f"the Hugging Face hub has no data set '{path}', or denies access; check hf:OWNER/NAME, or log in with `hf auth login`"
        ) from error
    except ConnectionError as error:
        raise UserError(
            f"cannot reach the Hugging Face hub for '{path}', and {CACHE} has no copy; "
            "load the data set once with a network, or give local files as parquet:PATH"
        ) from error
    except (ValueError, RuntimeError, OSError, DatasetsError) as error:
        raise UserError(
            f"cannot load 'hf:{name}': {first_line(error)}; choose a configuration with hf:OWNER/NAME:CONFIG, "
            "or give local files as parquet:PATH"
        ) from error
