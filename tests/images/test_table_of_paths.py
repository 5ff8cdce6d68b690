import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from fullrank.errors import UserError
from fullrank.images import ImageDecodeError, Reading, open_images
from fullrank.images.train_test import Splits, hold_out, reduce_training

HEADER = "path,label,patient,split"


@pytest.fixture
def csv(write, tmp_path):
    """Return a function that writes 12 images and a table of their paths next to the folder, and returns the table."""

    def write_csv(*lines, name="table.csv", encoding="utf-8"):
        write(*(f"{k}.png" for k in range(12)))
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding=encoding)
        return tmp_path / name

    return write_csv


def rows(sep=","):
    """Return a table of 12 images, in three splits, of four patients; the last image has neither label nor patient."""
    lines = [HEADER.replace(",", sep)]
    for k in range(11):
        words = [f"photos/{k}.png", ("cat", "dog")[k % 2], f"00{k // 3}", ("train", "val", "test")[k // 4]]
        lines.append(sep.join(words))
    return [*lines, sep.join(["photos/11.png", "", "", "test"])]


@pytest.mark.parametrize(
    ("sep", "name", "encoding"), [(",", "a.csv", "utf-8-sig"), (";", "a.csv", "utf-8"), ("\t", "a.tsv", "utf-8")]
)
def test_a_table_of_paths_has_labels_groups_and_splits(csv, sep, name, encoding):
    splits = open_images(csv(*rows(sep), name=name, encoding=encoding), Reading(group_column="patient"))
    assert {split: len(images) for split, images in splits.items()} == {"test": 4, "train": 4, "val": 4}
    test = splits["test"]
    assert test.name(1) == "photos/9.png"
    assert test.open(1).getpixel((0, 0)) == (9, 100, 200)
    assert test.classes == ("cat", "dog")
    assert test.labels.tolist() == [0, 1, 0, -1]
    assert splits["train"].groups.tolist() == [0, 0, 0, 1]  # one number for a patient in all splits
    assert splits["val"].groups.tolist() == [1, 1, 2, 2]
    assert test.groups.tolist() == [2, 3, 3, -1]
    assert test.source.endswith(f"{name}[test]")


def test_columns_are_named_and_other_names_are_refused(csv):
    lines = ["photo,what,who,fold", *(f"photos/{k}.png,{k % 2},{'007' if k < 6 else '7'},{k % 3}" for k in range(12))]
    table = csv(*lines)
    reading = Reading(image_column="photo", label_column="what", group_column="who", split_column="fold")
    images = open_images(table, reading)
    assert list(images) == ["0", "1", "2"]
    assert images["2"].groups.tolist() == [0, 0, 1, 1]  # 007 is not 7
    assert images["0"].labels.tolist() == [0, 1, 0, 1]
    for options, message in (
        ({}, "no image column; its columns are photo, what, who, fold"),
        ({"image_column": "phot"}, "photo"),
        ({"image_column": "photo", "group_column": "patient"}, "patient"),
        ({"image_column": "photo", "split_column": "s"}, "fold"),
        ({"image_column": "photo", "label_column": "nothing"}, "nothing"),
    ):
        with pytest.raises(UserError, match=message):
            open_images(table, Reading(**options))


def test_a_table_without_labels_says_how_to_name_them(csv):
    images = open_images(csv("file,species", "photos/0.png,emu", "photos/1.png,owl"))["all"]
    assert images.labels.tolist() == [-1, -1]
    assert any("--data.label-column NAME" in note and "species" in note for note in images.notes)


@pytest.mark.parametrize(
    ("text", "message"),
    [("path,label", "no rows"), ("path,path\na,b", "several columns"), ("path,label\na,b,c", "cannot read the table")],
)
def test_a_damaged_table_is_an_error_of_one_line(csv, text, message):
    with pytest.raises(UserError, match=message) as caught:
        open_images(csv(text))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_no_row_leads_out_of_the_folder_of_the_table(tmp_path, kind):
    outside, folder = tmp_path / "secret.png", tmp_path / "set"
    folder.mkdir()
    Image.new("RGB", (8, 6)).save(outside)
    Image.new("RGB", (8, 6)).save(folder / "own.png")
    (folder / "link.png").symlink_to(outside)
    paths = ["own.png", str(folder / "own.png"), "../secret.png", str(outside), "link.png", "missing.png", "x\0y.png"]
    if kind == "csv":
        paths = paths[:-1]
        (folder / "t.csv").write_text("\n".join(["path", *paths]))
    else:
        pq.write_table(pa.table({"path": paths}), folder / "t.parquet")
    images = open_images(folder / f"t.{kind}")["all"]
    assert images.open(0).size == images.open(1).size == (8, 6)
    for index in range(2, 5):
        with pytest.raises(ImageDecodeError, match="outside the folder of the data set"):
            images.open(index)
    with pytest.raises(ImageDecodeError, match=f"No such file or directory .paths are relative to .*{folder.name}"):
        images.open(5)
    for index in range(6, len(paths)):
        with pytest.raises(ImageDecodeError):
            images.open(index)


def test_a_table_of_bare_file_names_says_where_the_files_are(csv):
    with pytest.raises(UserError, match=r"none of the 2 files .* exists, as '3.png' in .* found at photos/3.png:"):
        open_images(csv("path", "3.png", "4.png"))
    with pytest.raises(UserError, match="give paths relative to its folder"):
        open_images(csv("path", "no.png", ""))
    assert len(open_images(csv("path", "no.png", "photos/3.png"))["all"]) == 2


def test_held_out_images_split_no_group():
    images = open_images("digits")["all"]
    rng = np.random.default_rng(0)
    images.groups = rng.integers(-1, 60, len(images))
    for seed in (0, 1):
        train, test = hold_out(images, seed=seed)
        assert not set(train.groups[train.groups >= 0]) & set(test.groups)
        assert len(train) + len(test) == len(images)
        assert 0.15 < len(test) / len(images) < 0.25
    reduced = reduce_training(Splits(images, images, ""), validation=0.2, subset=500)
    assert len(reduced.train) == 500
    assert not set(reduced.train.groups[reduced.train.groups >= 0]) & set(reduced.test.groups)
    assert 0.15 < len(reduced.test) / len(images) < 0.25


def test_texts_of_truth_values_are_labels_and_integers_name_splits(csv):
    lines = ["path,label,split", *(f"photos/{k}.png,{('true', 'false')[k % 2]},{k % 3}" for k in range(12))]
    splits = open_images(csv(*lines))
    assert {split: len(images) for split, images in splits.items()} == {"0": 4, "1": 4, "2": 4}
    assert splits["0"].classes == ("false", "true")
