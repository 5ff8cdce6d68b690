import os

import numpy as np
import pytest

from fullrank.images import Reading, open_images
from fullrank.images.labels import folder_labels


def names(images):
    return [images.name(i) for i in range(len(images))]


def test_class_folders_give_labels_in_sorted_order(write):
    folder = write("dog/b.png", "dog/a.jpg", "ant/deep/er/c.png", "cat/x.PNG")
    splits = open_images(folder)
    assert list(splits) == ["all"]
    images = splits["all"]
    assert names(images) == ["ant/deep/er/c.png", "cat/x.PNG", "dog/a.jpg", "dog/b.png"]
    assert images.labels.tolist() == [0, 1, 2, 2]
    assert images.classes == ("ant", "cat", "dog")
    assert images.labels.dtype == np.int64
    assert images.source == str(folder)


def test_split_folders_share_the_classes_of_the_training_split(write):
    files = ("train/cat/a.png", "train/dog/a.png", "test/dog/b.png", "val/images/c.png", "unlabeled/d.png")
    splits = open_images(write(*files))
    labels = {split: images.labels.tolist() for split, images in splits.items()}
    assert labels == {"test": [1], "train": [0, 1], "unlabeled": [-1], "val": [-1]}
    assert all(images.classes == ("cat", "dog") for images in splits.values())
    assert names(splits["test"]) == ["test/dog/b.png"]
    assert splits["test"].source.endswith("photos[test]")


def test_a_class_may_have_the_name_train(write):
    images = open_images(write("bus/a.png", "train/a.png", "all/a.png"))["all"]
    assert images.classes == ("all", "bus", "train")
    assert images.labels.tolist() == [0, 1, 2]


def test_a_single_folder_that_contains_everything_is_skipped(write):
    splits = open_images(write("set-160/train/cat/a.png", "set-160/train/dog/a.png", "set-160/val/dog/b.png"))
    assert list(splits) == ["train", "val"]
    assert splits["val"].labels.tolist() == [1]
    assert splits["val"].open(0).size == (8, 6)


def test_links_inside_the_folder_are_followed_and_each_real_folder_is_read_once(write):
    folder = write("cat/a.png", "dog/b.png")
    (folder / "cat" / "linked.png").symlink_to(folder / "dog" / "b.png")
    (folder / "emu").symlink_to(folder / "dog")
    (folder / "dog" / "up").symlink_to(folder)
    (folder / "cat" / "self").symlink_to(folder / "cat")
    images = open_images(folder)["all"]
    assert names(images) == ["cat/a.png", "cat/linked.png", "dog/b.png"]
    assert all(images.open(i).size == (8, 6) for i in range(len(images)))


def test_links_out_of_the_folder_are_followed_only_on_request(write):
    folder, outside = write("cat/a.png", "dog/b.png"), write("secret.png", folder="elsewhere")
    (folder / "cat" / "file.png").symlink_to(outside / "secret.png")
    (folder / "emu").symlink_to(outside)
    images = open_images(folder)["all"]
    assert names(images) == ["cat/a.png", "dog/b.png"]
    assert "2 symbolic links lead out of the folder" in images.notes[0]
    assert "--data.follow-links" in images.notes[0]
    followed = open_images(folder, Reading(follow_links=True))["all"]
    assert names(followed) == ["cat/a.png", "cat/file.png", "dog/b.png", "emu/secret.png"]
    assert not any("symbolic" in note for note in followed.notes)


def test_class_folders_in_two_places_are_train_and_test_by_two_links(write, tmp_path):
    places = {"train": write("cat/a.png", "dog/b.png"), "test": write("dog/c.png", folder="elsewhere")}
    (tmp_path / "both").mkdir()
    for split, place in places.items():
        (tmp_path / "both" / split).symlink_to(place)
    splits = open_images(tmp_path / "both", Reading(follow_links=True))
    found = {split: [images.classes[label] for label in images.labels] for split, images in splits.items()}
    assert found == {"train": ["cat", "dog"], "test": ["dog"]}


@pytest.mark.parametrize(
    ("files", "classes", "word"),
    [
        (["cat/1.png", "dog/2.png"], ("cat", "dog"), "--data.labels none"),
        ([f"berlin/{k}.png" for k in range(20)] + [f"rome/{k}.png" for k in range(4)], (), "83%"),
        ([f"{k}/a.png" for k in range(24)], (), "24 folders for 24 images"),
        (["trips/berlin/1.png", "family/xmas/2.png"], (), "inside these folders"),
    ],
)
def test_folders_are_classes_only_where_they_look_like_classes(write, files, classes, word):
    folder = write(*files)
    images = open_images(folder)["all"]
    assert images.classes == classes
    assert (images.labels.max() >= 0) == bool(classes)
    assert word in images.notes[0]
    assert open_images(folder, Reading(labels="none"))["all"].labels.max() == -1
    names = {file.split("/")[0] for file in files}
    assert len(open_images(folder, Reading(labels="folders"))["all"].classes) == len(names)


def test_names_need_not_be_unicode(write):
    folder = write("a.png")
    os.rename(os.fsencode(folder / "a.png"), os.fsencode(folder) + b"/\xff.png")
    images = open_images(folder)["all"]
    assert images.open(0).size == (8, 6)
    assert os.fsencode(images.name(0)) == b"\xff.png"


def test_the_classes_of_many_files_are_found_in_a_pass():
    files = [f"class{i % 1000}/{i}.jpg" for i in range(400_000)]  # a second; a pass for each file would take an hour
    labelled = folder_labels(files, [None] * len(files), "auto")
    assert len(labelled.classes) == 1000
    assert (labelled.labels >= 0).all()
