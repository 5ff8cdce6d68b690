"""Images that arrive one after the other, without random access: a set too big to download."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from fullrank.errors import UserError, pick
from fullrank.images.decode import open_cell
from fullrank.images.source import Images, Picture
from fullrank.images.source_uri import find_files, parse


class StreamedImage(NamedTuple):
    """One undecoded image of a stream."""

    name: str
    cell: dict[str, Any] | None
    label: int


@dataclass(frozen=True)
class StreamedImages:
    """A stream of images, shuffled within a buffer and shared out to processes; `open_stream` makes it.

    There is no random access: shuffling mixes only what the buffer holds, and a run that resumes begins a new epoch, whose order
    depends on the seed and on the step at which it resumes.
    """

    source: str
    rows: Any  # a datasets.IterableDataset, undecoded
    image: str
    label_column: str | None
    classes: tuple[str, ...]
    buffer: int

    def arrivals(self, *, seed: int, start: int = 0, rank: int = 0, world: int = 1) -> Iterator[StreamedImage]:
        """Yield this process's share of the images, epoch after epoch without end, in an order given by (seed, start)."""
        from datasets.distributed import split_dataset_by_node  # `datasets` takes a second to import

        mixed = int(np.random.SeedSequence(seed, spawn_key=(start,)).generate_state(1)[0])
        rows = split_dataset_by_node(self.rows.shuffle(seed=mixed, buffer_size=self.buffer), rank, world)
        for epoch in count():
            rows.set_epoch(epoch)
            number = -1
            for number, row in enumerate(rows):
                yield self._arrival(row, f"{self.source} epoch {epoch} process {rank} arrival {number}")
            if number < 0:
                raise UserError(f"nothing arrives from {self.source} for process {rank} of {world}; use fewer processes")

    def first(self, count: int, *, seed: int = 0) -> "StreamSample":
        """Wait for `count` images, or all there are in one epoch, and keep them undecoded."""
        mixed = int(np.random.SeedSequence(seed).generate_state(1)[0])
        rows = self.rows.shuffle(seed=mixed, buffer_size=self.buffer).take(count)
        return StreamSample(self, [self._arrival(row, f"{self.source} arrival {number}") for number, row in enumerate(rows)])

    def _arrival(self, row: dict[str, Any], place: str) -> StreamedImage:
        cell = row[self.image]
        label = row[self.label_column] if self.label_column else None
        return StreamedImage((cell and cell["path"]) or place, cell, label if isinstance(label, int) else -1)

    def name(self, arrival: StreamedImage) -> str:
        return arrival.name

    def label(self, arrival: StreamedImage) -> int:
        return arrival.label

    def open(self, arrival: StreamedImage) -> Picture:
        """Open an image that arrived; see `Images.open`."""
        return open_cell(arrival.cell, arrival.name)


class StreamSample(Images):
    """Some images of a stream, kept: random access to what has arrived."""

    def __init__(self, stream: StreamedImages, arrivals: list[StreamedImage]):
        self.stream, self.arrivals = stream, arrivals
        self.source, self.classes = stream.source, stream.classes
        self.labels = np.array([arrival.label for arrival in arrivals], dtype=np.int64)

    def name(self, index: int) -> str:
        return self.arrivals[index].name

    def open(self, index: int) -> Picture:
        return self.stream.open(self.arrivals[index])


def open_stream(
    source: str, *, split: str = "train", image: str | None = None, label: str | None = None, buffer: int = 1000
) -> StreamedImages:
    """Open one split of `hf:NAME`, or of Parquet files, as a stream: nothing is downloaded ahead or cached.

    Args:
        source: The SOURCE.
        split: The split; `all` where there are no named ones.
        image: The image column, where it is not found by its type.
        label: The label column, where it is not the ClassLabel or called `label`, `labels` or `fine_label`; words are no labels here.
        buffer: Images (undecoded) among which the next is drawn at random.

    Raises:
        UserError: no such data set, split or column, or a source that cannot be streamed.
    """
    import datasets

    from fullrank.images.hub import load_hub
    from fullrank.images.table import image_column, label_column, parquet_files

    scheme, rest = parse(source)
    if scheme == "hf":
        splits: Any = load_hub(rest, streaming=True)
    elif scheme in ("", "parquet") and (found := find_files(rest, scheme))[2]:
        splits = datasets.load_dataset("parquet", data_files=parquet_files(*found[:2]), streaming=True)
    else:
        raise UserError(f"'{source}' cannot be streamed, only hf:NAME and Parquet; its images have random access without that")
    rows, called = pick(split, splits, f"split of {source}"), f"{source}[{split}]"
    if rows.features is None:
        raise UserError(
            f"{called} does not declare its columns, so it cannot be streamed; take hf:NAME without streaming, or Parquet files"
        )
    column, labels = image_column(rows.features, called, image), label_column(rows.features, called, label)
    classes = tuple(getattr(rows.features[labels], "names", ())) if labels else ()
    rows = rows.select_columns([column, *([labels] if labels else [])]).cast_column(column, datasets.Image(decode=False))
    return StreamedImages(called, rows, column, labels, classes, buffer)
