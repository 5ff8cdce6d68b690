"""Write the embeddings of images to a Parquet file while they are computed."""

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
    batch_size: int = 512,
    device: torch.device | str = "cpu",
    workers: int = 0,
    decode_errors: DecodeErrors | None = None,
    overwrite: bool = False,
) -> int:
    """Write one row for each readable image, in order, and return the number of rows.

    The columns are `name` (text), `label` (int64; null for an image without a label) and `embedding` (a list of D float32). Each batch
    becomes a row group, so that only one batch is in memory. The file appears only when it is complete.

    Args:
        backbone: maps float32 images (n, C, S, S) to features (n, D); verified to be unchanged, as in `extract_features`.
        images: images of a source, or images in memory.
        preprocess: the preprocessing of the backbone.
        out: the Parquet file.
        batch_size: images per forward pass, and rows per row group.
        device: where the backbone runs.
        workers: processes that decode images; 0 decodes in this process.
        decode_errors: counts unreadable images; by default, more than 10 % unreadable images raise an error.
        overwrite: replace an existing file.

    Raises:
        UserError: the file exists or cannot be written, or too many images are unreadable.

    >>> import tempfile
    >>> from fullrank.images import open_images
    >>> out = Path(tempfile.mkdtemp()) / "digits.parquet"
    >>> embed(nn.Flatten(), open_images("digits")["all"], Preprocess(1, 8, (0.5,), (0.5,)), out)
    1797
    >>> pq.read_table(out).column_names
    ['name', 'label', 'embedding']
    """
    rows, writer = 0, None
    with atomic_write(Path(out), overwrite=overwrite) as temporary:
        try:
            for features in stream_features(
                backbone, images, preprocess, batch_size=batch_size, device=device, workers=workers, decode_errors=decode_errors
            ):
                group = to_table(features)
                writer = writer or pq.ParquetWriter(temporary, group.schema)
                writer.write_table(group)
                rows += len(group)
        finally:
            if writer:
                writer.close()
    return rows


def to_table(features: Features) -> pa.Table:
    """Return features as rows of a table."""
    labels = features.labels.numpy()
    embedding = pa.FixedSizeListArray.from_arrays(pa.array(features.X.numpy().ravel()), features.X.shape[1])
    return pa.table({"name": pa.array(features.names, pa.string()), "label": pa.array(labels, mask=labels < 0), "embedding": embedding})
