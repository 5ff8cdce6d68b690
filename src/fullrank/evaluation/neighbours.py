"""`neighbours`: what lies close together in a set of images, and what lies alone: nearest neighbours, near-duplicates,
outliers and likely label errors.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.nn.functional as F
from jaxtyping import Float, Float32, Int64, UInt8
from rich.console import Console, ConsoleOptions
from rich.table import Table
from rich.text import Text
from torch import Tensor

from fullrank.errors import UserError, printable, utf8
from fullrank.evaluation.nearest import nearest
from fullrank.evaluation.score import percent
from fullrank.evaluation.task import AnyImages, Notify, silent
from fullrank.evaluation.verdict import standard_error
from fullrank.files import atomic_write
from fullrank.images import DecodeErrors, Device, Preprocess, Reading, as_images
from fullrank.images.memory import given_images, read_pixels
from fullrank.images.preprocess import to_8_bits, to_16_bits
from fullrank.models import load, resolve_device
from fullrank.models.features import embedded_batches
from fullrank.models.model import ModelLike, with_depth
from fullrank.models.model_images import Data, open_parts

# Side of the thumbnails that are compared, in pixels.
SIDE = 16
# Rows of each table in the terminal.
LISTED = 10
# The Parquet files of `Neighbours.save`.
TABLES = "images", "duplicates", "queries"


class Duplicate(NamedTuple):
    """A pair of near-duplicates.

    Attributes:
        second: Rows of the two images, `first` < `second`.
        correlation: Pearson correlation of the pixels of the thumbnails.
        equal: Whether all pixels that the network receives are equal.
    """

    first: int
    second: int
    correlation: float
    equal: bool


@dataclass(frozen=True)
class Neighbours:
    """The neighbourhood of every readable image of a source; a row is an image. `print` of rich shows tables.

    Attributes:
        splits: The split of each image.
        labels: The class of each image, or its number if the class has no name, or all of its classes ("cat|dog"),
            which are compared as one label; None without a label.
        indices: The rows of the k nearest neighbours, the most similar first, over all splits.
        similarities: Their cosine similarities.
        places: The index of each image in its split, among all images, readable or not.
        queries: The names of the images that were asked for, the rows of their neighbours, and the similarities.
        skipped: Names of the images that cannot be read.
    """

    model: str
    source: str
    names: list[str]
    splits: list[str]
    labels: list[str | None]
    indices: Int64[np.ndarray, "n k"]
    similarities: Float32[np.ndarray, "n k"]
    duplicates: list[Duplicate]
    parts: dict[str, AnyImages]
    places: Int64[np.ndarray, " n"]
    preprocess: Preprocess
    queries: tuple[list[str], Int64[np.ndarray, "q k"], Float32[np.ndarray, "q k"]] | None = None
    skipped: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.names)

    @property
    def outlier_score(self) -> Float[np.ndarray, " n"]:
        """One minus the mean similarity of the k neighbours, in [0, 2]: the kNN score of Ramaswamy et al. 2000, with
        cosine distances.
        """
        return 1 - self.similarities.mean(axis=1, dtype=np.float64)

    @property
    def label_agreement(self) -> Float[np.ndarray, " n"]:
        """The share of the labelled neighbours with the label of the image; NaN without labels."""
        labels = np.unique([label or "" for label in self.labels], return_inverse=True)[1]
        known = np.array([label is not None for label in self.labels])
        near, labelled = labels[self.indices], known[self.indices]
        same = ((near == labels[:, None]) & labelled).sum(1)
        return np.where(known & labelled.any(1), same / np.maximum(labelled.sum(1), 1), np.nan)

    @property
    def warning(self) -> str:
        """That neighbours share their label hardly more often than by chance, Σ c (c − 1) / (n (n − 1)) for classes of
        c of n images: by less than two standard errors. Empty otherwise, and without two classes that images share.
        """
        counts = Counter(label for label in self.labels if label is not None)
        n = counts.total()
        chance = sum(c * (c - 1) for c in counts.values()) / max(n * (n - 1), 1)
        found = self.label_agreement[np.isfinite(self.label_agreement)]
        alike = 0 < chance < 1 and len(found) and found.mean() <= chance + 2 * standard_error(chance, images=len(found))
        if not alike:
            return ""
        shares = f"{percent(found.mean())} of the neighbours of an image have its label, by chance {percent(chance)}"
        return f"warning: {shares}: to this model the classes look alike, and its outliers and label errors mean little"

    def outliers(self, count: int = 20) -> list[int]:
        """Return the rows with the largest outlier scores, the largest first."""
        return np.argsort(-self.outlier_score, kind="stable")[:count].tolist()

    def likely_label_errors(self, count: int = 20) -> list[int]:
        """Return rows whose neighbours agree on another label: none of them has the label of the image, and most have
        one other.

        The rows with the most similar neighbours come first. A likely label error is a reason to look, and not an
        error.
        """
        wrong = [i for i in np.flatnonzero(self.label_agreement == 0).tolist() if self.usual_label(i)[1] > 0.5]
        return sorted(wrong, key=lambda i: -float(self.similarities[i].mean()))[:count]

    def usual_label(self, row: int) -> tuple[str | None, float]:
        """Return the most frequent label of the neighbours of an image, and its share of the neighbours."""
        labels = Counter(label for i in self.indices[row] if (label := self.labels[i]) is not None)
        label, count = next(iter(labels.most_common(1)), (None, 0))  # the first of equals is the label of the nearest
        return label, count / self.indices.shape[1]

    def picture(self, row: int) -> np.ndarray:
        """Return the pixels (C, S, S) of an image as the network receives them before normalisation; the image is
        opened again.
        """
        images = as_images(self.parts[self.splits[row]])
        return read_pixels(images, int(self.places[row]), self.preprocess).numpy()

    def tables(self) -> dict[str, pa.Table]:
        """Return the tables that `save` writes.

        images: name, split, label, neighbours, neighbour_names, similarities, outlier_score, label_agreement and
        usual_label. duplicates: a row for each pair, with correlation and equal. queries, if there are any: a row for
        each query and neighbour.
        """
        names = [*map(utf8, self.names)]
        about: dict[str, Any] = {"name": names, "split": self.splits, "label": pa.array(self.labels, pa.string())}
        images = pa.table(about)
        pairs: dict[str, Any] = {}
        for side, place in (("first", 0), ("second", 1)):
            rows = pa.array([pair[place] for pair in self.duplicates], pa.int64())
            chosen = images.take(rows)
            pairs |= {side: rows, f"{side}_name": chosen["name"], f"{side}_split": chosen["split"]}
        pairs["correlation"] = pa.array([pair.correlation for pair in self.duplicates], pa.float32())
        pairs["equal"] = pa.array([pair.equal for pair in self.duplicates], pa.bool_())
        about |= {"neighbours": list(self.indices), "similarities": list(self.similarities)}
        about |= {"neighbour_names": [[names[i] for i in row] for row in self.indices]}
        about["outlier_score"] = self.outlier_score
        about["label_agreement"] = pa.array(self.label_agreement, from_pandas=True)  # null for NaN
        about["usual_label"] = [self.usual_label(i)[0] for i in range(len(self))]
        tables = {"images": pa.table(about), "duplicates": pa.table(pairs)}
        if self.queries:
            asked, indices, similarities = self.queries
            rows, k = indices.ravel(), indices.shape[1]
            answers = {
                "query": np.repeat([*map(utf8, asked)], k),
                "rank": np.tile(np.arange(1, k + 1), len(indices)),
                "row": rows,
            }
            answers |= {name: images.take(rows)[name] for name in images.column_names}
            tables["queries"] = pa.table(answers | {"similarity": similarities.ravel()})
        return tables

    def save(self, folder: Path | str, *, overwrite: bool = False) -> None:
        """Write the tables to a folder: `images.parquet`, `duplicates.parquet` and, with queries, `queries.parquet`.

        Raises:
            UserError: a file exists, or the folder cannot be written. No file is then changed.
        """
        tables = self.tables()
        with ExitStack() as stack:
            for name, table in tables.items():
                path = Path(folder) / f"{name}.parquet"
                pq.write_table(table, stack.enter_context(atomic_write(path, overwrite=overwrite)))
        if overwrite and "queries" not in tables:
            (Path(folder) / "queries.parquet").unlink(missing_ok=True)  # those of another search

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Any]:
        counts = ", ".join(f"{part} {self.splits.count(part):,}" for part in self.parts)
        yield Text(printable(f"{len(self):,} images of {self.source} ({counts}), embedded by {self.model}"))
        yield from [Text(self.warning)] if self.warning else []
        for query, indices, similarities in zip(*(self.queries or ((), (), ())), strict=True):
            rows = [(f"{value:.3f}", self.names[i]) for i, value in zip(indices, similarities, strict=True)]
            yield _list(f"nearest to {query}", ("similarity", "image"), rows)
        across = sum(self.splits[pair.first] != self.splits[pair.second] for pair in self.duplicates)
        title = f"{len(self.duplicates):,} pairs of near-duplicates, {across:,} of them across splits"
        rows = [
            ("equal" if pair.equal else f"{pair.correlation:.3f}", self._place(pair.first), self._place(pair.second))
            for pair in self.duplicates[:LISTED]
        ]
        yield _list(title, ("correlation", "image", "image"), rows) if rows else Text(title)
        rows = [(f"{self.outlier_score[i]:.3f}", self._place(i)) for i in self.outliers(LISTED)]
        yield _list("outliers", ("distance", "image"), rows)
        if errors := self.likely_label_errors(LISTED):
            rows = [(self._place(i), str(self.labels[i]), str(self.usual_label(i)[0])) for i in errors]
            yield _list("likely label errors", ("image", "label", "of its neighbours"), rows)

    def _place(self, row: int) -> str:
        return f"{self.names[row]} [{self.splits[row]}]" if len(self.parts) > 1 else self.names[row]


def _list(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(*heads, title=Text(printable(title)), title_justify="left", box=None)
    for row in rows:
        table.add_row(*(Text(printable(cell), overflow="fold") for cell in row))
    return table


def neighbours(
    model: ModelLike,
    data: Data | Mapping[str, Data] | None = None,
    *,
    query: Any = None,
    split: str | None = None,
    k: int = 10,
    duplicates: float = 0.95,
    reading: Reading | None = None,
    device: Device | None = None,
    notify: Notify = silent,
) -> Neighbours:
    """Find the nearest neighbours, near-duplicates, outliers and likely label errors of a set of images.

    All splits of the source are searched together, so that a near-duplicate of a test image among the training images
    is found. The features of all images are in memory: 4·n·D bytes.

    Args:
        model: a MODEL (see `load`), a `Run`, or a loaded model.
        data: source of the images, opened images, or a dictionary of parts: `{"train": …, "test": …}`; by default the
            source of the run.
        query: images whose neighbours are asked for, as `Model.features` takes them: a path, several paths, arrays,
            Pillow images.
        split: name of the split to search; by default all.
        k: number of neighbours of each image.
        duplicates: least correlation of the pixels of two near-duplicates, measured on thumbnails of 16×16 pixels, in
            (0, 1].
        reading: how the images are read; by default as the run read them.
        device: where the network runs.
        notify: receives a short description of each step.

    Raises:
        UserError: the model or the images do not exist, there are fewer than two images, a query cannot be read, or an
            argument is wrong.

    >>> images = torch.tensor([0, 60, 60, 255]).byte().view(4, 1, 1, 1).expand(4, 3, 8, 8)
    >>> found = neighbours("timm-untrained:test_resnet", images, k=2)
    >>> [(pair.first, pair.second, pair.equal) for pair in found.duplicates]
    [(1, 2, True)]
    """
    if k < 1 or not 0 < duplicates <= 1:
        raise UserError(f"k is {k} and duplicates is {duplicates}, expected k ≥ 1 and a correlation in (0, 1]")
    device, loaded = device or Device(), load(model)
    source, parts = open_parts(loaded, data, split, reading)
    loaded, errors = with_depth(loaded, *parts.values()), DecodeErrors(max_error_fraction=device.max_error_fraction)
    asked = None
    if query is not None:  # before the work: an image may be unreadable
        images = given_images(query)
        loaded.backbone.to(resolve_device(device.accelerator))
        asked = [images.name(row) for row in range(len(images))], loaded.features(images).float()
    names, splits, labels, places, features, small, digests = [], [], [], [], [], [], []
    for part, images in parts.items():
        notify(f"embedding {len(images):,} images of {part}")
        for batch, X in embedded_batches(loaded.backbone, images, loaded.preprocess, device, errors, notify):
            features.append(X)
            pixels = batch.pixels.cpu()
            small.append(thumbnails(pixels))
            digests += [hashlib.sha1(image.tobytes()).digest() for image in to_16_bits(pixels).numpy()]
            names += batch.names
            labels += batch.class_texts(images.classes)
            splits += [part] * len(batch.names)
            places.append(batch.indices.numpy())
    if len(names) < 2:
        raise UserError(f"{source} has {len(names)} readable images, expected at least two")
    X, k = torch.cat(features), min(k, len(names) - 1)
    if not X.isfinite().all():
        raise UserError("the features are not finite; use another model, such as an earlier checkpoint: RUN@STEP")
    notify(f"searching the neighbours of {len(names):,} images")
    indices, similarities = _search(X, k)
    return Neighbours(
        model=loaded.name,
        source=source,
        names=names,
        splits=splits,
        labels=labels,
        indices=indices,
        similarities=similarities,
        duplicates=find_duplicates(np.concatenate(small), digests, indices, threshold=duplicates),
        parts=parts,
        places=np.concatenate(places),
        preprocess=loaded.preprocess,
        queries=None if asked is None else (asked[0], *_search(X, k, asked[1])),
        skipped=tuple(errors.reasons),
    )


def _search(
    X: Float32[Tensor, "n D"], k: int, queries: Float32[Tensor, "q D"] | None = None
) -> tuple[Int64[np.ndarray, "_ k"], Float32[np.ndarray, "_ k"]]:
    similarities, indices = nearest(X, k, queries)
    return indices.cpu().numpy(), similarities.cpu().numpy()


def thumbnails(pixels: Tensor) -> UInt8[np.ndarray, "n d"]:
    """Return images (n, C, S, S) averaged over squares, at most 16 × 16 pixels, as rows."""
    small = F.adaptive_avg_pool2d(to_8_bits(pixels).float(), min(SIDE, pixels.shape[-1]))
    return small.round().byte().flatten(1).numpy()


def find_duplicates(
    small: UInt8[np.ndarray, "n d"], digests: Sequence[bytes], indices: Int64[np.ndarray, "n k"], *, threshold: float
) -> list[Duplicate]:
    """Return the pairs of neighbours whose thumbnails have at least this correlation, and all images with equal pixels.

    The model proposes the pairs, the pixels decide. Of several equal images, each is paired with the first, so that m
    copies give m − 1 pairs. Equal pairs come first, then the highest correlations.

    Args:
        small: thumbnails.
        digests: hashes of the pixels.
        indices: the neighbours of each image.
        threshold: the least correlation, in (0, 1].
    """
    first_of: dict[bytes, int] = {}
    first = np.array([first_of.setdefault(digest, i) for i, digest in enumerate(digests)])
    equal = [Duplicate(int(first[i]), int(i), 1.0, True) for i in np.flatnonzero(first != np.arange(len(first)))]
    pairs = np.stack([np.repeat(np.arange(len(indices)), indices.shape[1]), indices.ravel()], axis=1)
    pairs = np.unique(np.sort(first[pairs], axis=1), axis=0)  # a copy stands for its first image
    near: list[Duplicate] = []
    for block in np.array_split(pairs[pairs[:, 0] != pairs[:, 1]], len(pairs) // 65536 + 1):
        values = correlations(small[block[:, 0]], small[block[:, 1]])
        chosen = ((int(a), int(b), float(value), False) for (a, b), value in zip(block, values, strict=True))
        near += [Duplicate(a, b, value, exact) for a, b, value, exact in chosen if value >= threshold]
    return equal + sorted(near, key=lambda pair: -pair.correlation)


def correlations(a: UInt8[np.ndarray, "n d"], b: UInt8[np.ndarray, "n d"]) -> Float32[np.ndarray, " n"]:
    """Return the Pearson correlation of each pair of rows; 0 if a row is constant.

    >>> correlations(np.array([[0, 100], [5, 5]], np.uint8), np.array([[20, 40], [1, 2]], np.uint8)).tolist()
    [1.0, 0.0]
    """
    x, y = (rows - rows.mean(axis=1, keepdims=True) for rows in (a.astype(np.float32), b.astype(np.float32)))
    norms = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
    return (x * y).sum(axis=1) / np.where(norms > 0, norms, 1)
