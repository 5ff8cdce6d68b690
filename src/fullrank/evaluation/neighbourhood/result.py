"""The result of `neighbours`: arrays with one row for each image, and the tables that are made of them."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float, Float32, Int64

from fullrank.errors import UserError
from fullrank.evaluation.neighbourhood.duplicates import Duplicate
from fullrank.files import atomic_write
from fullrank.images import Images, MemoryImages, Preprocess

FILES = IMAGES, DUPLICATES, QUERIES = "images.parquet", "duplicates.parquet", "queries.parquet"
"""The files of `Neighbours.write`."""


@dataclass(frozen=True)
class Queries:
    """The nearest images of the images that were asked for."""

    names: list[str]
    indices: Int64[np.ndarray, "q k"]
    similarities: Float32[np.ndarray, "q k"]
    pictures: list[np.ndarray]
    """The preprocessed pixels (C, S, S), uint8."""


@dataclass(frozen=True)
class Neighbours:
    """The neighbourhood of every readable image of a source; a row is an image."""

    model: str
    source: str
    names: list[str]
    splits: list[str]
    """The split of each image."""
    labels: list[str | None]
    """The class of each image, or its number if the class has no name; None without a label."""
    indices: Int64[np.ndarray, "n k"]
    """The rows of the k nearest neighbours, the most similar first, over all splits."""
    similarities: Float32[np.ndarray, "n k"]
    """Their cosine similarities."""
    duplicates: list[Duplicate]
    positions: Float32[np.ndarray, "n 2"]
    """The place on the map; NaN for images that are not in its sample."""
    parts: dict[str, Images | MemoryImages]
    places: Int64[np.ndarray, " n"]
    """The index of each image in its split, among all images, readable or not."""
    preprocess: Preprocess
    threshold: float
    """The least correlation of near-duplicates."""
    queries: Queries | None = None
    skipped: tuple[str, ...] = ()
    """Names of the images that cannot be read."""

    def __len__(self) -> int:
        return len(self.names)

    @property
    def k(self) -> int:
        """Number of neighbours."""
        return self.indices.shape[1]

    @property
    def outlier_score(self) -> Float[np.ndarray, " n"]:
        """One minus the mean similarity of the k neighbours, in [0, 2]: the kNN score of Ramaswamy et al. 2000, with
        cosine distances.
        """
        return 1 - self.similarities.mean(axis=1, dtype=np.float64)

    @property
    def label_agreement(self) -> Float[np.ndarray, " n"]:
        """The share of the labelled neighbours with the label of the image; NaN without labels."""
        labels = np.array(self.labels, dtype=object)
        neighbours = labels[self.indices]
        labelled = (neighbours != None).sum(axis=1)  # noqa: E711  element by element
        same = ((neighbours == labels[:, None]) & (neighbours != None)).sum(axis=1)  # noqa: E711
        known = (labelled > 0) & (labels != None)  # noqa: E711
        return np.where(known, same / np.maximum(labelled, 1), np.nan)

    def outliers(self, count: int = 20) -> list[int]:
        """Return the rows with the largest outlier scores, the largest first."""
        return np.argsort(-self.outlier_score, kind="stable")[:count].tolist()

    def doubtful_labels(self, count: int = 20) -> list[int]:
        """Return rows whose neighbours agree on another label: none of them has the label of the image, and most have
        one other.

        The rows with the most similar neighbours come first. A doubtful label is a reason to look, and not an error.
        """
        wrong = [i for i in np.flatnonzero(self.label_agreement == 0) if self.usual_label(int(i))[1] > 0.5]
        return sorted((int(i) for i in wrong), key=lambda i: -float(self.similarities[i].mean()))[:count]

    def usual_label(self, row: int) -> tuple[str | None, float]:
        """Return the most frequent label of the neighbours of an image, and its share of the neighbours."""
        labels = [label for i in self.indices[row] if (label := self.labels[i]) is not None]
        if not labels:
            return None, 0.0
        best = max(dict.fromkeys(labels), key=labels.count)  # the first of equals is the label of the nearest
        return best, labels.count(best) / self.k

    def across_splits(self) -> dict[tuple[str, str], int]:
        """Return the number of duplicates for each pair of splits; the two splits of a pair may be equal."""
        order = list(self.parts)
        counts: dict[tuple[str, str], int] = {}
        for pair in self.duplicates:
            first, second = sorted((self.splits[pair.first], self.splits[pair.second]), key=order.index)
            counts[first, second] = counts.get((first, second), 0) + 1
        return counts

    def picture(self, row: int) -> np.ndarray:
        """Return the pixels (C, S, S) of an image as the network receives them before normalisation; the image is
        opened again.
        """
        images, place = self.parts[self.splits[row]], int(self.places[row])
        if isinstance(images, MemoryImages):
            return self.preprocess.pixels(images.pixels[place].permute(1, 2, 0).cpu().numpy()).numpy()
        return self.preprocess.pixels(images.open(place), name=self.names[row]).numpy()

    def to_table(self) -> pa.Table:
        """Return one row for each image: name, split, label, neighbours, similarities, outlier_score, label_agreement,
        x and y.
        """
        k, positions = self.k, self.positions
        columns: dict[str, Any] = {
            "name": _texts(self.names),
            "split": _texts(self.splits),
            "label": pa.array(self.labels, pa.string()),
            "neighbours": pa.FixedSizeListArray.from_arrays(pa.array(self.indices.ravel()), k),
            "neighbour_names": pa.array(
                [[_text(self.names[i]) for i in row] for row in self.indices], pa.list_(pa.string())
            ),
            "similarities": pa.FixedSizeListArray.from_arrays(pa.array(self.similarities.ravel()), k),
            "outlier_score": pa.array(self.outlier_score),
            "label_agreement": pa.array(self.label_agreement, from_pandas=True),  # NaN becomes null
            "x": pa.array(positions[:, 0], from_pandas=True),
            "y": pa.array(positions[:, 1], from_pandas=True),
        }
        return pa.table(columns)

    def duplicates_table(self) -> pa.Table:
        """Return one row for each pair: first, second, their names and splits, correlation, equal."""
        first, second = [pair.first for pair in self.duplicates], [pair.second for pair in self.duplicates]
        columns: dict[str, Any] = {
            "first": pa.array(first, pa.int64()),
            "second": pa.array(second, pa.int64()),
            "first_name": _texts(self.names[i] for i in first),
            "second_name": _texts(self.names[i] for i in second),
            "first_split": _texts(self.splits[i] for i in first),
            "second_split": _texts(self.splits[i] for i in second),
            "correlation": pa.array([pair.correlation for pair in self.duplicates], pa.float32()),
            "equal": pa.array([pair.equal for pair in self.duplicates], pa.bool_()),
        }
        return pa.table(columns)

    def queries_table(self) -> pa.Table:
        """Return one row for each query and neighbour: query, rank from 1, row, name, split, label, similarity.

        Raises:
            UserError: no query was given.
        """
        if self.queries is None:
            raise UserError("there are no queries; give images: query=['a.jpg']")
        rows = self.queries.indices.ravel().tolist()
        columns: dict[str, Any] = {
            "query": _texts(name for name in self.queries.names for _ in range(self.queries.indices.shape[1])),
            "rank": pa.array(np.tile(np.arange(1, self.queries.indices.shape[1] + 1), len(self.queries.names))),
            "row": pa.array(rows, pa.int64()),
            "name": _texts(self.names[i] for i in rows),
            "split": _texts(self.splits[i] for i in rows),
            "label": pa.array([self.labels[i] for i in rows], pa.string()),
            "similarity": pa.array(self.queries.similarities.ravel()),
        }
        return pa.table(columns)

    def write(self, folder: Path | str, *, overwrite: bool = False) -> Path:
        """Write `images.parquet`, `duplicates.parquet` and, with queries, `queries.parquet`; return the folder.

        With `overwrite`, a search without queries removes the `queries.parquet` of an earlier search.

        Raises:
            UserError: a file exists, or the folder cannot be written. No file is then changed.
        """
        tables = {IMAGES: self.to_table(), DUPLICATES: self.duplicates_table()}
        tables |= {QUERIES: self.queries_table()} if self.queries else {}
        with ExitStack() as stack:
            drafts = {
                name: stack.enter_context(atomic_write(Path(folder) / name, overwrite=overwrite)) for name in tables
            }
            for name, table in tables.items():
                pq.write_table(table, drafts[name])
        if overwrite and not self.queries:
            (Path(folder) / QUERIES).unlink(missing_ok=True)  # those of another search
        return Path(folder)


def _texts(values: Any) -> pa.Array:
    return pa.array([_text(value) for value in values], pa.string())


def _text(name: str) -> str:
    return name.encode("utf-8", "backslashreplace").decode()  # a file's name may be no UTF-8


def label_texts(labels: Sequence[int], classes: tuple[str, ...]) -> list[str | None]:
    """Return the names of labels, the number of a label without a name, and None for -1.

    >>> label_texts([0, -1, 7], ("cat",))
    ['cat', None, '7']
    """
    return [None if label < 0 else classes[label] if label < len(classes) else str(label) for label in labels]
