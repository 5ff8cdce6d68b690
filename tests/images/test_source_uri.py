import pytest

from fullrank.errors import UserError
from fullrank.images import Reading, open_images


def message(source, split=None, **options):
    with pytest.raises(UserError) as caught:
        open_images(source, Reading(**options), split=split)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_path_may_have_a_scheme(write, parquet):
    folder, table = write("a.png"), parquet()
    assert open_images(f"folder:{folder}")["all"].name(0) == open_images(folder)["all"].name(0) == "a.png"
    assert len(open_images(f"parquet:{table}")["train"]) == len(open_images(str(table.parent))["train"]) == 12


def test_the_home_folder_is_expanded(write, monkeypatch):
    monkeypatch.setenv("HOME", str(write("a.png").parent))
    assert len(open_images("~/photos")["all"]) == 1


def test_one_split_may_be_chosen(write):
    folder = write("train/a.png", "test/b.png")
    assert list(open_images(folder, split="test")) == ["test"]
    assert "unknown split of" in message(folder, split="tset")
    assert message(folder, split="tset").endswith("choose from test, train; did you mean 'test'?")


def test_a_folder_with_a_colon_in_its_name_is_a_path(write, monkeypatch):
    monkeypatch.chdir(write("ab:c/a.png").parent)
    assert len(open_images("photos/ab:c")["all"]) == 1
    monkeypatch.chdir("photos")
    assert len(open_images("ab:c")["all"]) == 1


def test_an_unknown_scheme_lists_the_known_schemes():
    assert message("parket:x") == (
        "unknown source 'parket:' in 'parket:x'; choose digits, a path, folder:PATH, parquet:PATH or hf:NAME; did you mean 'parquet'?"
    )
    assert "unknown source 's3:'" in message("s3://bucket/x")


@pytest.mark.parametrize("scheme", ["folder", "parquet", "hf"])
def test_a_scheme_needs_a_path_or_a_name(scheme):
    assert f"'{scheme}:' lacks a path or name" in message(f"{scheme}:")


def test_a_missing_path_suggests_the_nearest_existing_path(write):
    folder = write("cats/a.png")
    assert (
        message(folder.parent / "fotos")
        == f"no file or folder '{folder.parent}/fotos'; the nearest existing name is '{folder}'"
    )
    assert message(f"folder:{folder}/cat/deeper").endswith(f"the nearest existing name is '{folder}/cats'")
    assert message(folder / "zzz").endswith(f"there is no 'zzz' in '{folder}'")


def test_a_parent_folder_that_cannot_be_read_is_named(write, monkeypatch):
    folder = write("a.png")

    def refuse(self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.iterdir", refuse)
    assert message(folder / "deeper") == (
        f"no file or folder '{folder}/deeper'; '{folder}' cannot be read: Permission denied; check its permissions"
    )


def test_an_empty_folder_raises(tmp_path):
    assert message(tmp_path).startswith(f"folder '{tmp_path}' is empty")


def test_a_folder_without_images_names_the_supported_formats(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    text = message(tmp_path)
    assert f"folder '{tmp_path}' contains no images" in text
    assert ".jpg" in text
    assert ".npy" in text
    assert "Parquet files (.parquet)" in text
    assert "contains no Parquet files (.parquet)" in message(f"parquet:{tmp_path}")
    assert ".parquet" not in message(f"folder:{tmp_path}")


def test_a_folder_with_images_and_tables_needs_a_scheme(parquet, write):
    folder = parquet().parent
    write("a.png", folder="tables")
    assert (
        message(folder)
        == f"'{folder}' contains images and Parquet files; choose with folder:{folder} or parquet:{folder}"
    )
    assert list(open_images(f"parquet:{folder}")) == ["train"]
    assert len(open_images(f"folder:{folder}")["all"]) == 1


def test_a_single_file_must_be_parquet(write, parquet):
    image = write("a.png") / "a.png"
    assert (
        message(image)
        == f"'{image}' is a file; give a folder of images (unpack an archive first), a .parquet file, a folder of .parquet files, "
        "a table of paths (.csv, .tsv), or .tar shards"
    )
    assert "is a file" in message(f"folder:{parquet()}")
