"""Read Parquet files in small batches, with a bound on their expanded size: into memory, or into an Arrow file on
disk, as a table of the `datasets` library.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from pathlib import Path
from struct import unpack_from
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset, Features, IterableDataset
from datasets.config import HF_DATASETS_CACHE
from datasets.table import InMemoryTable
from filelock import FileLock

from fullrank.errors import UserError, explain_errors
from fullrank.files import atomic_write, check_file
from fullrank.images.reading import MAX_EXPANSION

MAX_BYTES_IN_MEMORY = 256 * 2**20  # limit for the expanded columns in memory; every worker process has a copy
BATCH_BYTES = 256 * 2**20  # limit for one batch of rows, even if every row refers to the largest value of a dictionary
MAX_ROWS = 1000  # rows per batch
MAX_STREAMED_ROWS = 32  # rows per batch of a stream: also if the metadata lie, it holds no more values
CACHE = Path(HF_DATASETS_CACHE)


def readable(file: str) -> AbstractContextManager[None]:
    """Turn every error of reading a table into a UserError; damaged files and untrusted metadata raise any type."""
    remedy = "check that it is complete and readable, and that all files of a split have the same columns"
    return explain_errors(f"cannot read '{file}'", remedy)


def parquet_columns(file: str) -> Features:
    """Return the columns of a Parquet file, with the types in its `huggingface` metadata if there are any.

    Raises:
        UserError: the file is unreadable, or its metadata do not describe its columns.
    """
    with readable(file):
        check_file(Path(file))
        return Features.from_arrow_schema(pq.read_schema(file))


def read_parquet(files: Sequence[str], columns: Sequence[str], *, max_expansion: int = MAX_EXPANSION) -> Dataset:
    """Read some columns of the files of one split.

    The size of a compressed file says little about the size of its rows, so the size is counted while reading. Columns
    of up to `MAX_BYTES_IN_MEMORY` stay in memory; larger columns are written once to the cache of the `datasets`
    library, and memory-mapped.

    Raises:
        UserError: a file is unreadable or expands too much, the files have different columns, or the cache cannot be
            written.
    """
    features = parquet_columns(files[0])
    schema = Features({name: features[name] for name in columns}).arrow_schema
    with readable(files[0]):
        status = [(os.path.abspath(file), os.stat(file).st_size, os.stat(file).st_mtime_ns) for file in files]
        text = json.dumps([f"{schema}", status])
        key = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        cached = CACHE / "fullrank" / f"{key}.arrow"
        if not cached.exists():
            batches, head, size = _batches(files, schema, max_expansion), [], 0
            for batch in batches:
                head.append(batch)
                if (size := size + batch.nbytes) > MAX_BYTES_IN_MEMORY:
                    break
            else:
                return Dataset(InMemoryTable(pa.Table.from_batches(head, schema)), fingerprint=key)
            _write(cached, schema, chain(head, batches))
        return Dataset.from_file(str(cached))


def stream_parquet(files: Sequence[str], *, max_expansion: int) -> IterableDataset:
    """Return the rows of the files of one split as a stream, whose expanded size is counted while it is read.

    Raises:
        UserError: the first file is unreadable; while reading: a file is, or expands too much.
    """
    features = parquet_columns(files[0])
    options = {"files": list(files), "schema": features.arrow_schema, "max_expansion": max_expansion}
    return IterableDataset.from_generator(_rows, features, gen_kwargs=options)


def _rows(files: Sequence[str], schema: pa.Schema, max_expansion: int) -> Iterator[dict[str, Any]]:
    for file in files:
        with readable(file):
            for batch in _batches([file], schema, max_expansion, MAX_STREAMED_ROWS):
                yield from batch.to_pylist()


def _batches(
    files: Sequence[str], schema: pa.Schema, max_expansion: int, max_rows: int = MAX_ROWS
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of all files in order, a few at a time, with the types of the first file.

    Raises:
        UserError: the rows are larger than `max_expansion` times the files (and than 256 MiB).
    """
    size, prefixes = 0, tuple(f"{name}." for name in schema.names)
    limit = max(max_expansion * sum(os.stat(file).st_size for file in files), MAX_BYTES_IN_MEMORY)
    for path in files:
        check_file(Path(path))
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                # With a dictionary, a few bytes per row may refer to one large value; no value is larger than its
                # uncompressed column.
                chunks = map(file.metadata.row_group(group).column, range(file.metadata.num_columns))
                own = [chunk for chunk in chunks if f"{chunk.path_in_schema}.".startswith(prefixes)]
                largest = sum(chunk.total_uncompressed_size for chunk in own)
                _check_expansion(size + largest, limit, files[0], max_expansion)
                rows = min(max(BATCH_BYTES // max(largest, 1), 1), max_rows)
                for batch in file.iter_batches(rows, row_groups=[group], columns=schema.names):
                    cast = batch.select(schema.names).cast(schema)
                    size += cast.nbytes
                    _check_expansion(size, limit, files[0], max_expansion)
                    yield cast


def _check_expansion(size: int, limit: int, file: str, max_expansion: int) -> None:
    if size > limit:
        remedy = "if you trust the file, increase --data.max-expansion"
        raise UserError(f"'{file}' expands to more than {max_expansion} times its size; {remedy}")


def _write(path: Path, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock"):  # one of several processes writes
        if path.exists():
            return
        with atomic_write(path) as draft, pa.OSFile(f"{draft}", "wb") as file, pa.ipc.new_stream(file, schema) as out:
            for batch in batches:
                out.write_batch(batch)


def read_saved(files: Sequence[str]) -> list[Dataset]:
    """Memory-map Arrow files that `save_to_disk` wrote.

    Raises:
        UserError: a file is damaged.
    """
    found = []
    for path in files:
        with readable(path):
            check_file(Path(path))
            with pa.memory_map(path) as source:  # compressed batches could expand to any size
                if any(map(_may_expand, pa.ipc.MessageReader.open_stream(source))):
                    raise ValueError("the file is compressed, which save_to_disk never does")
            with pa.memory_map(path) as source, pa.ipc.open_stream(source) as stream:
                for batch in stream:
                    batch.validate(full=True)  # Arrow would read outside the file for offsets that lead there
            found.append(Dataset.from_file(path))
    return found


def _may_expand(message: pa.ipc.Message) -> bool:
    """Return whether a message of Arrow's IPC format has compressed rows, or a dictionary, which `save_to_disk` never
    writes. A batch of rows is a flatbuffer, whose fields after the third are its compression and counts of views.
    """
    if message.type != "record batch":
        return message.type == "dictionary"
    data, table = message.metadata.to_pybytes(), unpack_from("<I", message.metadata)[0]
    fields = table - unpack_from("<i", data, table)[0]
    place = table + unpack_from("<H", data, fields + 8)[0]
    batch = place + unpack_from("<I", data, place)[0]
    return unpack_from("<H", data, batch - unpack_from("<i", data, batch)[0])[0] > 4 + 3 * 2
