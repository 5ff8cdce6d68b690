"""Several labels an image: the metrics by a naive loop, the probes at a known optimum, and `evaluate` from a table."""

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from fullrank.errors import UserError
from fullrank.evaluation import score_tables
from fullrank.evaluation.features import standardize
from fullrank.evaluation.judging import evaluate
from fullrank.evaluation.multi_label import (
    multi_label_knn,
    multi_label_linear,
    multi_label_metrics,
    resampled_precisions,
)
from fullrank.evaluation.result import Evaluation
from fullrank.images import MemoryImages, Reading, as_images, load_images, open_images


def naive_average_precision(positive, scores):
    """Sum precision times the gained recall over the different scores, from the highest to the lowest."""
    total = before = 0.0
    for threshold in sorted(set(scores), reverse=True):
        chosen = [p for p, s in zip(positive, scores, strict=True) if s >= threshold]
        total += (sum(chosen) - before) * sum(chosen) / len(chosen)
        before = sum(chosen)
    return total / before


def rows_of(images):
    assert images.multi_labels is not None
    return images.multi_labels


def random_labels(n=40, K=4, seed=0):
    generator = np.random.default_rng(seed)
    return generator.random((n, K)) < 0.3, generator.integers(0, 8, (n, K)) / 8  # with ties


def test_average_precision_is_that_of_a_loop_over_the_thresholds():
    Y, scores = random_labels()
    Y[:, 2] = False
    metrics = multi_label_metrics(Y, scores)
    expected = {k: naive_average_precision(Y[:, k], scores[:, k]) for k in (0, 1, 3)}
    assert metrics.average_precision == pytest.approx(expected)
    assert metrics.mean_average_precision == pytest.approx(np.mean(list(expected.values())))
    assert metrics.positives == {k: int(Y[:, k].sum()) for k in (0, 1, 3)}


@pytest.mark.parametrize("grouped", [False, True])
def test_a_resample_has_the_mean_average_precision_of_its_rows(grouped):
    Y, scores = random_labels()
    groups = np.arange(40) // 4 if grouped else None
    unit = np.arange(40) // 4 if grouped else np.arange(40)
    count = int(unit.max()) + 1
    drawn = np.random.default_rng(5).integers(count, size=(6, count))  # the draws of the bootstrap
    expected = []
    for units in drawn:
        rows = np.concatenate([np.flatnonzero(unit == one) for one in units])
        expected.append(multi_label_metrics(Y[rows], scores[rows]).mean_average_precision)
    assert resampled_precisions(Y, scores, groups, resamples=6, seed=5) == pytest.approx(expected)


def test_separable_classes_have_a_mean_average_precision_of_one():
    generator = torch.Generator().manual_seed(0)
    Y = (torch.rand(300, 3, generator=generator) < 0.4).to(torch.int8)
    X = torch.randn(300, 8, generator=generator) * 0.1
    X[:, :3] += Y
    Y[:5] = -1  # no labels
    X_train, X_test = standardize(X[:200], X[200:])
    for result in (multi_label_linear(X_train, Y[:200], X_test), multi_label_knn(X[:200], Y[:200], X[200:], k=5)):
        assert result.scores.shape == (100, 3)
    linear = multi_label_linear(X_train, Y[:200], X_test)
    assert multi_label_metrics(Y[200:].numpy() == 1, linear.scores.numpy()).mean_average_precision == pytest.approx(1.0)
    assert linear.chosen["penalty"] > 0


def test_one_class_of_several_has_the_solution_of_scikit_learn():
    from sklearn.linear_model import LogisticRegression

    generator = torch.Generator().manual_seed(1)
    X = torch.randn(80, 5, generator=generator)
    Y = ((X[:, :2] + torch.randn(80, 2, generator=generator)) > 0).to(torch.int8)
    scores = multi_label_linear(X, Y, X, penalties=[0.05]).scores
    for k in range(2):
        expected = (
            LogisticRegression(C=1 / (0.05 * 80), tol=1e-8)
            .fit(X.numpy(), Y[:, k].numpy())
            .predict_proba(X.numpy())[:, 1]
        )
        assert scores[:, k].numpy() == pytest.approx(expected, abs=2e-3)


def test_knn_scores_are_the_weighted_shares_of_the_neighbours():
    X, Y = torch.randn(12, 4), (torch.rand(12, 2) < 0.5).to(torch.int8)
    Q = torch.randn(1, 4)
    similarity = torch.nn.functional.cosine_similarity(Q, X)
    nearest = similarity.argsort(descending=True)[:3]
    weights = (similarity[nearest] / 0.1).exp()
    expected = (weights[:, None] * Y[nearest]).sum(0) / weights.sum()
    assert torch.allclose(multi_label_knn(X, Y, Q, k=3, temperature=0.1).scores[0], expected, atol=1e-5)


@pytest.fixture(scope="module")
def digits_table(tmp_path_factory):
    """Return a table of 120 digits with two labels each: the digit below 4 by its number, and whether it is even."""
    folder = tmp_path_factory.mktemp("digits")
    digits = open_images("digits")["all"]
    lines, lists = ["path,label"], []
    rows = np.flatnonzero(digits.labels < 4)[:120]
    for row in rows.tolist():
        Image.fromarray(np.asarray(digits.open(row))[..., 0]).save(folder / f"{row}.png")
        digit = int(digits.labels[row])
        lists.append([f"digit {digit}", *(["even"] if digit % 2 == 0 else [])])
        lines.append(f"{row}.png,{'|'.join(lists[-1])}")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    pq.write_table(pa.table({"path": [f"{row}.png" for row in rows], "label": lists}), folder / "labels.parquet")
    return folder


def test_a_list_and_a_text_with_a_separator_have_the_same_labels(digits_table):
    from_csv = open_images(digits_table / "labels.csv", Reading(label_separator="|"))["all"]
    from_parquet = open_images(digits_table / "labels.parquet")["all"]
    assert from_csv.classes == from_parquet.classes == ("digit 0", "digit 1", "digit 2", "digit 3", "even")
    assert np.array_equal(rows_of(from_csv), rows_of(from_parquet))
    assert (from_csv.labels == -1).all()
    memory = load_images(from_csv, channels=1)
    assert np.array_equal(rows_of(as_images(memory)), rows_of(from_csv))
    assert np.array_equal(rows_of(from_csv.subset([3, 1])), rows_of(from_csv)[[3, 1]])


def test_an_empty_cell_is_unlabelled_and_an_empty_text_has_no_class(tmp_path):
    for k in range(3):
        Image.new("L", (8, 8)).save(tmp_path / f"{k}.png")
    (tmp_path / "t.csv").write_text('path,label\n0.png,a;b\n1.png,""\n2.png,\n')
    images = open_images(tmp_path / "t.csv", Reading(label_separator=";"))["all"]
    assert rows_of(images).tolist() == [[1, 1], [0, 0], [-1, -1]]


def test_splits_have_the_classes_of_all_files(tmp_path):
    for split, labels in (("train", [["a"], ["c", "a"]]), ("test", [["b"], ["c"]])):
        for k in range(2):
            Image.new("L", (8, 8)).save(tmp_path / f"{k}.png")
        pq.write_table(pa.table({"path": ["0.png", "1.png"], "label": labels}), tmp_path / f"{split}.parquet")
    splits = open_images(f"parquet:{tmp_path}")
    assert splits["train"].classes == splits["test"].classes == ("a", "b", "c")
    assert rows_of(splits["test"]).tolist() == [[0, 1, 0], [0, 0, 1]]


def test_evaluate_scores_several_labels_against_the_baselines(digits_table):
    options: dict[str, Any] = {
        "supervised": True,
        "supervised_epochs": 1,
        "protocols": {"linear": {"penalties": [0.01]}},
    }
    result = evaluate("timm-untrained:test_resnet", labelled=digits_table / "labels.parquet", **options)
    assert {score.metric for score in result.scores} == {"mean average precision"}
    assert all(score.probe.endswith(", mean average precision") and score.low is not None for score in result.scores)
    for score in result.scores:
        assert score.low is not None
        assert score.high is not None
        assert score.low <= score.accuracy <= score.high
    assert {score.features for score in result.scores} == {
        "backbone",
        "raw pixels (32 px)",
        "untrained backbone",
        "labels alone",
    }
    pixels = next(score for score in result.scores if score.features == "raw pixels (32 px)")
    assert result.chance is not None
    assert pixels.accuracy > 0.9 > result.chance
    assert set(pixels.per_class) == set(pixels.positives) == {"digit 0", "digit 1", "digit 2", "digit 3", "even"}
    assert {comparison.against for comparison in result.comparisons} == {
        "raw pixels (32 px)",
        "untrained backbone",
        "labels alone",
    }
    assert "mean average precision" in result.verdict
    assert any(line.startswith("few-shot: the images have several labels") for line in result.left_out)
    assert Evaluation.from_json(json.loads(json.dumps(result.to_json()))) == result
    scores, classes = score_tables(result, width=200)
    assert scores.row_count > 2
    assert classes.row_count == 6


def test_what_needs_one_label_an_image_refuses_in_one_line(digits_table):
    from fullrank.evaluation.choosing import choose
    from fullrank.evaluation.finetuning import finetune

    source = str(digits_table / "labels.parquet")
    with pytest.raises(UserError, match="have several labels each, which only fullrank evaluate scores"):
        finetune("timm-untrained:test_resnet", labelled=source)
    with pytest.raises(UserError, match="have several labels each, which only fullrank evaluate scores"):
        choose(["timm-untrained:test_resnet", "timm-untrained:test_vit"], source, labelled=source)


def test_labels_of_an_array_are_scored(digits_table):
    images = open_images(digits_table / "labels.parquet")["all"]
    pixels = load_images(images, channels=3).pixels
    result = evaluate("timm-untrained:test_resnet", (pixels, rows_of(images)), probes=["knn"], baselines=False)
    assert result.scores[0].probe == "kNN, mean average precision"
    with pytest.raises(UserError, match="expected 1"):
        as_images((pixels, rows_of(images) + 1))
    with pytest.raises(UserError, match=r"no probe of svm scores several labels"):
        evaluate("timm-untrained:test_resnet", (pixels, rows_of(images)), probes=["svm"], baselines=False)
    assert isinstance(load_images(images, channels=1), MemoryImages)
