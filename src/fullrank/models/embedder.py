"""The backbone of a MODEL as a transformer of scikit-learn: images in, features out."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin

from fullrank.errors import UserError
from fullrank.images import Images, MemoryImages
from fullrank.models import Model, load, resolve_device
from fullrank.models.model import ModelLike

EXPECTED = "a list, an array or a column of paths, an array (n, H, W) or (n, H, W, C), a tensor (n, C, H, W), a list of images, or Images"


class Embedder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """A frozen backbone as a scikit-learn transformer, for `Pipeline`, `GridSearchCV` and `ColumnTransformer`.

    The embedder learns nothing from the images that it is fitted on, so `transform` also works without `fit`; `fit`
    loads the model
    again. A pickled embedder contains its parameters and not the weights: it loads the model again when it is used. A
    search computes the features again for each fold and each value of its grid. To search over classifiers, call
    `transform` once before the search, which leaks nothing; to search over models, use `Pipeline(…, memory=FOLDER)`.
    Such a cache knows a model by its name and a file by its path, so name a finished run, or `RUN@STEP`.

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
        """Load the model; the images and the labels are not used."""
        self._loaded = None
        self._backbone()
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Return the features of images.

        Args:
            X: n ≥ 1 images, see `EXPECTED`; arrays and tensors have uint8 values or floats in [0, 1].

        Returns:
            The features, (n, D) float32.

        Raises:
            UserError: see the class.
        """
        images = _as_images(X)
        model = self._backbone()
        return model.features(images, batch_size=self.batch_size).float().cpu().numpy()

    def _backbone(self) -> Model:
        """Return the model of the current parameters, which is loaded once."""
        device, cached = resolve_device(self.device), getattr(self, "_loaded", None)
        if cached is None or cached[0] is not self.model:
            self._loaded = cached = (self.model, load(self.model))
        cached[1].backbone.to(device).eval()
        return cached[1]

    @property
    def _n_features_out(self) -> int:
        """The number of features D, for the names `embedder0` … of `get_feature_names_out`."""
        model, preprocess = self._backbone(), self._backbone().preprocess
        black = torch.zeros(1, preprocess.channels, preprocess.size, preprocess.size, dtype=torch.uint8)
        return model.features(black).shape[1]

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


def _as_images(X: Any) -> Any:
    """Return images that `Model.features` takes; a column of paths of pandas or NumPy becomes a list, grey images get
    their channel.

    >>> _as_images(np.array([["a.png"], ["b.png"]])), _as_images(np.zeros((5, 8, 8))).shape
    (['a.png', 'b.png'], (5, 8, 8, 1))
    """
    if isinstance(X, str) or not isinstance(X, Iterable | Images | MemoryImages):
        raise UserError(f"X is {X!r:.60} ({type(X).__name__}), expected several images: {EXPECTED}")
    if isinstance(X, torch.Tensor | np.ndarray) and X.ndim == 3:
        return X[..., None] if isinstance(X, np.ndarray) else X[:, None]
    values: Any = X.to_numpy() if hasattr(X, "to_numpy") else X  # pyright: ignore[reportAttributeAccessIssue]  pandas and polars
    if not isinstance(values, np.ndarray) or values.ndim == 4:
        return values
    if values.ndim == 1 or (values.ndim == 2 and values.shape[1] == 1 and values.dtype.kind in "OUT"):
        return values.ravel().tolist()
    raise UserError(f"X is an array of shape {values.shape} and type {values.dtype}, expected {EXPECTED}")
