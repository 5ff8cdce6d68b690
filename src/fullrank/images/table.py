"""Images in tables: Parquet files and data sets of the Hugging Face hub, read by the `datasets` library."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from datasets import config
from datasets.exceptions import DatasetNotFoundError, DatasetsError

from fullrank.errors import UserError, pick
from fullrank.images.decode import open_cell
from fullrank.images.source import Images, RawImage
from fullrank.images.splits import ALL, OTHER, split_of_file

LABELS = ("label", "labels", "fine_label")
MAX_BYTES_IN_MEMORY = 256 * 2**20  # limit for Parquet files in memory; every worker process has a copy


class TableImages(Images):
    """The rows of a `datasets.Dataset` with an image column and an optional label column."""

    def __init__(self, source: str, split: str, table: datasets.Dataset, image: str, label: str | None):
        self.source = source if split == ALL else f"{source}[{split}]"
        self.split, self.image = split, image
        self.images = table.select_columns([image]).cast_column(image, datasets.Image(decode=False))
        self.labels, self.classes = _labels(table, label)

    def name(self, index: int) -> str:
        return f"{self.split}[{index}]"

    def open(self, index: int) -> RawImage:
        return open_cell(self.images[index][self.image], self.name(index))


def image_column(features: Mapping[str, Any], source: str, requested: str | None = None) -> str:
    """Return the name of the image column: `requested`, or the only column of type Image or with `bytes` and `path`.

    Raises:
        UserError: the column does not exist or has no images, or there are several image columns.
    """
    if requested is not None:
        feature = pick(requested, features, f"column of {source}")
        if _is_image(feature) or (isinstance(feature, datasets.Value) and feature.dtype.endswith("binary")):
            return requested
        raise UserError(f"column '{requested}' of {source} contains {feature}, expected image files (bytes, or `bytes` and `path`)")
    found = [name for name, feature in features.items() if _is_image(feature)]
    if len(found) == 1:
        return found[0]
    count = "no image column" if not found else f"{len(found)} image columns ({', '.join(found)})"
    raise UserError(f"{source} has {count}; its columns are {', '.join(features)}; name the column with image=")


def label_column(features: Mapping[str, Any], source: str, requested: str | None = None) -> str | None:
    """Return the name of the label column: `requested`, `label`, `labels`, `fine_label`, or the only ClassLabel column; or None.

    Raises:
        UserError: the requested column does not exist, or contains neither integers nor strings.
    """
    if requested is not None:
        if _is_label(pick(requested, features, f"column of {source}")):
            return requested
        raise UserError(f"column '{requested}' of {source} contains {features[requested]}, expected integers, strings or a ClassLabel")
    usable = [name for name in LABELS if name in features and _is_label(features[name])]
    typed = [name for name, feature in features.items() if isinstance(feature, datasets.ClassLabel)]
    return usable[0] if usable else typed[0] if len(typed) == 1 else None


def _is_image(feature: Any) -> bool:
    return isinstance(feature, datasets.Image) or (isinstance(feature, dict) and {"bytes", "path"} <= feature.keys())


def _is_label(feature: Any) -> bool:
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
        names = sorted(set(values.to_pylist()) - {None})
        class_index = {name: k for k, name in enumerate(names)}
        return np.array([class_index.get(name, -1) for name in values.to_pylist()], dtype=np.int64), tuple(names)
    return _integers(values), ()


def _integers(values: pa.ChunkedArray) -> np.ndarray:
    return values.cast(pa.int64()).fill_null(-1).to_numpy().copy()  # copied, because torch warns about Arrow's read-only memory


def table_splits(
    source: str, tables: Mapping[str, datasets.Dataset], *, image: str | None = None, label: str | None = None
) -> dict[str, Images]:
    """Return the images of each split, in the given or detected image and label columns."""
    return {
        split: TableImages(source, split, table, image_column(table.features, source, image), label_column(table.features, source, label))
        for split, table in tables.items()
    }


def parquet_files(root: Path, files: list[str]) -> dict[str, list[str]]:
    """Group Parquet files by the split in their names: `"other"` has the files without a split; without any split, return `{"all": …}`."""
    split_of = {file: split_of_file(file) for file in files}
    rest = OTHER if any(split_of.values()) else ALL
    groups: dict[str, list[str]] = {}
    for file, split in split_of.items():
        groups.setdefault(split or rest, []).append(str(root / file))
    return dict(sorted(groups.items()))


def read_parquet(files: list[str]) -> datasets.Dataset:
    """Read the files of one split: small files into memory, large files through the cache of `datasets`.

    Raises:
        UserError: a file is unreadable, the files have different columns, or the cache cannot be written.
    """
    try:
        if sum(Path(file).stat().st_size for file in files) <= MAX_BYTES_IN_MEMORY:
            return datasets.Dataset(pa.concat_tables([pq.ParquetFile(file).read() for file in files]))
        return datasets.load_dataset("parquet", data_files=files, split="train")
    except (pa.ArrowException, DatasetsError, OSError) as error:
        raise UserError(f"cannot read Parquet '{files[0]}': {_first_line(error)}; {_remedy(error)}") from error


def _remedy(error: Exception) -> str:
    if isinstance(error, OSError) and not isinstance(error, pa.ArrowException):
        return "check the permissions of the file and of the folder HF_HOME"
    return "check that the file is complete, and that all files of a split have the same columns"


def load_from_hub(name: str, **options: Any) -> Any:
    """Load `OWNER/NAME`, or `OWNER/NAME:CONFIG` if a data set has several configurations. Its code is never run.

    Raises:
        UserError: the data set or configuration does not exist, access is denied, or there is neither a network nor a cached copy.
    """
    path, _, configuration = name.partition(":")
    try:
        return datasets.load_dataset(path, configuration or None, **options)
    except DatasetNotFoundError as error:
        raise UserError(
            f"the Hugging Face hub has no data set '{path}', or denies access; check hf:OWNER/NAME, or log in with `hf auth login`"
        ) from error
    except ConnectionError as error:
        raise UserError(
            f"cannot reach the Hugging Face hub for '{path}', and {config.HF_DATASETS_CACHE} has no copy; "
            "load the data set once with a network, or give local files as parquet:PATH"
        ) from error
    except (ValueError, RuntimeError, OSError, DatasetsError) as error:
        raise UserError(
            f"cannot load 'hf:{name}': {_first_line(error)}; choose a configuration with hf:OWNER/NAME:CONFIG, "
            "or give local files as parquet:PATH"
        ) from error


def _first_line(error: Exception) -> str:
    return (f"{error}".strip().splitlines() or [type(error).__name__])[0].rstrip(".")
