"""`fullrank.Embedder` with scikit-learn's own tools."""

import pickle

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline, make_pipeline

from fullrank import Embedder, load, open_images
from fullrank.errors import UserError

MODEL = "timm-untrained:test_resnet"


@pytest.fixture(scope="module")
def digits():
    images = open_images("digits")["all"].subset(range(60))
    return np.stack([images.open(i) for i in range(60)]), images.labels


@pytest.fixture
def paths(tmp_path, digits):
    names = [str(tmp_path / f"{i:02}.png") for i in range(6)]
    for name, pixels in zip(names, digits[0], strict=False):
        Image.fromarray(pixels[..., 0]).save(name)
    return names


def test_features_are_those_of_the_model(digits):
    images, _ = digits
    X = Embedder(MODEL, batch_size=7, device="cpu").fit_transform(images)
    assert X.dtype == np.float32
    assert torch.allclose(torch.from_numpy(X), load(MODEL).features(list(images)), atol=1e-6)


def test_paths_arrays_tensors_and_opened_images_give_the_same_rows(digits, paths):
    embedder, images = Embedder(MODEL, device="cpu"), digits[0][:6]
    rows = embedder.transform(images)
    opened = open_images("digits")["all"].subset(range(6))
    tensor = torch.from_numpy(images).permute(0, 3, 1, 2)
    arrays = (images[..., 0], tensor, tensor[:, 0], list(images), opened)
    for same in (paths, np.array(paths), np.array(paths)[:, None], *arrays):
        assert np.allclose(embedder.transform(same), rows, atol=1e-6)


def test_values_of_12_bits_are_scaled_as_in_pretraining_and_alike_in_each_call(digits):
    def expected(images):
        return load(MODEL).features(list(images.astype(np.float32) / 4095))

    images, embedder = digits[0].astype(np.uint16) * 16, Embedder(MODEL, device="cpu")  # up to 4080
    assert np.allclose(embedder.transform(images), expected(images), atol=1e-5)
    embedder.fit(images)
    dark = images[:5] // 32  # 7 bits alone, but 12 among the images of fit
    assert np.allclose(pickle.loads(pickle.dumps(embedder)).transform(dark), expected(dark), atol=1e-5)


def test_a_column_of_paths_in_a_data_frame(paths):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"path": paths, "age": np.arange(6.0)})
    columns = ColumnTransformer([("image", Embedder(MODEL, device="cpu"), "path"), ("rest", "passthrough", ["age"])])
    table = columns.set_output(transform="pandas").fit_transform(frame)
    assert table.shape == (6, 97)
    assert list(table.columns[[0, 95, 96]]) == ["image__embedder0", "image__embedder95", "rest__age"]
    assert np.allclose(Embedder(MODEL).transform(frame[["path"]]), Embedder(MODEL).transform(paths))


def test_a_changed_model_is_loaded(digits):
    embedder = Embedder(MODEL, device="cpu")
    for model, D in ((MODEL, 96), ("timm-untrained:test_vit", 64)):
        embedder.set_params(model=model)
        assert embedder.transform(digits[0][:3]).shape[1] == len(embedder.get_feature_names_out()) == D


def test_a_pickle_has_no_weights_and_gives_the_same_features(digits):
    embedder = Embedder(MODEL, device="cpu")
    X = embedder.fit_transform(digits[0][:3])
    data = pickle.dumps(embedder)
    assert len(data) < 1000
    assert np.array_equal(pickle.loads(data).transform(digits[0][:3]), X)


def test_a_grid_search_over_models_with_a_cache(digits, tmp_path, run):
    """The features of a run can be cached, although the search clones and hashes the embedder."""
    images, labels = digits
    steps = [("embedder", Embedder(MODEL, device="cpu")), ("classifier", LogisticRegression(max_iter=20))]
    grid = {"embedder__model": [MODEL, str(run.path)], "classifier__C": [0.1, 1.0]}
    search = GridSearchCV(Pipeline(steps, memory=str(tmp_path)), grid, cv=2, error_score="raise")
    with pytest.warns():  # the few iterations do not converge
        search.fit(images, labels)
    assert len(search.cv_results_["params"]) == 4
    assert search.best_params_["embedder__model"] in grid["embedder__model"]
    assert search.predict(images[:5]).shape == (5,)


def test_lists_of_paths_are_split_into_folds(paths):
    classifier = make_pipeline(Embedder(MODEL, device="cpu"), LogisticRegression())
    assert len(cross_val_score(classifier, paths, [0, 1] * 3, cv=3, error_score="raise")) == 3


@pytest.mark.parametrize(
    ("X", "problem"),
    [
        ("one.png", "'one.png' cannot be read"),
        (3, "images is 3 .*expected a path"),
        (np.zeros((5, 64)), r"shape \(64,\)"),
        ([], "is empty"),
        (["no such file.png"], "no such file.png"),
    ],
)
def test_bad_images_are_user_errors(X, problem):
    with pytest.raises(UserError, match=problem):
        Embedder(MODEL, device="cpu").transform(X)
