from dataclasses import replace

import numpy as np
import pytest

from fullrank.errors import UserError
from fullrank.images import Reading, open_images, train_and_test
from fullrank.images.labels import split_of_file
from fullrank.images.train_test import Splits, hold_out, reduce_training, stratified_order


@pytest.mark.parametrize(
    ("path", "split"),
    [
        ("train-00000-of-00001.parquet", "train"),
        ("data/validation-00002-of-00010.parquet", "validation"),
        ("my_split-00000-of-00001.parquet", "my_split"),
        ("Test.parquet", "test"),
        ("val2.parquet", "val"),
        ("train/0000.parquet", "train"),
        ("plain_text/test/0000.parquet", "test"),
        ("trainers.parquet", None),
        ("0000.parquet", None),
    ],
)
def test_the_split_is_read_from_the_name(path, split):
    assert split_of_file(path) == split


def names(images):
    return [images.name(i) for i in range(len(images))]


@pytest.mark.parametrize("name", ["validation", "val", "valid", "Test"])
def test_a_validation_split_replaces_a_missing_test_split(write, name):
    assert names(train_and_test(write("train/a.png", f"{name}/c.png")).test) == [f"{name}/c.png"]


def test_a_labelled_test_split_is_preferred(write):
    folder = write("train/cat/a.png", "train/dog/b.png", "test/c.png", "val/cat/d.png", "val/dog/e.png")
    assert names(train_and_test(folder).test) == ["val/cat/d.png", "val/dog/e.png"]
    assert names(train_and_test(folder, Reading(test="test")).test) == ["test/c.png"]


def test_unknown_splits_raise_with_a_suggestion(write):
    folder = write("train/a.png", "test/b.png")
    with pytest.raises(UserError, match=r"'tran'; choose from test, train; did you mean 'train'\?"):
        train_and_test(folder, Reading(train="tran"))
    with pytest.raises(UserError, match="'tets'; choose from test, train; did you mean 'test'"):
        train_and_test(folder, Reading(test="tets"))
    with pytest.raises(UserError, match="no split 'train', only dev, test"):
        train_and_test(write("dev/a.png", "test/b.png", folder="others"))


def test_a_fifth_of_each_class_is_held_out():
    splits = train_and_test("digits", seed=3)
    counts = np.bincount(splits.test.labels)
    assert np.abs(counts - np.bincount(open_images("digits")["all"].labels) / 5).max() <= 1
    assert sorted(names(splits.train) + names(splits.test)) == sorted(f"digits[{k}]" for k in range(1797))
    assert "20 % of its images are held out, stratified by label, seed 3" in splits.statement


def test_too_few_images_raise(write):
    words = r"4 images, expected at least 5 .*; give more images, or name a test split: --data\.test"
    with pytest.raises(UserError, match=words):
        train_and_test(write(*(f"{k}.png" for k in range(4))))
    with pytest.raises(UserError, match="1 images, expected at least 5"):
        hold_out(open_images("digits")["all"].subset([0]))
    with pytest.raises(UserError, match=r"digits has no images; give at least one"):
        train_and_test(open_images("digits")["all"].subset([]))


def test_classes_that_differ_only_by_case_or_blanks_are_told():
    images = open_images("digits")["all"]
    for classes, told in ((("Cat", "cat ", "dog"), True), (("cat", "cats", "dog"), False)):
        statement = reduce_training(Splits(replace(images, classes=classes), images, "")).statement
        assert ("warning: class 'Cat'" in statement) == told


def test_every_beginning_of_the_order_has_the_shares_of_the_classes():
    labels = np.random.default_rng(1).permutation(np.repeat([-1, 0, 3, 4], [5, 400, 80, 1]))
    order = stratified_order(labels)
    assert sorted(order) == list(range(486))
    for k in range(1, 487):
        counts = np.array([(labels[order[:k]] == label).sum() for label in (-1, 0, 3, 4)])
        assert np.abs(counts - np.array([5, 400, 80, 1]) * k / 486).max() <= 2
    assert not np.array_equal(order, np.sort(order))


def test_subsets_are_nested_and_do_not_depend_on_validation_images():
    small, large = (set(names(train_and_test("digits", subset=n).train)) for n in (100, 500))
    with_validation = train_and_test("digits", subset=500, validation=0.2)
    assert small < large == set(names(with_validation.train))
    less = train_and_test("digits", validation=0.1)
    assert set(names(less.test)) < set(names(with_validation.test))
    assert not set(names(less.test)) & set(names(less.train))
    assert sorted(names(less.test) + names(less.train)) == sorted(names(train_and_test("digits").train))


def test_the_same_images_for_training_and_test_are_told():
    assert (
        "warning: the test images are the training images"
        in train_and_test("digits", Reading(train="all", test="all")).statement
    )
