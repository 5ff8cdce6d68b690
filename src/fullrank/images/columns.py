"""The columns of a table of images: their Arrow types, what the `huggingface` metadata of the file say about them, and
which of them hold images, labels, groups and splits.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from fullrank.errors import UserError, pick
from fullrank.images.reading import Reading

LABELS = ("label", "labels", "fine_label")
# Names of label columns that count less than the type ClassLabel.
OTHER_LABELS = ("class", "klass", "category", "target")
# Names of columns of paths.
PATHS = tuple(
    ["path", "image", "file", "image_path", "img_path", "file_path", "filepath", "file_name", "filename", "image_file"]
)
SPLIT = "split"


@dataclass(frozen=True)
class Column:
    """The type of one column.

    Attributes:
        type: The type of the values; for a dictionary, that of its values.
        is_label: Whether the metadata declare classes.
        names: The names of the classes.
    """

    type: pa.DataType
    is_label: bool = False
    names: tuple[str, ...] = ()

    @property
    def has_images(self) -> bool:
        """Whether the values are `bytes` and `path`."""
        if not pa.types.is_struct(self.type):
            return False
        kinds = {field.name: field.type for field in self.type}
        data, path = kinds.get("bytes"), kinds.get("path")
        return (
            data is not None
            and path is not None
            and (_is_bytes(data) or pa.types.is_null(data))
            and (_is_text(path) or pa.types.is_null(path))
        )

    @property
    def has_bytes(self) -> bool:
        """Whether the values are bytes."""
        return _is_bytes(self.type)

    @property
    def has_texts(self) -> bool:
        """Whether the values are texts, such as paths."""
        return _is_text(self.type)

    @property
    def has_lists(self) -> bool:
        """Whether the values are lists."""
        return (
            pa.types.is_list(self.type) or pa.types.is_large_list(self.type) or pa.types.is_fixed_size_list(self.type)
        )

    @property
    def may_be_label(self) -> bool:
        """Whether the values are integers or texts, or lists of these."""
        kind = self.type.value_type if self.has_lists else self.type
        return pa.types.is_integer(kind) or _is_text(kind)


def _is_bytes(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def read_columns(schema: pa.Schema) -> dict[str, Column]:
    """Return the columns of a table by name.

    The metadata count only for columns whose values have the declared type.

    Raises:
        ValueError: the metadata do not have the form that the `datasets` library writes.

    >>> features = {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}
    >>> metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    >>> read_columns(pa.schema({"label": pa.int64()}, metadata=metadata))["label"].names
    ('cat', 'dog')
    """
    metadata = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    info = metadata.get("info", {}) if isinstance(metadata, dict) else None
    declared = (info.get("features") or {}) if isinstance(info, dict) else None
    if not isinstance(declared, dict):
        raise ValueError("the metadata 'huggingface' of the file describe no columns")
    columns = {}
    for field in schema:
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        feature = declared.get(field.name)
        one = isinstance(feature, dict) and feature.get("_type") == "ClassLabel" and kind == pa.int64()
        inner = feature if one else feature.get("feature") if isinstance(feature, dict) else None
        is_class = isinstance(inner, dict) and inner.get("_type") == "ClassLabel"
        names = inner.get("names") if is_class and isinstance(inner, dict) else ()
        columns[field.name] = Column(kind, one, tuple(map(str, names)) if isinstance(names, list) else ())
    return columns


class Chosen(NamedTuple):
    """The names of the columns that are used; None: there is no such column."""

    image: str
    label: str | None
    group: str | None
    split: str | None


def choose_columns(columns: Mapping[str, Column], source: str, reading: Reading) -> Chosen:
    """Return the columns that are used: those that were asked for, or else

    - images: the only column with `bytes` and `path`, or of bytes, or a column of texts with one of the names `PATHS`;
    - labels: the first of `LABELS`, the only ClassLabel column, the first of `OTHER_LABELS`, in upper or lower case;
    - splits: in a table of paths, the column `split`.

    Raises:
        UserError: a column does not exist or has the wrong type, or there are no or several image columns.
    """
    if reading.labels == "folders":
        raise UserError(f"data.labels is folders, but {source} is a table; give auto or none, or --data.label_column")
    image = reading.image_column
    if image is None:
        image = _find_images(columns, source)
    elif not (
        (chosen := pick(image, columns, f"column of {source}")).has_images or chosen.has_bytes or chosen.has_texts
    ):
        raise UserError(f"column '{image}' of {source} contains {chosen.type}, expected images (bytes) or paths")
    for flag in ("label_column", "group_column", "split_column"):
        name = getattr(reading, flag)
        chosen = None if name is None else pick(name, columns, f"column of {source}")
        if chosen and (not chosen.may_be_label or (chosen.has_lists and flag != "label_column")):
            raise UserError(f"column '{name}' of {source} contains {chosen.type}, expected integers or texts ({flag})")
    label, split = reading.label_column, reading.split_column
    if label is None and reading.labels == "auto":
        label = _find_labels(columns)
    if split is None and columns[image].has_texts:
        split = next((name for name, column in columns.items() if name.lower() == SPLIT and column.has_texts), None)
    return Chosen(image, None if reading.labels == "none" else label, reading.group_column, split)


def _find_images(columns: Mapping[str, Column], source: str) -> str:
    found = [name for name, column in columns.items() if column.has_images]
    found = found or [name for name, column in columns.items() if column.has_bytes]
    if not found:
        found = [given for name in PATHS for given in columns if given.lower() == name and columns[given].has_texts][:1]
    if len(found) == 1:
        return found[0]
    count = f"{len(found)} image columns ({', '.join(found)})" if found else "no image column"
    raise UserError(
        f"{source} has {count}; its columns are {', '.join(columns)}; name the column of images or paths with "
        "--data.image_column (Reading(image_column=…) in Python)"
    )


def _find_labels(columns: Mapping[str, Column]) -> str | None:
    usable = {name.lower(): name for name, column in reversed(list(columns.items())) if column.may_be_label}
    typed = [name for name, column in columns.items() if column.is_label]
    candidates = (*LABELS, *(typed if len(typed) == 1 else ()), *OTHER_LABELS)
    return next((usable[name.lower()] for name in candidates if name.lower() in usable), None)


class Table:
    """An Arrow table, in memory or memory-mapped from files that a worker process opens again.

    Args:
        table: the table; None: that of `files`.
        files: Arrow files (IPC streams) of one schema, which are memory-mapped.

    >>> table = Table(pa.table({"label": [3, 1]}))
    >>> len(table), table.cell(1, "label")
    (2, 1)
    """

    def __init__(self, table: pa.Table | None = None, *, files: Sequence[str | Path] = ()) -> None:
        self.files = tuple(map(str, files))
        self.table = pa.concat_tables(map(_memory_map, self.files)) if table is None else table

    def __len__(self) -> int:
        return self.table.num_rows

    def __reduce__(self) -> Any:
        return (_reopen, (self.files, self.table.column_names)) if self.files else (Table, (self.table,))

    @property
    def columns(self) -> dict[str, Column]:
        """The types of the columns."""
        return read_columns(self.table.schema)

    def cell(self, index: int, column: str) -> Any:
        """Return one value as a Python object."""
        return self.table.column(column)[index].as_py()

    def column(self, name: str) -> list[Any]:
        """Return all values of a column as Python objects."""
        return self.table.column(name).to_pylist()

    def select(self, columns: Sequence[str]) -> "Table":
        """Return some of the columns."""
        table = Table(self.table.select(list(columns)))
        table.files = self.files
        return table


class HubTable(Table):
    """The rows of a `datasets.Dataset`, which may select and reorder those of its table."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset.with_format("arrow")

    def __len__(self) -> int:
        return len(self.dataset)

    def __reduce__(self) -> Any:
        return HubTable, (self.dataset,)

    @property
    def columns(self) -> dict[str, Column]:
        """The types of the columns."""
        return read_columns(self.dataset.features.arrow_schema)

    def cell(self, index: int, column: str) -> Any:
        """Return one value as a Python object."""
        return self.dataset[index].column(column)[0].as_py()

    def column(self, name: str) -> list[Any]:
        """Return all values of a column, as the indices of the data set select them."""
        return self.dataset.select_columns([name])[:].column(name).to_pylist()

    def select(self, columns: Sequence[str]) -> "HubTable":
        """Return some of the columns."""
        return HubTable(self.dataset.select_columns(list(columns)))


def _memory_map(file: str) -> pa.Table:
    with pa.memory_map(file) as source, pa.ipc.open_stream(source) as stream:
        return stream.read_all()


def _reopen(files: Sequence[str], columns: Sequence[str]) -> Table:
    return Table(files=files).select(columns)
