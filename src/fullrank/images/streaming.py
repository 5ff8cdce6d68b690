"""Streams of images without random access, for data sets that are too large to download."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from fullrank.arguments import parse_uri
from fullrank.errors import UserError, pick, printable
from fullrank.images.decode import open_cell
from fullrank.images.reading import MAX_PIXELS, USUAL, Reading
from fullrank.images.source import MAX_CLASSES, Images, RawImage
from fullrank.images.source_uri import find_files


class StreamedImage(NamedTuple):
    """One undecoded image of a stream."""

    name: str
    cell: Any  # bytes, or a dict with bytes and path
    label: int


@dataclass(frozen=True)
class StreamedImages:
    """A stream of images, shuffled in a buffer and divided among processes; `open_stream` builds it.

    There is no random access: only the images in the buffer are shuffled. A resumed run begins a new epoch, and its
    order depends on the seed and on the step at which the run resumes.
    """

    source: str
    rows: Any  # a datasets.IterableDataset, undecoded
    image_column: str
    label_column: str | None
    classes: tuple[str, ...]
    buffer_size: int
    root: str | None = None
    max_pixels: int = MAX_PIXELS

    def iterate(self, *, seed: int, start: int = 0, rank: int = 0, world_size: int = 1) -> Iterator[StreamedImage]:
        """Yield this process's share of the images, epoch after epoch without end, in an order given by (seed,
        start).
        """
        from datasets.distributed import split_dataset_by_node  # `datasets` takes a second to import

        shuffle_seed = int(np.random.SeedSequence(seed, spawn_key=(start,)).generate_state(1)[0])
        rows = split_dataset_by_node(
            self.rows.shuffle(seed=shuffle_seed, buffer_size=self.buffer_size), rank, world_size
        )
        for epoch in count():
            rows.set_epoch(epoch)
            index = -1
            for index, row in enumerate(rows):
                yield self._to_image(row, f"{self.source} epoch {epoch} process {rank} image {index}")
            if index < 0:
                raise UserError(f"{self.source} has no images for process {rank} of {world_size}; use fewer processes")

    def take(self, count: int, *, seed: int = 0) -> "StreamSample":
        """Return the first `count` images of the shuffled stream, undecoded; if the stream is shorter, return all
        images.
        """
        shuffle_seed = int(np.random.SeedSequence(seed).generate_state(1)[0])
        rows = self.rows.shuffle(seed=shuffle_seed, buffer_size=self.buffer_size).take(count)
        return StreamSample(
            self, [self._to_image(row, f"{self.source} image {index}") for index, row in enumerate(rows)]
        )

    def _to_image(self, row: dict[str, Any], default_name: str) -> StreamedImage:
        cell = row[self.image_column]
        label = row[self.label_column] if self.label_column else None
        path = cell["path"] if isinstance(cell, dict) else None
        return StreamedImage(
            path or default_name, cell, label if isinstance(label, int) and 0 <= label < MAX_CLASSES else -1
        )

    def name(self, image: StreamedImage) -> str:
        return image.name

    def label(self, image: StreamedImage) -> int:
        return image.label

    def open(self, image: StreamedImage) -> RawImage:
        """Open an image of the stream; see `Images.open`."""
        return open_cell(
            image.cell, image.name, root=self.root, below=[self.root] if self.root else [], max_pixels=self.max_pixels
        )


class StreamSample(Images):
    """Some images of a stream, with random access."""

    def __init__(self, stream: StreamedImages, images: list[StreamedImage]):
        self.stream, self.images = stream, images
        self.source, self.classes = stream.source, stream.classes
        self.labels = np.array([image.label for image in images], dtype=np.int64)

    def name(self, index: int) -> str:
        return self.images[index].name

    def open(self, index: int) -> RawImage:
        return self.stream.open(self.images[index])


def open_stream(
    source: str, reading: Reading = USUAL, *, split: str = "train", buffer_size: int = 1000
) -> StreamedImages:
    """Open one split of `hf:NAME` or of Parquet files as a stream, which neither downloads in advance nor caches.

    Args:
        source: The source URI.
        reading: How to read the source. A stream needs integer labels.
        split: Name of the split; `all` if there are no named splits.
        buffer_size: Number of undecoded images from which the next image is drawn at random.

    Raises:
        UserError: the data set, split or column is unknown, or the source cannot be streamed.
    """
    from fullrank.images.columns import read_columns
    from fullrank.images.parquet import check_expansion, parquet_columns, read_error
    from fullrank.images.table import choose_columns, import_datasets, load_from_hub, parquet_files

    datasets = import_datasets()
    scheme, rest = parse_uri(source)
    root = None
    if scheme == "hf":
        splits: Any = load_from_hub(rest, streaming=True)
    elif scheme in ("", "parquet") and (found := find_files(rest, scheme)).kind == "parquet":
        files, root = parquet_files(found.root, found.files), os.path.realpath(found.root)
        for file in (file for members in files.values() for file in members):
            parquet_columns(file)
            check_expansion(file, reading.max_expansion)
        try:
            splits = datasets.load_dataset("parquet", data_files=files, streaming=True)
        except Exception as error:  # `datasets` raises many types for damaged files
            raise read_error(rest, error) from error
    else:
        raise UserError(
            f"'{source}' cannot be streamed, only hf:NAME and Parquet files; use --data.storage disk for random access"
        )
    rows, name = pick(split, splits, f"split of {source}"), f"{source}[{split}]"
    if rows.features is None:
        raise UserError(
            f"{name} does not declare its columns, so streaming is impossible; use hf:NAME without streaming, or Parquet files"
        )
    columns = read_columns(rows.features.arrow_schema)
    column, labels = choose_columns(columns, name, reading)
    if isinstance(rows.features[column], datasets.Value) and rows.features[column].dtype in ("string", "large_string"):
        raise UserError(
            f"column '{column}' of {name} has paths, which cannot be streamed; use --data.storage disk for random access"
        )
    if reading.split_column is not None:
        raise UserError(
            f"data.split_column is {reading.split_column}, but a stream has the splits of its files; leave it out"
        )
    if (group := reading.group_column) is not None:  # the rows are not known in advance, so no group can be kept whole
        raise UserError(
            f"data.group_column is {group}, but a stream has no groups; use --data.storage disk, or leave it out"
        )
    classes = tuple(map(printable, columns[labels].names)) if labels else ()
    rows = rows.select_columns([column, *([labels] if labels else [])])
    if not isinstance(rows.features[column], datasets.Value):
        rows = rows.cast_column(column, datasets.Image(decode=False))
    return StreamedImages(name, rows, column, labels, classes, buffer_size, root, reading.max_pixels)
