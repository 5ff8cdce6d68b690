"""Embed images: the features of all images of a source, in memory or in a file, or by a transformer of scikit-learn."""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from torch import Tensor

from fullrank.errors import Notify, silent, utf8
from fullrank.files import atomic_write, check_suffix
from fullrank.images import DecodeErrors, Device, Images, MemoryImages, Reading
from fullrank.images.memory import given_images
from fullrank.methods.backbones import feature_dim
from fullrank.models.features import embedded_batches, join
from fullrank.models.loading import load
from fullrank.models.model import Model, ModelLike, resolve_device, with_depth
from fullrank.models.model_images import Data, one_split

SUFFIXES = (".parquet", ".csv", ".npz", ".npy")


def embed(
    model: ModelLike,
    data: Data | None = None,
    out: Path | str | None = None,
    *,
    split: str | None = None,
    reading: Reading | None = None,
    device: Device = Device(),  # noqa: B008  frozen
    overwrite: bool = False,
    notify: Notify = silent,
) -> Any:
    """Compute the features of all images of a source, one row for each readable image, in order.

    Args:
        model: a MODEL (see `load`), a `Run`, or a loaded model.
        data: source of the images, or opened images; by default the source of the run.
        out: a file to write, see `write_embeddings`; with None, the features are returned.
        split: name of the split; required if the source has several splits.
        reading: how the source is read, such as the columns of a table.
        device: where the backbone runs, and how images come to it.
        overwrite: replace an existing file.
        notify: receives the progress, a line when a file is complete, and one for each image that cannot be read.

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
        check_suffix(out, SUFFIXES)  # before the work
    loaded = load(model)
    images = one_split(loaded, data, split, reading)
    loaded, errors = with_depth(loaded, images), DecodeErrors(max_error_fraction=device.max_error_fraction)
    batches = embedded_batches(loaded.backbone, images, loaded.preprocess, device, errors, notify)
    if out is None:
        result: Any = join(batches, images)
    else:
        rows, result = write_embeddings(batches, images, out, overwrite=overwrite), Path(out)
        notify(f"{rows:,} embeddings of {getattr(images, 'source', 'images in memory')}: {out}")
    for name, reason in errors.reasons.items():
        notify(f"skipped {name}: {reason}")
    return result


def write_embeddings(
    batches: Iterable[tuple[MemoryImages, Tensor]],
    images: Images | MemoryImages,
    out: Path | str,
    *,
    overwrite: bool = False,
) -> int:
    """Write one row for each image, in order, and return the number of rows. The file appears only when it is complete.

    | suffix | content |
    |---|---|
    | `.parquet` | columns `name`, `label` (null for none), `class` (its name, if known) and `embedding`, a list of D
    float32 |
    | `.csv` | columns `name`, `label`, `class` (empty for none), and `0` … `D-1` |
    | `.npz` | arrays `embeddings` (n, D) float32, `labels` (-1 for none), `names` and `classes` |
    | `.npy` | the array (n, D) alone |

    Images with several labels have a text in `label` and `class` (`3|7`, `cat|dog`), and in `.npz` the array
    `multi_labels` (n, K).

    Parquet and CSV are written batch by batch, so that memory does not limit the number of images; a batch is a row
    group of the table.

    Args:
        batches: the images of each batch and their features, of `embedded_batches`.
        images: all images.
        out: the file; its suffix determines the format.
        overwrite: replace an existing file.

    Raises:
        UserError: the suffix is unknown, the file exists or cannot be written, or too many images are unreadable.

    >>> import tempfile
    >>> from fullrank.images import Preprocess, open_images
    >>> out = Path(tempfile.mkdtemp()) / "digits.parquet"
    >>> digits = open_images("digits")["all"]
    >>> batches = embedded_batches(torch.nn.Flatten(), digits, Preprocess(1, 8, (0.5,), (0.5,)))
    >>> write_embeddings(batches, digits, out)
    1797
    >>> pq.read_table(out).column_names
    ['name', 'label', 'class', 'embedding']
    """
    rows, writer, suffix = 0, None, check_suffix(out, SUFFIXES)
    with atomic_write(Path(out), overwrite=overwrite) as draft, ExitStack() as stack:
        if suffix in (".npz", ".npy"):
            every = join(batches, images)
            arrays: Any = {"labels": every.labels.numpy(), "names": every.names, "classes": every.classes}
            arrays |= {} if every.multi_labels is None else {"multi_labels": every.multi_labels.numpy()}
            with draft.open("wb") as file:
                np.save(file, every.X) if suffix == ".npy" else np.savez(file, embeddings=every.X, **arrays)
            return len(every.X)
        for batch, X in batches:
            table = to_table(batch, X.cpu().numpy(), images.classes, wide=suffix == ".csv")
            if writer is None:
                writer = (csv.CSVWriter if suffix == ".csv" else pq.ParquetWriter)(draft, table.schema)
                stack.callback(writer.close)
            writer.write_table(table)
            rows += len(X)
    return rows


def to_table(batch: MemoryImages, X: np.ndarray, classes: Sequence[str], *, wide: bool) -> pa.Table:
    """Return features as rows of a table: with a column of lists, or `wide` with a column for each dimension."""
    labels, several = batch.labels.cpu().numpy(), batch.multi_labels is not None
    names = [utf8(name) for name in batch.names]
    numbers = pa.array(batch.class_texts(), pa.string()) if several else pa.array(labels, mask=labels < 0)
    columns = {"name": pa.array(names, pa.string()), "label": numbers}
    if classes:
        columns["class"] = pa.array(batch.class_texts(classes), pa.string())
    if wide:
        return pa.table(columns | {str(d): pa.array(np.ascontiguousarray(x)) for d, x in enumerate(X.T)})
    return pa.table({**columns, "embedding": pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), X.shape[1])})


class Embedder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """A frozen backbone as a scikit-learn transformer, for `Pipeline`, `GridSearchCV` and `ColumnTransformer`.

    `fit` loads the model again, and finds only how many bits 16-bit values use, as pretraining does: 4095 becomes white
    if no value is larger (a run keeps the bits of its training). `transform` also works without `fit`, and then finds
    the bits of its own images. A pickled embedder contains its parameters and not the weights: it loads the model again
    when it is used. A search computes the features again for each fold and each value of its grid. To search over
    classifiers, call `transform` once before the search, which leaks nothing; to search over models, use `Pipeline(…,
    memory=FOLDER)`. Such a cache knows a model by its name and a file by its path, so name a finished run, or
    `RUN@STEP`.

    Args:
        model: a MODEL (see `load`), a `Run`, or a loaded model; a search over models is `{"embedder__model": ["runs/a",
            "timm:resnet18"]}`.
        batch_size: images per forward pass.
        device: 'auto', 'cpu', 'cuda' or 'mps'.

    Raises:
        UserError: the model does not exist, there is no image, or an image cannot be read. No image is left out,
            because a row without its image would shift the labels.

    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.pipeline import make_pipeline
    >>> images, labels = np.zeros((6, 16, 16, 3), np.uint8), [0, 1, 0, 1, 0, 1]
    >>> images[1::2] = 255
    >>> classifier = make_pipeline(Embedder("timm-untrained:test_resnet", device="cpu"), LogisticRegression())
    >>> classifier.fit(images, labels).score(images, labels)
    1.0
    """

    def __init__(
        self, model: ModelLike = "timm:resnet18", *, batch_size: int = 256, device: str | torch.device = "auto"
    ):
        self.model = model
        self.batch_size = batch_size
        self.device = device

    def fit(self, X: Any = None, y: Any = None) -> "Embedder":
        """Load the model, and find the bits of the images; the labels are not used."""
        self._loaded, self.bits_ = None, None
        model = self._backbone()
        self.bits_ = None if X is None else with_depth(model, given_images(_samples(X))).preprocess.bits
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Return the features of images, (n, D) float32.

        Args:
            X: n ≥ 1 images: a list, an array or a column of paths, an array (n, H, W) or (n, H, W, C), a tensor (n, C,
                H, W), a list of images, or `Images`. Arrays and tensors have uint8 values or floats in [0, 1].

        Raises:
            UserError: see the class.
        """
        images, model = given_images(_samples(X)), self._backbone()
        bits = getattr(self, "bits_", None) or with_depth(model, images).preprocess.bits
        model = replace(model, preprocess=replace(model.preprocess, bits=bits))
        return model.features(images, batch_size=self.batch_size).float().cpu().numpy()

    def _backbone(self) -> Model:
        """Return the model of the current parameters, which is loaded once."""
        cached = getattr(self, "_loaded", None)
        if cached is None or cached[0] is not self.model:
            self._loaded = cached = (self.model, load(self.model))
        cached[1].backbone.to(resolve_device(self.device)).eval()
        return cached[1]

    @property
    def _n_features_out(self) -> int:
        """The number of features D, for the names `embedder0` … of `get_feature_names_out`."""
        return feature_dim(self._backbone().backbone)

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        tags.input_tags.two_d_array, tags.input_tags.string = False, True
        return tags

    def __getstate__(self) -> dict[str, Any]:
        state: Any = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_loaded"}


def _samples(X: Any) -> Any:
    """Return n images, where a column of paths of pandas, polars or NumPy becomes a list, and an array its rows.

    >>> _samples(np.array([["a.png"], ["b.png"]])), len(_samples(np.zeros((5, 8, 8))))
    (['a.png', 'b.png'], 5)
    """
    values: Any = X.to_numpy() if hasattr(X, "to_numpy") else X  # pyright: ignore[reportAttributeAccessIssue]  pandas and polars
    if isinstance(values, np.ndarray) and values.dtype.kind in "OU":
        return values.ravel().tolist()
    return list(values) if isinstance(values, np.ndarray | torch.Tensor) else values
