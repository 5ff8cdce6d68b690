"""Images in tables: files of paths (CSV, Parquet), Parquet files of images, data sets of `save_to_disk` and of the
Hugging Face hub.
"""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc

from fullrank.errors import UserError, pick, printable
from fullrank.images.columns import LABELS, OTHER_LABELS, Chosen, HubTable, Table, choose_columns, read_columns
from fullrank.images.files import check_regular
from fullrank.images.folder import EXTENSIONS
from fullrank.images.labels import Labelled, read_labels
from fullrank.images.parquet import first_line, parquet_columns, read_error, read_parquet
from fullrank.images.reading import USUAL, Reading
from fullrank.images.source import Images
from fullrank.images.splits import ALL, by_split, named_source, split_of_file

MAX_SPLITS = 100


class TableRows:
    """The rows of a table with a column of images or of paths."""

    def __init__(self, table: Table, column: str, split: str) -> None:
        self.table, self.column, self.split = table.select([column]), column, split
        self.has_paths = table.columns[column].has_texts

    def __len__(self) -> int:
        return len(self.table)

    def name(self, index: int) -> str:
        """Return the path in a table of paths, or `"train[17]"`."""
        return (self.has_paths and self.cell(index)) or f"{self.split}[{index}]"

    def cell(self, index: int) -> Any:
        """Return the bytes of the image, its path, or both."""
        return self.table.cell(index, self.column)


def table_splits(
    source: str, tables: Mapping[str, Any], *, roots: Sequence[str] | None, reading: Reading = USUAL
) -> dict[str, Images]:
    """Return the images of each split, in the given or detected image and label columns.

    Args:
        source: The source URI.
        tables: A `Table` or a `datasets.Dataset` for each split.
        roots: Real paths of the folders that may contain the files which the rows name; None: any folder.
        reading: How to read the source.

    Raises:
        UserError: a column does not exist or has the wrong type, or the rows do not have the types of the columns.
    """
    opened = {split: table if isinstance(table, Table) else HubTable(table) for split, table in tables.items()}
    chosen = {split: choose_columns(table.columns, source, reading) for split, table in opened.items()}
    with _row_errors(source, next(iter(chosen.values()))):
        labels = _read_labels(opened, chosen, reading)
        splits = {}
        for split, table in opened.items():
            found, image = labels.get(split, Labelled(np.full(len(table), -1, dtype=np.int64))), chosen[split].image
            rows = TableRows(table, image, split)
            splits[split] = Images(
                named_source(source, split), rows, roots=roots, max_pixels=reading.max_pixels, **found._asdict()
            )
        if reading.group_column is not None:
            _set_groups(splits, {split: opened[split].column(reading.group_column) for split in splits})
        parts = {}
        for split, images in splits.items():
            name = chosen[split].split
            parts |= {split: images} if name is None else _split(images, source, name, opened[split].column(name))
    return parts


def _read_labels(tables: Mapping[str, Table], chosen: Mapping[str, Chosen], reading: Reading) -> dict[str, Labelled]:
    """Return the labels of the splits that have a label column."""
    columns = {split: name for split, columns in chosen.items() if (name := columns.label) is not None}
    if not columns:
        return {}
    values = {split: tables[split].column(name) for split, name in columns.items()}
    kinds = {split: tables[split].columns[name] for split, name in columns.items()}
    what = f"column '{next(iter(columns.values()))}'"
    if (separator := reading.label_separator) is not None:
        if not separator or any(kind.has_lists or kind.names for kind in kinds.values()):
            raise UserError(f"data.label_separator is '{separator}', but {what} has no texts to split; leave it out")
        values = {split: [_parts(cell, separator) for cell in part] for split, part in values.items()}
    names = {kind.names for kind in kinds.values() if kind.names or kind.has_texts}
    if len(names) > 1:  # the splits name or number their classes in different ways
        values = {split: [_named(cell, kinds[split].names) for cell in part] for split, part in values.items()}
    return read_labels(
        values,
        what,
        names=tuple(map(printable, names.pop())) if len(names) == 1 else (),
        requested=reading.label_column is not None,
        sure=separator is not None or any(kind.names for kind in kinds.values()),
    )


def _parts(cell: Any, separator: str) -> list[str] | None:
    return None if cell is None else [part for each in str(cell).split(separator) if (part := each.strip())]


def _named(cell: Any, names: Sequence[str]) -> Any:
    """Return the name of a class, or those of a list; None for no label."""
    if isinstance(cell, list):
        return [_named(label, names) for label in cell]
    if not isinstance(cell, int):
        return cell
    return None if cell < 0 else names[cell] if cell < len(names) else str(cell)


def _set_groups(splits: Mapping[str, Images], values: Mapping[str, Sequence[Any]]) -> None:
    """Number the groups: equal values have one number, in all splits; null is -1."""
    number = {
        value: k for k, value in enumerate(sorted({f"{x}" for part in values.values() for x in part if x is not None}))
    }
    for split, part in values.items():
        splits[split].groups = np.array([-1 if value is None else number[f"{value}"] for value in part], dtype=np.int64)


def _split(images: Images, source: str, column: str, names: Sequence[Any]) -> dict[str, Images]:
    """Return the images of each split that a column names.

    Raises:
        UserError: the column has too many different values for splits.
    """
    rows = by_split([None if name is None else f"{name}" for name in names])
    if len(rows) > MAX_SPLITS:
        raise UserError(
            f"column '{column}' of {source} has {len(rows)} different values, expected at most {MAX_SPLITS} splits, "
            "such as train and test; name another column with --data.split_column"
        )
    parts = {split: images.subset(indices) for split, indices in rows.items()}
    for split, part in parts.items():
        part.source = named_source(source, split)
    return parts


@contextmanager
def _row_errors(source: str, chosen: Chosen) -> Iterator[None]:
    """Turn an error of the rows into a UserError: those of a stranger's table need not have the types that its metadata
    declare.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        columns = f"'{chosen.image}' and '{chosen.label}'"
        raise UserError(
            f"cannot read the columns {columns} of {source}: {first_line(error)}; repair the file"
        ) from error


def open_tables(
    source: str, kind: Literal["parquet", "arrow", "csv"], root: Path, files: list[str], reading: Reading
) -> dict[str, Images]:
    """Return the images of each split of Parquet files, or of what `save_to_disk` wrote, or of a CSV file of paths."""
    roots = [os.path.realpath(root)]
    if kind == "csv":
        return _open_csv(source, Path(root, files[0]), reading, roots)
    if kind == "arrow":  # a `DatasetDict` has a folder for each split; other files are caches of `datasets`
        files = [file for file in files if file.rpartition("/")[2].startswith(("data-", "dataset"))]
        if not files:
            raise UserError(f"'{root}' contains no images, Parquet files or files of save_to_disk (data-*.arrow)")
    names = [split_of_file(file) if kind == "parquet" else file.rpartition("/")[0] or None for file in files]
    if reading.split_column is not None:  # the column names the splits, not the files
        names = [None] * len(files)
    tables = {}
    for split, indices in by_split(names).items():
        paths = [os.path.join(root, files[k]) for k in indices]
        if kind == "parquet":
            columns = choose_columns(parquet_columns(paths[0]), source, reading)
            needed = list(dict.fromkeys(name for name in columns if name is not None))
            tables[split] = read_parquet(paths, needed, max_expansion=reading.max_expansion)
        else:
            tables[split] = read_saved(paths)
    return table_splits(source, tables, roots=roots, reading=reading)


def read_saved(files: Sequence[str]) -> Table:
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
        table = Table(files=files)
        read_columns(table.table.schema)  # a stranger's metadata may have any form
        return table
    except Exception as error:  # Arrow raises many types for damaged files
        raise read_error(files[0], error) from error


def _open_csv(source: str, path: Path, reading: Reading, roots: list[str]) -> dict[str, Images]:
    columns = read_csv(path).columns
    for name in (reading.image_column, reading.group_column, reading.split_column):
        if name is not None:
            pick(name, columns, f"column of {source}")
    first = choose_columns(columns, source, Reading(image_column=reading.image_column, labels="none"))
    texts = (first.image, reading.group_column, reading.split_column)
    table = read_csv(path, texts=[name for name in texts if name is not None])
    splits = table_splits(source, {ALL: table}, roots=roots, reading=reading)
    if reading.labels == "auto" and choose_columns(table.columns, source, reading).label is None:
        known = " or ".join((*LABELS, *OTHER_LABELS))
        note = (
            f"no labels, because no column of the table is called {known} (--data.label_column NAME; its columns are "
        )
        for images in splits.values():
            images.notes = (*images.notes, f"{note}{', '.join(columns)})")
    return splits


def read_csv(path: Path, *, texts: Collection[str] = ()) -> Table:
    """Read a CSV file whose first line has the names of the columns. An empty cell is null.

    The delimiter is the most frequent of comma, semicolon and tab in the first line; in a `.tsv` file it is the tab.

    Args:
        path: the file.
        texts: columns that are read as text, so that the number 007 differs from 7.

    Raises:
        UserError: the file cannot be read, is no UTF-8 table, has no rows, or names a column twice.
    """
    try:
        check_regular(os.stat(path))
        with open(path, "rb") as file:
            head = file.readline(2**20)
        frequent = max(",;\t", key=lambda mark: head.count(mark.encode()))
        table = pc.read_csv(
            path,
            parse_options=pc.ParseOptions(
                delimiter="\t" if path.suffix.lower() == ".tsv" else frequent, newlines_in_values=True
            ),
            convert_options=pc.ConvertOptions(
                column_types={name: pa.string() for name in texts},
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
    except (OSError, ValueError) as error:  # Arrow's errors are ValueErrors
        reason = printable(getattr(error, "strerror", None) or first_line(error))
        raise UserError(
            f"cannot read the table '{path}': {reason}; give a CSV file in UTF-8, a line an image"
        ) from error
    names = table.column_names
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"the table '{path}' has several columns '{printable(twice[0])}', expected one name for each")
    if image := next((name for name in names if os.path.splitext(name)[1].lower() in EXTENSIONS), None):
        received = f"the first line of the table '{path}' has an image, '{printable(image)}'"
        raise UserError(f"{received}, expected the names of the columns; add a line such as path,label above it")
    if not table.num_rows:
        raise UserError(
            f"the table '{path}' has no rows, expected one line for each image after the names of the columns"
        )
    return Table(table)
