"""Streams, for data sets of the hub, Parquet files and tar shards that are too large to download or to copy.

The `datasets` library, which takes a second to import, is imported where a stream is opened.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np

from fullrank.errors import UserError, explain_errors, pick, printable
from fullrank.images.labels import MAX_CLASSES, rows_of_splits, split_of_file
from fullrank.images.reading import MAX_PIXELS, USUAL, Reading
from fullrank.images.shards import open_local, stream_shards
from fullrank.images.source import Images, ItemRows
from fullrank.images.source_uri import FILES, find_files, is_remote, parse_uri


class StreamedImage(NamedTuple):
    """One undecoded image of a stream."""

    name: str
    cell: Any  # bytes, or a dict with bytes and path
    label: int


@dataclass(frozen=True)
class StreamedImages:
    """A stream of images, shuffled in a buffer and divided among processes; `open_stream` builds it.

    There is no random access: only the images in the buffer are shuffled, and to go on where a run was, the stream
    reads again what the run has used of its last pass.
    """

    source: str
    rows: Any  # a datasets.IterableDataset, undecoded
    image_column: str
    label_column: str | None
    classes: tuple[str, ...]
    buffer_size: int
    roots: tuple[str, ...] = (os.devnull,)
    max_pixels: int = MAX_PIXELS

    def iterate(
        self, *, seed: int, start: int = 0, rank: int = 0, world_size: int = 1, pass_ends: list[int] | None = None
    ) -> Iterator[StreamedImage]:
        """Yield this process's share of the images, pass after pass without end. The order is that of the `datasets`
        library for the seed, and another one in each pass.

        Args:
            seed: Seed of the order.
            start: Number of images of this process that were used before.
            rank: Index of this process.
            world_size: Number of processes.
            pass_ends: The number of images of this process up to the end of each pass so far. The passes that ended by
                `start` are not read again; later ends are replaced by those that are found.

        Raises:
            UserError: there are no images for this process.
        """
        from datasets.distributed import split_dataset_by_node

        ends = [] if pass_ends is None else pass_ends
        ends[:] = [end for end in ends if end <= start]
        begin = ends[-1] if ends else 0
        for number in count(len(ends)):
            index = -1
            for index, row in enumerate(split_dataset_by_node(self._shuffled(seed, (number,)), rank, world_size)):
                if begin + index >= start:
                    yield self._to_image(row, f"{self.source} pass {number} process {rank} image {index}")
            if index < 0:
                missing = f"{self.source} has no images for process {rank} of {world_size} in pass {number}"
                raise UserError(f"{missing}; use fewer processes, or leave out empty files")
            begin += index + 1
            ends.append(begin)

    def take(self, count: int, *, seed: int = 0) -> Images:
        """Return the first `count` images of the shuffled stream, undecoded; if the stream is shorter, return all
        images.
        """
        rows = enumerate(self._shuffled(seed, ()).take(count))
        return self.collect([self._to_image(row, f"{self.source} image {index}") for index, row in rows])

    def collect(self, images: list[StreamedImage]) -> Images:
        """Return images of the stream with random access."""
        labels = np.array([image.label for image in images], dtype=np.int64)
        rows = ItemRows([image.cell for image in images], [image.name for image in images])
        return Images(self.source, rows, labels, self.classes, roots=self.roots, max_pixels=self.max_pixels)

    def _shuffled(self, seed: int, key: tuple[int, ...]) -> Any:
        shuffle_seed = int(np.random.SeedSequence(seed, spawn_key=key).generate_state(1)[0])
        return self.rows.shuffle(seed=shuffle_seed, buffer_size=self.buffer_size)

    def _to_image(self, row: dict[str, Any], default_name: str) -> StreamedImage:
        cell = row[self.image_column]
        label = row[self.label_column] if self.label_column else None
        path = cell["path"] if isinstance(cell, dict) else None
        number = label if isinstance(label, int) and 0 <= label < MAX_CLASSES else -1
        return StreamedImage(path or default_name, cell, number)


def open_stream(
    source: str, reading: Reading = USUAL, *, split: str = "train", buffer_size: int = 1000
) -> StreamedImages:
    """Open one split of `hf:NAME`, of Parquet files or of tar shards as a stream, which neither downloads in advance
    nor caches.

    Args:
        source: The source URI, or an address such as `s3://bucket/shards` or `https://host/train-*.tar`: a file, files
            with `*`, or a folder. The library fsspec reads it, with the credentials of the environment.
        reading: How to read the source. A stream needs integer labels.
        split: Name of the split; `all` if there are no named splits.
        buffer_size: Number of undecoded images from which the next image is drawn at random.

    Raises:
        UserError: the data set, split or column is unknown, or the source cannot be streamed.
    """
    import datasets

    from fullrank.images.parquet import stream_parquet
    from fullrank.images.table import choose_columns, class_names, load_from_hub

    for flag in ("split_column", "group_column"):  # the rows are not known in advance, so no group can be kept whole
        if (name := getattr(reading, flag)) is not None:
            raise UserError(f"data.{flag} is {name}, but a stream has none; use --data.storage disk, or leave it out")
    scheme, rest = parse_uri(source)
    local_files = partial(find_files, follow_links=reading.follow_links)
    roots = (os.devnull,)  # no file may be read
    if scheme == "hf":
        splits: Any = load_from_hub(rest, streaming=True)
    elif is_remote(source):
        splits = open_remote(source, reading)
    elif scheme in ("", "parquet") and (found := local_files(rest, scheme)).kind in ("parquet", "tar"):
        roots = (os.path.realpath(found.root),)
        rows = rows_of_splits([split_of_file(file) for file in found.files])
        files = {name: [str(found.root / found.files[k]) for k in indices] for name, indices in rows.items()}
        if found.kind == "tar":
            splits = {name: stream_shards(paths, open_local, reading) for name, paths in files.items()}
        else:
            splits = {name: stream_parquet(paths, max_expansion=reading.max_expansion) for name, paths in files.items()}
    else:
        known = "hf:NAME, Parquet files, tar shards, and addresses such as s3://bucket/folder"
        raise UserError(f"'{source}' cannot be streamed, only {known}; use --data.storage disk")
    rows, name = pick(split, splits, f"split of {source}"), f"{source}[{split}]"
    if rows.features is None:
        raise UserError(f"{name} does not declare its columns, so it cannot be streamed; use --data.storage disk")
    columns = choose_columns(rows.features, name, reading)
    image, label = columns.image, columns.label
    kind, classes = rows.features[image], class_names(rows.features[label]) if label else ()
    rows = rows.select_columns([image, *([label] if label else [])])
    if not isinstance(kind, datasets.Value):
        rows = rows.cast_column(image, datasets.Image(decode=False))
    elif "string" in kind.dtype:
        raise UserError(f"column '{image}' of {name} has paths, which cannot be streamed; use --data.storage disk")
    names = tuple(map(printable, classes))
    return StreamedImages(name, rows, image, label, names, buffer_size, roots, reading.max_pixels)


def open_remote(source: str, reading: Reading) -> Any:
    """Return the splits of the Parquet files or tar shards at an address, as streams of the `datasets` library.

    Raises:
        UserError: there is no such file, nothing can be read there, or the address contains a password.
    """
    import datasets
    import fsspec

    if "?" in source or "@" in urlsplit(source).netloc:
        remedy = "give credentials in the environment: the address is written into recipe.json"
        raise UserError(f"the {urlsplit(source).scheme} address has a query or a password, expected none; {remedy}")
    reachable = partial(explain_errors, f"cannot stream '{source}'", "check the address, your access and the network")
    with reachable():
        filesystem, path = fsspec.core.url_to_fs(source)
        names = sorted(filesystem.glob(path) if "*" in path else filesystem.find(path))
    found = {name: FILES.get(os.path.splitext(name)[1].lower()) for name in names}
    files = [name for name, kind in found.items() if kind in ("parquet", "tar")]
    kinds = sorted({str(found[name]) for name in files})
    if len(kinds) != 1:
        remedy = "expected Parquet files or tar shards; check the address and your access"
        raise UserError(f"'{source}' has {' and '.join(kinds) or 'no .parquet or .tar'} files; {remedy}")
    root = path.partition("*")[0].rpartition("/")[0] if "*" in path or names == [path] else path
    rows = rows_of_splits([split_of_file(name.removeprefix(root).lstrip("/")) for name in files])
    parts = {split: [files[k] for k in indices] for split, indices in rows.items()}
    if kinds == ["tar"]:
        opener = partial(filesystem.open, mode="rb")
        return {split: stream_shards(part, opener, reading) for split, part in parts.items()}
    addresses = {split: [filesystem.unstrip_protocol(name) for name in part] for split, part in parts.items()}
    with reachable():
        return datasets.load_dataset("parquet", data_files=addresses, streaming=True)
