"""The columns of a table of images: their Arrow types, and what the `huggingface` metadata of the file say about
them.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from fullrank.errors import UserError, printable

IMAGE_TYPE = pa.struct({"bytes": pa.binary(), "path": pa.string()})
KINDS = {
    *("Value", "ClassLabel", "Image", "Audio", "Video", "Pdf", "Nifti", "Mesh", "Json", "BioSequence", "BioStructure"),
    *(
        "List",
        "LargeList",
        "Sequence",
        "Array2D",
        "Array3D",
        "Array4D",
        "Array5D",
        "Translation",
        "TranslationVariableLanguages",
    ),
}
"""The types of columns that the `datasets` library writes."""


@dataclass(frozen=True)
class Column:
    """The type of one column."""

    type: pa.DataType
    """The type of the values; for a dictionary, that of its values."""
    kind: Literal["image", "label"] | None = None
    """image: the metadata declare images; label: the metadata declare classes."""
    names: tuple[str, ...] = ()
    """The names of the classes."""

    def __str__(self) -> str:
        return f"{self.type}"


def read_columns(schema: pa.Schema) -> dict[str, Column]:
    """Return the columns of a table by name.

    The metadata count only for columns whose values have the declared type.

    Raises:
        UserError: the metadata name a type of column that is not known.
        ValueError: the metadata do not have the form that the `datasets` library writes.

    >>> features = {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}
    >>> metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    >>> read_columns(pa.schema({"label": pa.int64()}, metadata=metadata))["label"].names
    ('cat', 'dog')
    """
    declared = _declared(schema)
    columns = {}
    for field in schema:
        feature = declared.get(field.name)
        kind = feature.get("_type") if isinstance(feature, dict) else None
        if kind == "Image" and field.type == IMAGE_TYPE:
            columns[field.name] = Column(field.type, "image")
        elif kind == "ClassLabel" and field.type == pa.int64() and isinstance(feature, dict):
            columns[field.name] = Column(field.type, "label", tuple(map(str, feature.get("names") or ())))
        elif (
            isinstance(feature, dict)
            and isinstance(inner := feature.get("feature"), dict)
            and inner.get("_type") == "ClassLabel"
        ):
            columns[field.name] = Column(field.type, names=tuple(map(str, inner.get("names") or ())))
        else:
            columns[field.name] = Column(field.type.value_type if pa.types.is_dictionary(field.type) else field.type)
    return columns


def _declared(schema: pa.Schema) -> dict[str, Any]:
    """Return the column types in the metadata, by the name of the column; {} without metadata."""
    text = (schema.metadata or {}).get(b"huggingface")
    if text is None:
        return {}
    metadata = json.loads(text)
    info = metadata.get("info", {}) if isinstance(metadata, dict) else None
    features = (info.get("features") or {}) if isinstance(info, dict) else None
    if not isinstance(features, dict):
        raise ValueError("the metadata 'huggingface' of the file describe no columns")
    for name, feature in features.items():
        kind = feature.get("_type", "Value") if isinstance(feature, dict) else "Value"
        names = feature.get("names") if isinstance(feature, dict) and kind == "ClassLabel" else None
        if kind not in KINDS or not isinstance(names, list | None):
            received = f"column '{printable(str(name))}' as {printable(str(kind)):.40}"
            raise UserError(
                f"the metadata 'huggingface' describe {received}, expected a type of datasets 4; upgrade fullrank"
            )
    return features


class Rows:
    """The rows of an Arrow table, in memory or memory-mapped from files that a worker process opens again.

    Args:
        table: the rows; None: those of `files`.
        files: Arrow files (IPC streams) of one schema, which are memory-mapped.

    >>> rows = Rows(pa.table({"label": [3, 1]}))
    >>> len(rows), rows.cell(1, "label")
    (2, 1)
    """

    def __init__(self, table: pa.Table | None = None, *, files: Sequence[str | Path] = ()) -> None:
        self.files = tuple(map(str, files))
        self.table = pa.concat_tables(map(_memory_map, self.files)) if table is None else table

    def __len__(self) -> int:
        return self.table.num_rows

    def __reduce__(self) -> Any:
        return (_open_rows, (self.files, self.table.column_names)) if self.files else (Rows, (self.table,))

    @property
    def columns(self) -> dict[str, Column]:
        """The types of the columns."""
        return read_columns(self.table.schema)

    def cell(self, index: int, column: str) -> Any:
        """Return one value as a Python object."""
        return self.table.column(column)[int(index)].as_py()

    def column(self, name: str) -> pa.ChunkedArray:
        """Return all values of a column; a dictionary is replaced by its values."""
        values = self.table.column(name)
        return values.cast(values.type.value_type) if pa.types.is_dictionary(values.type) else values

    def select(self, columns: Sequence[str]) -> "Rows":
        """Return some of the columns."""
        rows = Rows(self.table.select(list(columns)))
        rows.files = self.files
        return rows


class DatasetRows(Rows):
    """The rows of a `datasets.Dataset`, which may select and reorder those of its table.

    Args:
        dataset: the data set.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset.with_format("arrow")

    def __len__(self) -> int:
        return len(self.dataset)

    def __reduce__(self) -> Any:
        return DatasetRows, (self.dataset,)

    @property
    def columns(self) -> dict[str, Column]:
        """The types of the columns."""
        return read_columns(self.dataset.features.arrow_schema)

    def cell(self, index: int, column: str) -> Any:
        """Return one value as a Python object."""
        return self.dataset[int(index)].column(column)[0].as_py()

    def column(self, name: str) -> pa.ChunkedArray:
        """Return all values of a column, as the indices of the data set select them."""
        return self.dataset.select_columns([name])[:].column(name)

    def select(self, columns: Sequence[str]) -> "DatasetRows":
        """Return some of the columns."""
        return DatasetRows(self.dataset.select_columns(list(columns)))


def _memory_map(file: str) -> pa.Table:
    with pa.memory_map(file) as source, pa.ipc.open_stream(source) as stream:
        return stream.read_all()


def _open_rows(files: Sequence[str], columns: Sequence[str]) -> Rows:
    return Rows(files=files).select(columns)
