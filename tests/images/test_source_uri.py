import pytest

from fullrank.errors import UserError
from fullrank.images import Reading, open_images
from fullrank.images.source_uri import absolute_source, open_once


def message(source, split=None, **options):
    with pytest.raises(UserError) as caught:
        open_images(source, Reading(**options), split=split)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_path_may_have_a_scheme(write, parquet):
    folder, table = write("a.png"), parquet()
    assert open_images(f"folder:{folder}")["all"].name(0) == open_images(folder)["all"].name(0) == "a.png"
    assert len(open_images(f"parquet:{table}")["train"]) == len(open_images(str(table.parent))["train"]) == 12


def test_a_missing_path_suggests_the_nearest_existing_path(write):
    folder = write("cats/a.png")
    expected = f"no file or folder '{folder.parent}/fotos'; the nearest existing name is '{folder}'"
    assert message(folder.parent / "fotos") == expected
    assert message(f"folder:{folder}/cat/deeper").endswith(f"the nearest existing name is '{folder}/cats'")
    assert message(folder / "zzz").endswith(f"there is no 'zzz' in '{folder}'")


def test_an_empty_folder_raises(tmp_path):
    assert message(tmp_path).startswith(f"folder '{tmp_path}' is empty")


def test_a_folder_with_images_and_tables_needs_a_scheme(parquet, write):
    folder = parquet().parent
    write("a.png", folder="tables")
    expected = f"'{folder}' contains images and Parquet files; choose with folder:{folder} or parquet:{folder}"
    assert message(folder) == expected
    assert list(open_images(f"parquet:{folder}")) == ["train"]
    assert len(open_images(f"folder:{folder}")["all"]) == 1


@pytest.mark.parametrize("source", ["parket:x", "s3://bucket/x", "folder:", "hf:"])
def test_a_source_of_another_form_is_refused(source):
    message(source)


def test_a_source_is_read_once_inside_open_once(write, monkeypatch):
    folder = write("a.png", "b.png")
    with open_once():
        first = open_images(folder)["all"]
        write("c.png")
        assert open_images(folder, Reading(test="val"))["all"] is first
        assert len(open_images(folder, Reading(max_pixels=9))["all"]) == 3
    assert len(open_images(folder)["all"]) == 3


def test_a_path_with_dots_is_the_plain_path_unless_a_link_leads_elsewhere(tmp_path, monkeypatch):
    for name in ("photos", "here", "far/deep", "far/photos"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "here" / "link").symlink_to(tmp_path / "far" / "deep")
    monkeypatch.chdir(tmp_path / "here")
    assert absolute_source("folder:../photos") == f"folder:{tmp_path / 'photos'}"
    (tmp_path / "here" / "photos").mkdir()
    assert absolute_source("link/../photos") == f"{tmp_path}/here/link/../photos"  # that is far/photos
