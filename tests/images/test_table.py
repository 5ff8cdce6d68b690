import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets.exceptions import DatasetNotFoundError

from fullrank.errors import UserError
from fullrank.images import ImageDecodeError, open_images, open_stream
from fullrank.images import table as table_module


def test_a_parquet_file_has_images_labels_and_classes(parquet):
    splits = open_images(parquet())
    assert list(splits) == ["train"]
    images = splits["train"]
    assert len(images) == 12
    assert images.labels.tolist() == [0, 1, 2] * 4
    assert images.labels.flags.writeable  # torch warns of tensors on read-only memory
    assert images.classes == ("cat", "dog", "emu")
    assert images.name(7) == "train[7]"
    assert images.open(7).size == (8, 6)
    assert images.open(7).getpixel((0, 0)) == (7, 100, 200)
    assert images.source.endswith(".parquet[train]")


def test_a_folder_of_parquet_files_is_split_by_their_names(parquet):
    parquet("train-00000-of-00002.parquet")
    parquet("train-00001-of-00002.parquet", n=5)
    parquet("test-00000-of-00001.parquet", n=3)
    folder = parquet("leftover.parquet", n=2).parent
    assert {split: len(images) for split, images in open_images(folder).items()} == {"other": 2, "test": 3, "train": 17}


def test_files_without_split_names_are_all(parquet):
    parquet("a.parquet")
    folder = parquet("b.parquet").parent
    assert {split: len(images) for split, images in open_images(folder).items()} == {"all": 24}
    assert open_images(folder)["all"].name(13) == "all[13]"


def test_large_files_are_read_through_the_cache_with_the_same_result(parquet, tmp_path, monkeypatch):
    path = parquet()
    small = open_images(path)["train"]
    monkeypatch.setattr(table_module, "MAX_BYTES_IN_MEMORY", 0)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    large = open_images(path)["train"]
    assert large.labels.tolist() == small.labels.tolist()
    assert large.open(3).tobytes() == small.open(3).tobytes()
    assert large.images.cache_files
    assert not small.images.cache_files


def test_small_files_write_nothing_to_the_disk(parquet, tmp_path, monkeypatch):
    path = parquet()
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setenv("HOME", str(tmp_path / "nowhere"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    open_images(path)["train"].open(0).load()
    assert sorted(tmp_path.rglob("*")) == before


def test_a_cache_that_cannot_be_written_is_one_line(parquet, tmp_path, monkeypatch):
    path = parquet()
    monkeypatch.setattr(table_module, "MAX_BYTES_IN_MEMORY", 0)
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "file" / "cache")
    with pytest.raises(UserError, match="HF_HOME"):
        open_images(path)


def save(tmp_path, **columns):
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table(columns), path)
    return path


def cells(n=4):
    return [{"bytes": b"no image", "path": None}] * n


def test_a_plain_struct_of_bytes_and_path_is_an_image_column(tmp_path):
    images = open_images(save(tmp_path, img=cells(), labels=pa.array([3, None, 0, -1], pa.int8())))["all"]
    assert images.labels.tolist() == [3, -1, 0, -1]
    assert images.labels.dtype == np.int64
    assert images.classes == ()
    with pytest.raises(ImageDecodeError, match=r"all\[2\]: "):
        images.open(2)


def test_plain_bytes_are_an_image_column_when_named(tmp_path):
    path = save(tmp_path, picture=[b"no image"] * 3)
    with pytest.raises(UserError, match=r"has no image column; its columns are picture; name the column with image="):
        open_images(path)
    assert len(open_images(path, image="picture")["all"]) == 3


def test_a_missing_cell_is_a_decode_error(tmp_path):
    with pytest.raises(ImageDecodeError, match="row has no image"):
        open_images(save(tmp_path, image=[*cells(2), None]))["all"].open(2)


def test_strings_are_labels_in_sorted_order(tmp_path):
    images = open_images(save(tmp_path, image=cells(), label=["dog", "cat", None, "dog"]))["all"]
    assert images.labels.tolist() == [1, 0, -1, 1]
    assert images.classes == ("cat", "dog")


def test_columns_may_be_named(tmp_path):
    path = save(tmp_path, image=cells(), other=cells(), label=[0] * 4, coarse=[1] * 4)
    with pytest.raises(UserError, match=r"2 image columns \(image, other\)"):
        open_images(path)
    images = open_images(path, image="other", label="coarse")["all"]
    assert images.labels.tolist() == [1] * 4


def test_invalid_columns_raise(tmp_path):
    path = save(tmp_path, image=cells(), label=[0] * 4, score=[0.5] * 4)
    with pytest.raises(UserError, match=r"unknown column of .* 'imge'; choose from image, label, score; did you mean 'image'"):
        open_images(path, image="imge")
    with pytest.raises(UserError, match=r"column 'score' of .* expected integers"):
        open_images(path, label="score")
    with pytest.raises(UserError, match=r"column 'score' of .* expected image files"):
        open_images(path, image="score")


def test_without_a_label_column_all_are_unlabelled(tmp_path):
    images = open_images(save(tmp_path, image=cells(), score=[0.5] * 4))["all"]
    assert images.labels.tolist() == [-1] * 4


@pytest.mark.parametrize("content", [b"", b"this is no Parquet file at all"])
def test_unreadable_parquet_is_one_line(tmp_path, content):
    path = tmp_path / "x.parquet"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"cannot read Parquet '.*x.parquet': .*; check that the file is complete"):
        open_images(path)


def test_a_truncated_parquet_file_is_one_line(parquet):
    path = parquet()
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UserError, match="check that the file is complete"):
        open_images(path)


def test_files_with_different_columns_are_one_line(parquet):
    parquet("train-00000-of-00002.parquet")
    path = parquet("train-00001-of-00002.parquet", column="img")
    with pytest.raises(UserError, match="same columns"):
        open_images(path.parent)


def test_mnist_is_opened(data_sets):
    splits = open_images(data_sets / "mnist")
    assert {split: len(images) for split, images in splits.items()} == {"test": 10_000, "train": 60_000}
    assert np.bincount(splits["test"].labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert splits["test"].classes == tuple("0123456789")
    assert (splits["test"].open(0).mode, splits["test"].open(0).size) == ("L", (28, 28))


def raising(error):
    def load_dataset(*args, **options):
        raise error

    return load_dataset


def test_a_hub_name_becomes_its_splits(parquet, monkeypatch):
    calls = []

    def load_dataset(path, name=None, **options):
        calls.append((path, name, options))
        return datasets.DatasetDict(train=datasets.Dataset.from_parquet(str(parquet()), keep_in_memory=True))

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    images = open_images("hf:owner/name")["train"]
    assert images.source == "hf:owner/name[train]"
    assert images.open(0).size == (8, 6)
    open_images("hf:owner/name:fine")
    assert calls == [("owner/name", None, {}), ("owner/name", "fine", {})]


def test_without_a_network_the_error_has_a_remedy(monkeypatch):
    monkeypatch.setattr(datasets, "load_dataset", raising(ConnectionError("Couldn't reach 'a/b' on the Hub")))
    with pytest.raises(UserError, match=r"^cannot reach the Hugging Face hub for 'a/b', .* has no copy; load .* parquet:PATH$"):
        open_images("hf:a/b")
    with pytest.raises(UserError, match="cannot reach"):
        open_stream("hf:a/b")


def test_the_offline_mode_of_the_library_is_the_same_error(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    with pytest.raises(UserError, match="cannot reach the Hugging Face hub for 'uoft-cs/no-such-set'"):
        open_images("hf:uoft-cs/no-such-set")


def test_an_unknown_name_is_one_line(monkeypatch):
    monkeypatch.setattr(datasets, "load_dataset", raising(DatasetNotFoundError("Dataset 'a/b' doesn't exist on the Hub.\nMore.")))
    with pytest.raises(UserError, match="no data set 'a/b', or denies access"):
        open_images("hf:a/b")


@pytest.mark.parametrize(
    "error", [ValueError("Config name is missing.\nPick one"), RuntimeError("Dataset scripts are no longer supported")]
)
def test_the_first_line_of_other_errors_is_shown(monkeypatch, error):
    monkeypatch.setattr(datasets, "load_dataset", raising(error))
    with pytest.raises(UserError, match=r"cannot load 'hf:a/b': (Config name is missing|Dataset scripts are no longer supported); choose"):
        open_images("hf:a/b")
