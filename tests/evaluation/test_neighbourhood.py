"""`fullrank.neighbours`: each finding against a plain computation, or on images whose answer is known."""

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from torch import nn

import fullrank
from fullrank.errors import UserError
from fullrank.evaluation.neighbourhood import nearest, neighbours
from fullrank.evaluation.neighbourhood.duplicates import correlations
from fullrank.evaluation.neighbourhood.plane import draw_map
from fullrank.images import MemoryImages, Preprocess, load_images, open_images
from fullrank.methods import BackboneConfig
from fullrank.models import Model
from fullrank.report.neighbours import summary

FLAT = Model("flat", nn.Flatten(), Preprocess(1, 8, (0.0,), (1.0,)), BackboneConfig(), untrained=nn.Flatten)
"""A model whose features are the pixels."""


@pytest.fixture(scope="module")
def digits():
    return load_images(open_images("digits")["all"].subset(range(120)), channels=1)


def part(images, rows, labels=None):
    rows = torch.as_tensor(rows)
    labels = images.labels[rows] if labels is None else torch.as_tensor(labels)
    return MemoryImages(images.pixels[rows], labels, tuple(images.names[i] for i in rows), images.classes)


def test_nearest_equals_a_plain_sort_of_the_cosines():
    X = np.random.default_rng(0).standard_normal((50, 7)).astype(np.float32)
    cosines = (X @ X.T) / np.outer(*[np.linalg.norm(X, axis=1)] * 2)
    np.fill_diagonal(cosines, -np.inf)
    expected = np.argsort(-cosines, axis=1)[:, :5]
    indices, similarities = nearest(X, 5)
    assert np.array_equal(indices, expected)
    assert np.allclose(similarities, np.take_along_axis(cosines, expected, axis=1), atol=1e-6)
    to_query, _ = nearest(X, 5, X[:3] * 4)
    assert np.array_equal(to_query[:, 0], [0, 1, 2])
    assert np.array_equal(to_query[:, 1:], expected[:3, :4])


def test_no_image_is_its_own_neighbour_among_many_copies():
    indices, similarities = nearest(np.ones((6, 3), np.float32), 3)
    assert not (indices == np.arange(6)[:, None]).any()
    assert np.allclose(similarities, 1)


def test_a_row_of_zeros_is_similar_to_no_row():
    X = np.array([[0, 0], [1, 0], [1, 0.1], [-1, 1.5]], np.float32)
    indices, similarities = nearest(X, 3)
    assert np.allclose(similarities[0], 0, atol=1e-6)
    cosine = X[1] @ X[3] / np.linalg.norm(X[3])
    assert indices[1].tolist() == [2, 0, 3]  # a cosine of 0 is more than a negative one
    assert np.allclose(similarities[1], [1 / 1.01**0.5, 0, cosine], atol=1e-6)
    assert np.allclose(nearest(np.zeros((4, 3), np.float32), 2)[1], 0, atol=1e-6)
    assert np.allclose(nearest(np.zeros((4, 3), np.float32), 2, np.zeros((1, 3), np.float32))[1], 0, atol=1e-6)


def test_correlation_equals_numpys():
    a, b = np.random.default_rng(0).integers(0, 256, (2, 9, 30)).astype(np.uint8)
    assert np.allclose(correlations(a, b), [np.corrcoef(x, y)[0, 1] for x, y in zip(a, b, strict=True)], atol=1e-6)


def test_planted_duplicates_across_train_and_test_are_found(digits):
    train = part(digits, range(100))
    brighter = (part(digits, [7]).pixels.float() * 0.5 + 20).byte()  # the same digit in other light
    test = part(digits, [3, 3, 110, 111])
    test = MemoryImages(
        torch.cat([test.pixels, brighter]), torch.cat([test.labels, digits.labels[7:8]]), (*"abcde",), digits.classes
    )
    found = neighbours(FLAT, {"train": train, "test": test}, duplicates=0.995, k=5, map_images=0)
    pairs = {(pair.first, pair.second): pair for pair in found.duplicates}
    assert pairs[3, 100].equal
    assert pairs[3, 101].equal  # the second copy is paired with the first image, too
    assert not pairs[7, 104].equal
    assert pairs[7, 104].correlation > 0.995
    assert len(pairs) == len(found.duplicates)
    assert found.across_splits()["train", "test"] == 3
    assert any("lie across train and test" in line for line in summary(found))
    assert all(pair.first < pair.second for pair in found.duplicates)


def test_copies_in_greater_number_than_neighbours_are_all_found(digits):
    found = neighbours(FLAT, part(digits, [*[5] * 9, *range(10, 30)]), k=2, map_images=0)
    assert [(pair.first, pair.second) for pair in found.duplicates if pair.equal] == [(0, i) for i in range(1, 9)]


def test_an_odd_image_is_the_first_outlier_and_a_wrong_label_is_doubtful(digits):
    rows = [i for i in range(120) if digits.labels[i] in (0, 1)]
    labels = digits.labels[rows].clone()
    labels[0] = 1 - labels[0]
    images = part(digits, rows, labels)
    images.pixels[-1] = torch.randint(0, 256, (1, 8, 8), generator=torch.Generator().manual_seed(0)).byte()
    found = neighbours(FLAT, images, k=5, map_images=0)
    assert found.outliers(1) == [len(rows) - 1]
    assert found.doubtful_labels()[0] == 0
    assert found.usual_label(0) == (found.labels[1] if labels[1] != labels[0] else str(1 - int(labels[0])), 1.0)
    assert found.label_agreement[0] == 0
    score = 1 - found.similarities.mean(axis=1)
    assert np.allclose(found.outlier_score, score, atol=1e-6)


def test_unlabelled_images_have_no_agreement(digits):
    found = neighbours(FLAT, part(digits, range(20), [-1] * 20), map_images=0)
    assert np.isnan(found.label_agreement).all()
    assert found.doubtful_labels() == []
    assert found.to_table()["label"].null_count == found.to_table()["label_agreement"].null_count == 20


def test_the_map_keeps_groups_apart_and_depends_on_the_seed_alone():
    generator = np.random.default_rng(0)
    centres = np.repeat(np.eye(3, 10, dtype=np.float32), 20, axis=0)
    X = centres + 0.02 * generator.standard_normal((60, 10)).astype(np.float32)
    positions = draw_map(X, 60, 0)
    distances = np.linalg.norm(positions[:, None] - positions[None], axis=-1) + 1e9 * np.eye(60)
    assert np.array_equal(distances.argmin(axis=1) // 20, np.arange(60) // 20)
    assert np.array_equal(positions, draw_map(X, 60, 0))
    assert np.isfinite(draw_map(X, 12, 0)[:, 0]).sum() == 12
    assert np.isnan(draw_map(X, 3, 0)).all()


def test_the_neighbours_of_a_source_are_those_of_its_embeddings(run, tmp_path):
    query = open_images("digits")["all"].open(0)[..., 0]
    found = fullrank.neighbours(run.path, query=[query], k=4, map_images=0)
    X = fullrank.embed(run.path).X.numpy()
    indices, _ = nearest(X, 4)
    assert np.array_equal(found.indices, indices)
    assert found.names[:2] == ["digits[0]", "digits[1]"]
    assert found.queries_table()["row"].to_pylist()[0] == 0
    assert found.write(tmp_path / "out") == tmp_path / "out"
    table = pq.read_table(tmp_path / "out" / "images.parquet")
    assert table.num_rows == len(found)
    assert table["neighbour_names"][5].as_py() == [found.names[i] for i in indices[5]]
    with pytest.raises(UserError, match="exists already"):
        found.write(tmp_path / "out")
    assert (tmp_path / "out" / "queries.parquet").exists()
    fullrank.neighbours(run.path, k=4, map_images=0).write(tmp_path / "out", overwrite=True)
    assert not (tmp_path / "out" / "queries.parquet").exists()  # the queries of the other search


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"k": 0}, "k is 0"),
        ({"duplicates": 1.5}, "expected a correlation"),
        ({"map_images": -1}, "map_images is -1"),
        ({"query": "no.png"}, "no.png"),
        ({"split": "train"}, "no named splits"),
    ],
)
def test_bad_arguments_are_user_errors(digits, arguments, problem):
    with pytest.raises(UserError, match=problem):
        neighbours(FLAT, digits, **arguments)


def test_one_image_has_no_neighbour(digits):
    with pytest.raises(UserError, match="at least two"):
        neighbours(FLAT, part(digits, [0]))


def test_the_command_writes_page_and_tables(run, tmp_path, capsys):
    from fullrank.cli import main

    folder = tmp_path / "photos"
    for split, count in (("train", 12), ("test", 4)):
        (folder / split).mkdir(parents=True)
        for i in range(count):  # the test images are copies
            Image.fromarray(open_images("digits")["all"].open(i)[..., 0]).save(folder / split / f"{i}.png")
    (folder / "train" / "broken.png").write_text("no image")
    command = ["neighbours", str(run.path), "--data", str(folder), "--query", str(folder / "test" / "0.png"), "-k", "3"]
    assert main([*command, "--out", str(tmp_path / "out")]) == 0
    out, err = capsys.readouterr()
    assert "4 pairs lie across train and test" in out or "4 pairs lie across test and train" in out
    assert "broken.png" in err
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "duplicates.parquet",
        "images.parquet",
        "queries.parquet",
    ]
    pairs = pq.read_table(tmp_path / "out" / "duplicates.parquet").to_pylist()
    assert sum(pair["equal"] for pair in pairs) == 4
    assert {pair["first_split"] for pair in pairs if pair["equal"]} != {
        pair["second_split"] for pair in pairs if pair["equal"]
    }
    assert main([*command, "--out", str(tmp_path / "out")]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main([*command, "--query", "no.png"]) == 2
