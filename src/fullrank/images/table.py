"""Images in a table: Parquet files and data sets of the hub, read by the `datasets` library, undecoded until opened."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from datasets.exceptions import DatasetsError

from fullrank.errors import UserError, pick
from fullrank.images.decode import open_cell
from fullrank.images.names import ALL, OTHER, split_of_file
from fullrank.images.source import Images, Picture

LABELS = ("label", "labels", "fine_label")
IN_MEMORY = 256 * 2**20  # bytes of Parquet; every worker process holds a copy of what is in memory


class TableImages(Images):
    """The rows of a `datasets.Dataset` with an image column and perhaps a label column."""

    def __init__(self, source: str, split: str, table: datasets.Dataset, image: str, label: str | None):
        self.source = source if split == ALL else f"{source}[{split}]"
        self.split, self.image = split, image
        self.images = table.select_columns([image]).cast_column(image, datasets.Image(decode=False))
        self.labels, self.classes = _labels(table, label)

    def name(self, index: int) -> str:
        return f"{self.split}[{index}]"

    def open(self, index: int) -> Picture:
        return open_cell(self.images[index][self.image], self.name(index))


def image_column(features: Mapping[str, Any], source: str, wanted: str | None = None) -> str:
    """Find the image column: the wanted one, or the only one of type Image or with `bytes` and `path`.

    Raises:
        UserError: no such column, more than one, or one without images.
    """
    if wanted is not None:
        feature = pick(wanted, features, f"column of {source}")
        if _holds_images(feature) or (isinstance(feature, datasets.Value) and feature.dtype.endswith("binary")):
            return wanted
        raise UserError(f"column '{wanted}' of {source} holds {feature}; images are files, as bytes or with `bytes` and `path`")
    found = [name for name, feature in features.items() if _holds_images(feature)]
    if len(found) == 1:
        return found[0]
    count = "no image column" if not found else f"{len(found)} image columns ({', '.join(found)})"
    raise UserError(f"{source} has {count}; its columns are {', '.join(features)}; name one of them with image=")


def label_column(features: Mapping[str, Any], source: str, wanted: str | None = None) -> str | None:
    """Find the label column: the wanted one, one called `label`, `labels` or `fine_label`, or the only ClassLabel; else None.

    Raises:
        UserError: the wanted column does not exist, or holds neither integers nor words.
    """
    if wanted is not None:
        if _holds_labels(pick(wanted, features, f"column of {source}")):
            return wanted
        raise UserError(f"column '{wanted}' of {source} holds {features[wanted]}; labels are integers, words or a ClassLabel")
    usable = [name for name in LABELS if name in features and _holds_labels(features[name])]
    typed = [name for name, feature in features.items() if isinstance(feature, datasets.ClassLabel)]
    return usable[0] if usable else typed[0] if len(typed) == 1 else None


def _holds_images(feature: Any) -> bool:
    return isinstance(feature, datasets.Image) or (isinstance(feature, dict) and {"bytes", "path"} <= feature.keys())


def _holds_labels(feature: Any) -> bool:
    if isinstance(feature, datasets.ClassLabel):
        return True
    return isinstance(feature, datasets.Value) and feature.dtype.startswith(("int", "uint", "string", "large_string"))


def _labels(table: datasets.Dataset, column: str | None) -> tuple[np.ndarray, tuple[str, ...]]:
    if column is None:
        return np.full(len(table), -1, dtype=np.int64), ()
    values, feature = table.data.column(column), table.features[column]
    if isinstance(feature, datasets.ClassLabel):
        return _integers(values), tuple(feature.names)
    if feature.dtype.endswith("string"):
        words = sorted(set(values.to_pylist()) - {None})
        number = {word: k for k, word in enumerate(words)}
        return np.array([number.get(word, -1) for word in values.to_pylist()], dtype=np.int64), tuple(words)
    return _integers(values), ()


def _integers(values: pa.ChunkedArray) -> np.ndarray:
    return values.cast(pa.int64()).fill_null(-1).to_numpy().copy()  # a copy: torch warns of Arrow's read-only memory


def table_splits(
    source: str, tables: Mapping[str, datasets.Dataset], *, image: str | None = None, label: str | None = None
) -> dict[str, Images]:
    """Find the columns of each split and make sources of them."""
    return {
        split: TableImages(source, split, table, image_column(table.features, source, image), label_column(table.features, source, label))
        for split, table in tables.items()
    }


def parquet_files(root: Path, files: list[str]) -> dict[str, list[str]]:
    """Group Parquet files by split; `{"all": …}` where no name tells, `"other"` for those that tell none beside others that do."""
    split_of = {file: split_of_file(file) for file in files}
    rest = OTHER if any(split_of.values()) else ALL
    groups: dict[str, list[str]] = {}
    for file, split in split_of.items():
        groups.setdefault(split or rest, []).append(str(root / file))
    return dict(sorted(groups.items()))


def read_parquet(files: list[str]) -> datasets.Dataset:
    """Read the files of one split: small ones into memory, without a trace on disk; large ones through the cache of `datasets`.

    Raises:
        UserError: no readable Parquet, files that do not fit together, or a cache that cannot be written.
    """
    try:
        if sum(Path(file).stat().st_size for file in files) <= IN_MEMORY:
            return datasets.Dataset(pa.concat_tables([pq.ParquetFile(file).read() for file in files]))
        return datasets.load_dataset("parquet", data_files=files, split="train")
    except (pa.ArrowException, DatasetsError, OSError) as error:
        raise UserError(f"cannot read Parquet '{files[0]}': {first_line(error)}; {_remedy(error)}") from error


def _remedy(error: Exception) -> str:
    if isinstance(error, OSError) and not isinstance(error, pa.ArrowException):
        return "check its permissions, and that the folder of HF_HOME can be written"
    return "check that the file is complete, and that all files of a split have the same columns"


def first_line(error: Exception) -> str:
    return (f"{error}".strip().splitlines() or [type(error).__name__])[0].rstrip(".")
