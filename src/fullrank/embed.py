"""The embeddings of a set of images as one Parquet table, written while they are computed."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import nn

from fullrank.atomic import atomic_write
from fullrank.evaluation.features import Features, stream_features
from fullrank.images import DecodeErrors, Images, MemoryImages, Preprocess


def embed(
    backbone: nn.Module,
    images: Images | MemoryImages,
    preprocess: Preprocess,
    out: Path | str,
    *,
    batch: int = 512,
    device: torch.device | str = "cpu",
    workers: int = 0,
    decode_errors: DecodeErrors | None = None,
    overwrite: bool = False,
) -> int:
    """Write a row for each readable image, in order, and return how many there are.

    The columns are `name` (text), `label` (int64, null where there is none) and `embedding` (a list of D float32). Each batch becomes
    a row group, so that memory holds one batch; the file takes its name when it is complete.

    Args:
        backbone: maps float32 images (n, C, S, S) to features (n, D); proved frozen, as by `extract_features`.
        images: a source, or images in memory.
        preprocess: of the backbone.
        out: the Parquet file.
        batch: images a forward pass, and rows a group.
        device: where the backbone runs.
        workers: processes that decode; 0 is this one.
        decode_errors: counts and records the images that cannot be read; by default a new one, which stops past a tenth.
        overwrite: replace a file that is there.

    Raises:
        UserError: the file exists or cannot be written, too many images cannot be read, or none can.

    >>> import tempfile
    >>> from fullrank.images import open_images
    >>> out = Path(tempfile.mkdtemp()) / "digits.parquet"
    >>> embed(nn.Flatten(), open_images("digits")["all"], Preprocess(1, 8, (0.5,), (0.5,)), out)
    1797
    >>> pq.read_table(out).column_names
    ['name', 'label', 'embedding']
    """
    rows, writer = 0, None
    with atomic_write(Path(out), overwrite=overwrite) as draft:
        try:
            for part in stream_features(
                backbone, images, preprocess, batch=batch, device=device, workers=workers, decode_errors=decode_errors
            ):
                group = to_table(part)
                writer = writer or pq.ParquetWriter(draft, group.schema)
                writer.write_table(group)
                rows += len(group)
        finally:
            if writer:
                writer.close()
    return rows


def to_table(part: Features) -> pa.Table:
    """Return features as rows of a table."""
    labels = part.labels.numpy()
    embedding = pa.FixedSizeListArray.from_arrays(pa.array(part.X.numpy().ravel()), part.X.shape[1])
    return pa.table({"name": pa.array(part.names, pa.string()), "label": pa.array(labels, mask=labels < 0), "embedding": embedding})
