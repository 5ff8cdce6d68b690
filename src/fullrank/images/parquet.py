"""Read Parquet files in small batches, with a bound on their expanded size: into memory, or into an Arrow file on
disk.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock
from huggingface_hub.constants import HF_HOME

from fullrank.errors import UserError
from fullrank.files import atomic_write
from fullrank.images.columns import Column, Table, read_columns
from fullrank.images.files import check_regular
from fullrank.images.reading import MAX_EXPANSION

MAX_BYTES_IN_MEMORY = 256 * 2**20  # limit for the expanded columns in memory; every worker process has a copy
BATCH_BYTES = 256 * 2**20  # limit for one batch of rows, even if every row refers to the largest value of a dictionary
MAX_ROWS = 1000  # rows per batch
CACHE = Path(os.getenv("HF_DATASETS_CACHE", os.path.join(HF_HOME, "datasets")))  # that of the `datasets` library


def parquet_columns(file: str) -> dict[str, Column]:
    """Return the columns of a Parquet file, with the types in its `huggingface` metadata if there are any.

    Raises:
        UserError: the file is unreadable, or its metadata do not describe its columns.
    """
    try:
        check_regular(os.stat(file))
        return read_columns(pq.read_schema(file))
    except Exception as error:  # strangers' metadata raise KeyError, TypeError, ValueError, …
        raise read_error(file, error) from error


def read_parquet(files: Sequence[str], columns: Sequence[str], *, max_expansion: int = MAX_EXPANSION) -> Table:
    """Read some columns of the files of one split.

    The size of a compressed file says little about the size of its rows, so the size is counted while reading. Columns
    of up to `MAX_BYTES_IN_MEMORY` stay in memory; larger columns are written once to the cache of the `datasets`
    library, and memory-mapped.

    Raises:
        UserError: a file is unreadable or expands too much, the files have different columns, or the cache cannot be
            written.
    """
    try:
        cached = _cache_path(files, columns)
        if not cached.exists():
            batches, size, stream = [], 0, _record_batches(files, columns, max_expansion)
            for batch in stream:
                batches.append(batch)
                size += batch.nbytes
                if size > MAX_BYTES_IN_MEMORY:
                    _write(cached, chain(batches, stream))
                    break
            else:
                table = pa.Table.from_batches(batches, schema=None if batches else pq.read_schema(files[0]))
                return Table(table).select(columns)
        return Table(files=[cached]).select(columns)
    except UserError:
        raise
    except Exception as error:  # Arrow raises many types for damaged files
        raise read_error(files[0], error) from error


def check_expansion(path: str, max_expansion: int) -> None:
    """Check the uncompressed size that the metadata of a file state.

    Raises:
        UserError: a row group is larger than `max_expansion` times the file (and than 256 MiB).
    """
    with pq.ParquetFile(path) as file:
        allowed = max(max_expansion * os.stat(path).st_size, MAX_BYTES_IN_MEMORY)
        for group in range(file.num_row_groups):
            _check_expansion(path, file.metadata.row_group(group).total_byte_size, allowed, max_expansion)


def _record_batches(files: Sequence[str], columns: Sequence[str], max_expansion: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of all files in order, a few at a time, with the metadata of the first file.

    Raises:
        UserError: the rows are larger than `max_expansion` times the files (and than 256 MiB).
    """
    allowed = max(max_expansion * sum(os.stat(file).st_size for file in files), MAX_BYTES_IN_MEMORY)
    for path in files:
        check_regular(os.stat(path))
    metadata = pq.read_schema(files[0]).metadata
    size = 0
    for path in files:
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                # With a dictionary, a few bytes per row may refer to one large value; no value is larger than its
                # uncompressed column.
                largest = _uncompressed_bytes(file.metadata.row_group(group), columns)
                _check_expansion(path, size + largest, allowed, max_expansion)
                rows = min(max(BATCH_BYTES // max(largest, 1), 1), MAX_ROWS)
                for batch in file.iter_batches(rows, row_groups=[group], columns=list(columns)):
                    size += batch.nbytes
                    _check_expansion(path, size, allowed, max_expansion)
                    yield batch.replace_schema_metadata(metadata)


def _uncompressed_bytes(group: Any, columns: Sequence[str]) -> int:
    chunks = (group.column(index) for index in range(group.num_columns))
    return sum(
        chunk.total_uncompressed_size
        for chunk in chunks
        if f"{chunk.path_in_schema}.".startswith(tuple(f"{c}." for c in columns))
    )


def _check_expansion(path: str, size: int, allowed: int, max_expansion: int) -> None:
    if size > allowed:
        raise UserError(
            f"Parquet '{path}' expands to more than {max_expansion} times its size (data.max_expansion); "
            "if you trust the file, increase --data.max_expansion"
        )


def _cache_path(files: Sequence[str], columns: Sequence[str]) -> Path:
    """Return the Arrow file for these columns of these files, as they are now."""
    status = [(os.path.abspath(file), os.stat(file).st_size, os.stat(file).st_mtime_ns) for file in files]
    text = json.dumps(["with metadata", status, list(columns)])
    key = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return CACHE / "fullrank" / f"{key[:32]}.arrow"


def _write(path: Path, batches: Iterator[pa.RecordBatch]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock"):  # one of several processes writes
        if path.exists():
            return
        with atomic_write(path) as temporary, pa.OSFile(str(temporary), "wb") as file:
            first = next(batches)
            with pa.ipc.new_stream(file, first.schema) as writer:
                for batch in chain([first], batches):
                    writer.write_batch(batch)


def read_error(file: str, error: Exception) -> UserError:
    """Return the error for a file that cannot be read."""
    if isinstance(error, OSError) and not isinstance(error, pa.ArrowException):
        remedy = "check the permissions of the file and of the folder HF_HOME"
    else:
        remedy = "check that it is complete, and that all files of a split have the same columns, as its metadata say"
    return UserError(f"cannot read Parquet '{file}': {first_line(error)}; {remedy}")


def first_line(error: Exception) -> str:
    """Return the first line of the message of an error, or its type."""
    return (f"{error}".strip().splitlines() or [type(error).__name__])[0].rstrip(".")
