"""The Hugging Face hub: data sets with random access, and streams, for data sets that are too large to download."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from huggingface_hub.constants import HF_HUB_CACHE

from fullrank.errors import UserError, pick, printable
from fullrank.images.columns import choose_columns, read_columns
from fullrank.images.decode import RawImage
from fullrank.images.parquet import CACHE, check_expansion, first_line, parquet_columns, read_error
from fullrank.images.reading import MAX_PIXELS, USUAL, Reading
from fullrank.images.source import MAX_CLASSES, Images, open_cell
from fullrank.images.source_uri import find_files
from fullrank.images.splits import by_split, split_of_file
from fullrank.images.table import table_splits
from fullrank.images.uri import parse_uri


def open_hub(source: str, name: str, reading: Reading) -> dict[str, Images]:
    """Return the images of each split of a data set of the hub.

    Files that the rows name are read only in the copy of the data set and in what it unpacked.
    """
    repository = name.partition(":")[0].replace("/", "--")
    roots = [os.path.realpath(path) for path in (f"{HF_HUB_CACHE}/datasets--{repository}", f"{CACHE}/downloads")]
    return table_splits(source, load_from_hub(name), roots=roots, reading=reading)


def load_from_hub(name: str, **options: Any) -> Any:
    """Load `OWNER/NAME`, or `OWNER/NAME:CONFIG` if a data set has several configurations. Its code is never run.

    Raises:
        UserError: the data set or configuration does not exist, access is denied, or there is neither a network nor a
            cached copy.
    """
    datasets = import_datasets()
    from datasets.exceptions import DatasetNotFoundError, DatasetsError

    path, _, configuration = name.partition(":")
    try:
        return datasets.load_dataset(path, configuration or None, **options)
    except DatasetNotFoundError as error:
        raise UserError(
            f"the Hugging Face hub has no data set '{path}', or denies access; check hf:OWNER/NAME, or log in with "
            "`hf auth login`"
        ) from error
    except ConnectionError as error:
        raise UserError(
            f"cannot reach the Hugging Face hub for '{path}', and {CACHE} has no copy; "
            "load the data set once with a network, or give local files as parquet:PATH"
        ) from error
    except (ValueError, RuntimeError, OSError, DatasetsError) as error:
        raise UserError(
            f"cannot load 'hf:{name}': {first_line(error)}; choose a configuration with hf:OWNER/NAME:CONFIG, "
            "or give local files as parquet:PATH"
        ) from error


def import_datasets() -> Any:
    """Import the `datasets` library, which takes a second, and return it.

    Raises:
        UserError: it is not installed.
    """
    try:
        import datasets
    except ImportError as error:
        raise UserError(
            f"hf:NAME and streams need the package datasets ({error}); install it, or give local files as parquet:PATH"
        ) from error
    return datasets


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
    roots: tuple[str, ...] = (os.devnull,)
    max_pixels: int = MAX_PIXELS

    def iterate(self, *, seed: int, start: int = 0, rank: int = 0, world_size: int = 1) -> Iterator[StreamedImage]:
        """Yield this process's share of the images, epoch after epoch without end, in an order given by (seed,
        start).
        """
        from datasets.distributed import split_dataset_by_node  # `datasets` takes a second to import

        rows = split_dataset_by_node(self._shuffled(seed, (start,)), rank, world_size)
        for epoch in count():
            rows.set_epoch(epoch)
            index = -1
            for index, row in enumerate(rows):
                yield self._to_image(row, f"{self.source} epoch {epoch} process {rank} image {index}")
            if index < 0:
                raise UserError(f"{self.source} has no images for process {rank} of {world_size}; use fewer processes")

    def take(self, count: int, *, seed: int = 0) -> Images:
        """Return the first `count` images of the shuffled stream, undecoded; if the stream is shorter, return all
        images.
        """
        rows = enumerate(self._shuffled(seed, ()).take(count))
        images = StreamedRows([self._to_image(row, f"{self.source} image {index}") for index, row in rows])
        labels = np.array([image.label for image in images], dtype=np.int64)
        return Images(
            self.source, images, labels=labels, classes=self.classes, roots=self.roots, max_pixels=self.max_pixels
        )

    def _shuffled(self, seed: int, key: tuple[int, ...]) -> Any:
        shuffle_seed = int(np.random.SeedSequence(seed, spawn_key=key).generate_state(1)[0])
        return self.rows.shuffle(seed=shuffle_seed, buffer_size=self.buffer_size)

    def _to_image(self, row: dict[str, Any], default_name: str) -> StreamedImage:
        cell = row[self.image_column]
        label = row[self.label_column] if self.label_column else None
        path = cell["path"] if isinstance(cell, dict) else None
        number = label if isinstance(label, int) and 0 <= label < MAX_CLASSES else -1
        return StreamedImage(path or default_name, cell, number)

    def name(self, image: StreamedImage) -> str:
        """Return the name of an image of the stream."""
        return image.name

    def label(self, image: StreamedImage) -> int:
        """Return the label of an image of the stream."""
        return image.label

    def open(self, image: StreamedImage) -> RawImage:
        """Open an image of the stream; see `Images.open`."""
        return open_cell(image.cell, image.name, roots=self.roots, max_pixels=self.max_pixels)


class StreamedRows(list[StreamedImage]):
    """Some images of a stream, with random access."""

    def name(self, index: int) -> str:
        """Return the name of an image."""
        return self[index].name

    def cell(self, index: int) -> Any:
        """Return the undecoded image."""
        return self[index].cell


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
    datasets = import_datasets()
    for flag in ("split_column", "group_column"):  # the rows are not known in advance, so no group can be kept whole
        if (name := getattr(reading, flag)) is not None:
            raise UserError(f"data.{flag} is {name}, but a stream has none; use --data.storage disk, or leave it out")
    scheme, rest = parse_uri(source)
    roots = (os.devnull,)  # no file may be read
    if scheme == "hf":
        splits: Any = load_from_hub(rest, streaming=True)
    elif scheme in ("", "parquet") and (found := find_files(rest, scheme)).kind == "parquet":
        roots = (os.path.realpath(found.root),)
        for file in found.files:
            parquet_columns(str(found.root / file))
            check_expansion(str(found.root / file), reading.max_expansion)
        parts = by_split([split_of_file(file) for file in found.files])
        files = {name: [str(found.root / found.files[k]) for k in indices] for name, indices in parts.items()}
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
        raise UserError(f"{name} does not declare its columns, so it cannot be streamed; use --data.storage disk")
    columns = read_columns(rows.features.arrow_schema)
    image, label, _, _ = choose_columns(columns, name, reading)
    if columns[image].has_texts:
        raise UserError(f"column '{image}' of {name} has paths, which cannot be streamed; use --data.storage disk")
    rows = rows.select_columns([image, *([label] if label else [])])
    if not isinstance(rows.features[image], datasets.Value):
        rows = rows.cast_column(image, datasets.Image(decode=False))
    classes = tuple(map(printable, columns[label].names)) if label else ()
    return StreamedImages(name, rows, image, label, classes, buffer_size, roots, reading.max_pixels)
