"""`fullrank.neighbours`: each finding against a plain computation, or on images whose answer is known."""

import os
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from torch import nn

import fullrank
from fullrank.errors import UserError
from fullrank.evaluation.nearest import nearest
from fullrank.evaluation.neighbours import correlations
from fullrank.images import Preprocess, open_images
from fullrank.methods import BackboneConfig
from fullrank.models import Model

FLAT = Model("flat", nn.Flatten(), Preprocess(1, 8, (0.0,), (1.0,)), BackboneConfig())
"""A model whose features are the pixels."""


def test_nearest_equals_a_plain_sort_of_the_cosines():
    X = torch.randn(50, 7, generator=torch.Generator().manual_seed(0))
    cosines = torch.cosine_similarity(X[:, None], X[None], dim=2).fill_diagonal_(-torch.inf)
    expected = cosines.sort(descending=True)
    for cells in (2**24, 100):
        similarities, indices = nearest(X, 5, cells=cells)
        assert torch.equal(indices, expected.indices[:, :5])
        torch.testing.assert_close(similarities, expected.values[:, :5])
    assert torch.equal(nearest(X, 5, X[:3] * 4)[1][:, 1:], indices[:3, :4])


def test_copies_and_rows_of_zeros():
    similarities, indices = nearest(torch.ones(6, 3), 3)
    assert not (indices == torch.arange(6)[:, None]).any()
    torch.testing.assert_close(similarities, torch.ones(6, 3))
    similarities, indices = nearest(torch.tensor([[0, 0], [1, 0], [1, 0.1], [-1, 1.5]]), 3)
    assert not similarities[0].any()
    assert indices[1].tolist() == [2, 0, 3]  # a cosine of 0 is more than a negative one


def test_correlation_equals_numpys():
    a, b = np.random.default_rng(0).integers(0, 256, (2, 9, 30)).astype(np.uint8)
    assert np.allclose(correlations(a, b), [np.corrcoef(x, y)[0, 1] for x, y in zip(a, b, strict=True)], atol=1e-6)


def test_planted_duplicates_across_train_and_test_are_found(digits):
    train, test = digits.subset(range(100)), digits.subset([3, 3, 110, 111, 7])
    test.pixels[4] = (test.pixels[4].float() * 0.5 + 20).byte()  # the same digit in other light
    found = fullrank.neighbours(FLAT, {"train": train, "test": test}, duplicates=0.995, k=5)
    pairs = {(pair.first, pair.second): pair for pair in found.duplicates}
    assert len(pairs) == len(found.duplicates)
    assert pairs[3, 100].equal
    assert pairs[3, 101].equal  # the second copy is paired with the first image, too
    assert not pairs[7, 104].equal
    assert pairs[7, 104].correlation > 0.995
    assert [found.splits[row] for row in (99, 100)] == ["train", "test"]
    assert np.array_equal(found.picture(104), test.pixels[4].numpy())


def test_copies_in_greater_number_than_neighbours_are_all_found(digits):
    found = fullrank.neighbours(FLAT, digits.subset([*[5] * 9, *range(10, 30)]), k=2)
    assert [(pair.first, pair.second) for pair in found.duplicates if pair.equal] == [(0, i) for i in range(1, 9)]


def test_an_odd_image_is_the_first_outlier_and_a_wrong_label_is_a_likely_error(digits):
    images = digits.subset([i for i in range(120) if digits.labels[i] in (0, 1)])
    right = int(images.labels[0])
    images.labels[0] = 1 - right
    images.pixels[-1] = torch.randint(0, 256, (1, 8, 8), generator=torch.Generator().manual_seed(0)).byte()
    found = fullrank.neighbours(FLAT, images, k=5)
    assert found.outliers(1) == [len(images) - 1]
    assert found.likely_label_errors()[0] == 0
    assert found.usual_label(0) == (str(right), 1.0)
    assert found.label_agreement[0] == 0
    assert np.allclose(found.outlier_score, 1 - found.similarities.mean(axis=1), atol=1e-6)
    unlabelled = fullrank.neighbours(FLAT, replace(images, labels=torch.full_like(images.labels, -1)), k=5)
    assert unlabelled.likely_label_errors() == []
    table = unlabelled.tables()["images"]
    assert table["label"].null_count == table["label_agreement"].null_count == len(images)


def test_several_labels_of_an_image_are_one_label(digits):
    images = digits.subset([i for i in range(120) if digits.labels[i] in (0, 1)])
    Y = torch.stack([images.labels == 0, images.labels == 1, torch.ones_like(images.labels) == 1], 1).to(torch.int8)
    Y[0], Y[-1] = torch.tensor([1, 1, 0]), -1
    images = replace(
        images, labels=torch.full_like(images.labels, -1), multi_labels=Y, classes=("zero", "one", "digit")
    )
    found = fullrank.neighbours(FLAT, images, k=5)
    assert found.labels[0] == "zero|one"
    assert {*found.labels[1:]} == {"zero|digit", "one|digit", None}
    assert found.likely_label_errors() == [0]


def test_the_neighbours_of_a_run_are_those_of_its_embeddings_and_are_saved_as_parquet(run, tmp_path):
    query = open_images("digits")["all"].open(0)[..., 0]
    found = fullrank.neighbours(run.path, query=[query], k=4)
    indices = nearest(fullrank.embed(run.path).X, 4)[1].numpy()
    assert np.array_equal(found.indices, indices)
    found.save(tmp_path / "out")
    table = pq.read_table(tmp_path / "out" / "images.parquet")
    assert table.num_rows == len(found)
    assert table["neighbour_names"][5].as_py() == [found.names[i] for i in indices[5]]
    asked = pq.read_table(tmp_path / "out" / "queries.parquet")
    assert (asked["row"][0].as_py(), asked.num_rows) == (0, 4)
    with pytest.raises(UserError, match="exists already"):
        found.save(tmp_path / "out")
    replace(found, queries=None).save(tmp_path / "out", overwrite=True)
    assert not (tmp_path / "out" / "queries.parquet").exists()  # the queries of the other search


def test_unreadable_images_are_left_out_and_rows_keep_their_files(digits, tmp_path):
    for i in range(12):
        Image.fromarray(digits.pixels[i, 0].numpy()).save(tmp_path / f"{i:02}.png")
    (tmp_path / "05.png").write_text("no image")
    (tmp_path / "11.png").rename(tmp_path / os.fsdecode(b"\xff.png"))
    found = fullrank.neighbours(FLAT, str(tmp_path), k=3)
    assert (len(found), found.skipped) == (11, ("05.png",))
    assert found.tables()["images"]["name"][-1].as_py() == "\\udcff.png"
    assert found.names[5] == "06.png"
    assert np.array_equal(found.picture(5), digits.pixels[6].numpy())


WRONG: list[dict] = [{"k": 0}, {"duplicates": 1.5}, {"query": "no.png"}, {"split": "train"}, {"data": "rows"}]


@pytest.mark.parametrize("wrong", WRONG)
def test_bad_arguments_are_user_errors(digits, wrong):
    data = digits.subset([0]) if "data" in wrong else digits  # one image has no neighbour
    with pytest.raises(UserError):
        fullrank.neighbours(FLAT, data, **{name: value for name, value in wrong.items() if name != "data"})


def test_a_model_at_chance_warns_of_its_outliers(digits):
    images = digits.subset(range(400))
    assert fullrank.neighbours(FLAT, images).warning == ""
    shuffled = images.labels[torch.randperm(400, generator=torch.Generator().manual_seed(0))]
    assert "by chance" in fullrank.neighbours(FLAT, replace(images, labels=shuffled)).warning
    few = torch.tensor([0, 0, 1] + [-1] * 397)  # of digits that are no neighbours
    for labels in (few, few.clamp(max=-1), torch.zeros(400, dtype=torch.long), torch.arange(400)):  # nothing to compare
        assert fullrank.neighbours(FLAT, replace(images, labels=labels)).warning == ""
