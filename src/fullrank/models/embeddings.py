"""Embed images: the features of all images of a source, in memory or in a Parquet, CSV or NumPy file."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import torch
from torch import nn

from fullrank.arguments import EMBEDDING_SUFFIXES, check_suffix
from fullrank.errors import UserError
from fullrank.files import atomic_write
from fullrank.images import DecodeErrors, Images, MemoryImages, Preprocess
from fullrank.models import load, resolve_device
from fullrank.models.depth import with_depth
from fullrank.models.features import Features, extract_features, stream_features
from fullrank.models.model import ModelLike
from fullrank.models.model_images import Data, all_images


def embed(
    model: ModelLike,
    data: Data | None = None,
    out: Path | str | None = None,
    *,
    split: str | None = None,
    batch_size: int = 512,
    device: str | torch.device = "auto",
    workers: int = 0,
    decode_errors: DecodeErrors | None = None,
    overwrite: bool = False,
    notify: Callable[[str], Any] = lambda line: None,
) -> Any:
    """Compute the features of all images of a source, one row for each readable image, in order.

    Args:
        model: a MODEL (see `load`), a `Run`, or a loaded model.
        data: source of the images, or opened images; by default the source of the run.
        out: a file to write, see `write_embeddings`; with None, the features are returned.
        split: name of the split; required if the source has several splits.
        batch_size: images per forward pass.
        device: 'auto', 'cpu', 'cuda' or 'mps'.
        workers: number of processes that decode images; 0 decodes in this process.
        decode_errors: records images that cannot be read; the default stops if more than 10 % are unreadable.
        overwrite: replace an existing file.
        notify: receives a line when a file is complete.

    Returns:
        `Features`, with `X` (n, D), `labels`, `names` and `classes`; or the path of the file.

    Raises:
        UserError: the model or the images do not exist, too many images are unreadable, or the file exists or cannot be
            written.

    >>> from fullrank.images import open_images
    >>> embed("timm-untrained:test_resnet", open_images("digits")["all"].subset(range(5))).X.shape
    torch.Size([5, 96])
    """
    if out is not None:
        check_suffix(out, EMBEDDING_SUFFIXES)  # before the work
    loaded = load(model)
    images = all_images(loaded, data, split)
    loaded = with_depth(loaded, images)
    options: dict[str, Any] = {
        "batch_size": batch_size,
        "device": resolve_device(device),
        "workers": workers,
        "decode_errors": decode_errors,
    }
    if not isinstance(batch_size, int) or batch_size < 1:
        raise UserError(f"batch_size is {batch_size!r:.60}, expected a positive integer")
    if out is None:
        return extract_features(loaded.backbone, images, loaded.preprocess, **options)
    rows = write_embeddings(loaded.backbone, images, loaded.preprocess, out, overwrite=overwrite, **options)
    notify(f"{rows:,} embeddings of {getattr(images, 'source', 'images in memory')}: {out}")
    return Path(out)


def write_embeddings(
    backbone: nn.Module,
    images: Images | MemoryImages,
    preprocess: Preprocess,
    out: Path | str,
    *,
    batch_size: int = 512,
    device: torch.device | str = "cpu",
    workers: int = 0,
    decode_errors: DecodeErrors | None = None,
    overwrite: bool = False,
) -> int:
    """Write one row for each readable image, in order, and return the number of rows. The file appears only when it is
    complete.

    | suffix | content |
    |---|---|
    | `.parquet` | columns `name`, `label` (null for none), `class` (its name, if known) and `embedding`, a list of D
    float32 |
    | `.csv` | columns `name`, `label`, `class` (empty for none), and `0` … `D-1` |
    | `.npz` | arrays `embeddings` (n, D) float32, `labels` (-1 for none), `names` and `classes` |
    | `.npy` | the array (n, D) alone |

    Parquet and CSV are written batch by batch, so that memory does not limit the number of images; a batch is a row
    group of the table.

    Args:
        backbone: maps float32 images (n, C, S, S) to features (n, D); verified to be unchanged, as in
            `extract_features`.
        images: images of a source, or images in memory.
        preprocess: the preprocessing of the backbone.
        out: the file; its suffix determines the format.
        batch_size: images per forward pass, and rows per row group.
        device: where the backbone runs.
        workers: processes that decode images; 0 decodes in this process.
        decode_errors: counts unreadable images; by default, more than 10 % unreadable images raise an error.
        overwrite: replace an existing file.

    Raises:
        UserError: the suffix is unknown, the file exists or cannot be written, or too many images are unreadable.

    >>> import tempfile
    >>> from fullrank.images import open_images
    >>> out = Path(tempfile.mkdtemp()) / "digits.parquet"
    >>> write_embeddings(nn.Flatten(), open_images("digits")["all"], Preprocess(1, 8, (0.5,), (0.5,)), out)
    1797
    >>> pq.read_table(out).column_names
    ['name', 'label', 'class', 'embedding']
    """
    rows, open_file = 0, FORMATS[check_suffix(out, EMBEDDING_SUFFIXES)]
    with atomic_write(Path(out), overwrite=overwrite) as draft, open_file(draft) as write:
        for features in stream_features(
            backbone,
            images,
            preprocess,
            batch_size=batch_size,
            device=device,
            workers=workers,
            decode_errors=decode_errors,
        ):
            write(features)
            rows += len(features.X)
    return rows


Write = Callable[[Features], None]
"""A function that adds a batch to a file."""


@contextmanager
def _parquet(path: Path) -> Iterator[Write]:
    writer: pq.ParquetWriter | None = None

    def write(features: Features) -> None:
        nonlocal writer
        group = to_table(features)
        writer = writer or pq.ParquetWriter(path, group.schema)
        writer.write_table(group)

    try:
        yield write
    finally:
        if writer:
            writer.close()


@contextmanager
def _csv(path: Path) -> Iterator[Write]:
    writers: list[csv.CSVWriter] = []

    def write(features: Features) -> None:
        columns = to_table(features).drop_columns("embedding")
        for i, values in enumerate(features.X.T.contiguous().numpy()):
            columns = columns.append_column(str(i), pa.array(values))
        if not writers:
            writers.append(csv.CSVWriter(path, columns.schema))
        writers[0].write_table(columns)

    try:
        yield write
    finally:
        for writer in writers:
            writer.close()


@contextmanager
def _npz(path: Path) -> Iterator[Write]:
    parts: list[Features] = []
    yield parts.append
    if parts:
        names, labels = [name for part in parts for name in part.names], torch.cat([part.labels for part in parts])
        with path.open("wb") as file:
            embeddings = torch.cat([part.X for part in parts]).numpy()
            np.savez(
                file,
                embeddings=embeddings,
                labels=labels.numpy(),
                names=np.array(names),
                classes=np.array(parts[0].classes, dtype=str),
            )


@contextmanager
def _npy(path: Path) -> Iterator[Write]:
    parts: list[Features] = []
    yield parts.append
    if parts:
        with path.open("wb") as file:
            np.save(file, torch.cat([part.X for part in parts]).numpy())


FORMATS: dict[str, Callable[[Path], AbstractContextManager[Write]]] = {
    ".parquet": _parquet,
    ".csv": _csv,
    ".npz": _npz,
    ".npy": _npy,
}
"""Formats of embeddings, by the suffix of the file."""


def to_table(features: Features) -> pa.Table:
    """Return features as rows of a table."""
    labels = features.labels.numpy()
    classes = [features.classes[label] if 0 <= label < len(features.classes) else None for label in labels]
    names = [
        name.encode("utf-8", "backslashreplace").decode() for name in features.names
    ]  # a file's name may be no UTF-8
    columns = {"name": pa.array(names, pa.string()), "label": pa.array(labels, mask=labels < 0)}
    if features.classes:
        columns["class"] = pa.array(classes, pa.string())
    return pa.table(
        {
            **columns,
            "embedding": pa.FixedSizeListArray.from_arrays(pa.array(features.X.numpy().ravel()), features.X.shape[1]),
        }
    )
