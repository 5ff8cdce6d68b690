import json
import pickle

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from fullrank.errors import UserError
from fullrank.images import ImageDecodeError, Reading, open_images, open_stream
from fullrank.images import parquet as parquet_module
from fullrank.images.labels import read_labels

HALVES = {"train": "a", "test": "b"}  # of the last image


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


def test_large_files_are_read_through_the_cache_with_the_same_result(parquet, tmp_path, monkeypatch):
    path = parquet()
    small = open_images(path)["train"]
    monkeypatch.setattr(parquet_module, "MAX_BYTES_IN_MEMORY", 0)
    monkeypatch.setattr(parquet_module, "CACHE", tmp_path / "cache")
    large = open_images(path)["train"]
    assert large.labels.tolist() == small.labels.tolist()
    assert large.open(3).tobytes() == small.open(3).tobytes()
    assert large.rows.items.cache_files
    assert not small.rows.items.cache_files
    sent = pickle.dumps(large)  # as to a worker process, which maps the file again
    assert len(sent) < len(pickle.dumps(small))
    assert pickle.loads(sent).open(3).tobytes() == small.open(3).tobytes()


def save(tmp_path, **columns):
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table(columns), path)
    return path


def cells(n=4):
    return [{"bytes": b"no image", "path": None}] * n


def test_the_only_column_of_bytes_is_the_image_column(tmp_path):
    with pytest.raises(ImageDecodeError, match="identify"):
        open_images(save(tmp_path, picture=[b"no image"] * 3, n=[1, 2, 3]))["all"].open(0)
    with pytest.raises(UserError, match=r"2 image columns \(a, b\).*--data\.image-column"):
        open_images(save(tmp_path, a=[b"no image"] * 3, b=[b"no image"] * 3))
    assert len(open_images(tmp_path / "x.parquet", Reading(image_column="b"))["all"]) == 3
    with pytest.raises(UserError, match="no image column"):
        open_images(save(tmp_path, n=[1, 2, 3]))


def test_a_file_that_expands_is_refused_by_what_it_expands_to(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_module, "MAX_BYTES_IN_MEMORY", 2**20)
    monkeypatch.setattr(parquet_module, "BATCH_BYTES", 2**20)
    zeros = [{"bytes": bytes(k % 3) + bytes(2**18), "path": None} for k in range(64)]
    for dictionary in (False, True):
        options = {"compression": "zstd", "use_dictionary": dictionary}
        pq.write_table(pa.table({"image": zeros}), tmp_path / "x.parquet", **options)
        assert (tmp_path / "x.parquet").stat().st_size < 2**16
        with pytest.raises(UserError, match=r"expands.*--data\.max-expansion"):
            open_images(tmp_path / "x.parquet")
    monkeypatch.setattr(parquet_module, "CACHE", tmp_path / "cache")
    images = open_images(tmp_path / "x.parquet", Reading(max_expansion=10**6))["all"]
    assert len(images) == 64
    assert images.rows.items.cache_files  # 16 MiB are more than the memory allows here


def test_a_stream_that_expands_beyond_what_its_metadata_say_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_module, "MAX_BYTES_IN_MEMORY", 2**20)
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"image": [{"bytes": bytes(2**18), "path": None}] * 64}), path)  # one value, 64 references
    assert pq.read_metadata(path).row_group(0).total_byte_size < 2**19
    rows = open_stream(str(path), split="all").iterate(seed=0)
    with pytest.raises(UserError, match=r"expands.*--data\.max-expansion"):
        next(rows)


def test_a_compressed_arrow_file_is_refused_before_it_is_expanded(tmp_path, monkeypatch):
    table, options = pa.table({"image": [bytes(2**20)] * 4}), pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(str(tmp_path / "data-0.arrow"), table.schema, options=options) as writer:
        writer.write_table(table)
    monkeypatch.setattr(pa.ipc, "open_stream", None)
    with pytest.raises(UserError, match="compressed"):
        open_images(tmp_path)


@pytest.mark.parametrize("metadata", ["{", '{"info": 3}', "[" * 100_000])
def test_bad_metadata_are_one_line(tmp_path, metadata):
    table = pa.table({"image": cells()}).replace_schema_metadata({"huggingface": metadata})
    pq.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(UserError, match="cannot read"):
        open_images(tmp_path / "x.parquet")
    folder = tmp_path / "saved"  # as `save_to_disk` writes it
    folder.mkdir()
    file = str(folder / "data-00000-of-00001.arrow")
    with pa.OSFile(file, "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(UserError, match="cannot read"):
        open_images(folder)


@pytest.mark.parametrize(
    ("values", "kind"), [([10**12, 5], pa.int64()), ([2**64 - 1, 0], pa.uint64()), ([2**40, 1], pa.uint64())]
)
def test_integers_that_cannot_be_classes_are_not_labels(tmp_path, values, kind):
    path = save(tmp_path, image=cells(2), label=pa.array(values, kind))
    images = open_images(path)["all"]
    assert images.labels.tolist() == [-1, -1]
    assert "does not look like labels" in images.notes[0]
    with pytest.raises(UserError, match="cannot be the labels"):
        open_images(path, Reading(label_column="label"))


def test_a_column_that_numbers_the_images_is_not_the_label(tmp_path):
    path = save(tmp_path, image=cells(24), label=list(range(24)))
    assert open_images(path)["all"].labels.max() == -1
    assert open_images(path, Reading(label_column="label"))["all"].labels.max() == 23
    path = save(tmp_path, image=cells(24), label=[0, 1] * 12)
    assert open_images(path, Reading(labels="none"))["all"].labels.max() == -1


def test_a_folder_of_save_to_disk_is_a_source(tmp_path):
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    rows = {"image": [Image.new("RGB", (4, 3), (k, 0, 0)) for k in range(6)], "label": [0, 1] * 3}
    table = datasets.Dataset.from_dict(rows, features=features)
    table.save_to_disk(tmp_path / "one")
    images = open_images(tmp_path / "one")["all"]
    assert (images.classes, images.labels.tolist()) == (("cat", "dog"), [0, 1] * 3)
    assert images.open(5).getpixel((0, 0)) == (5, 0, 0)
    datasets.DatasetDict(train=table, test=table.select([0, 3])).save_to_disk(tmp_path / "two")
    splits = open_images(tmp_path / "two")
    assert {name: images.labels.tolist() for name, images in splits.items()} == {"train": [0, 1] * 3, "test": [0, 1]}
    (tmp_path / "one" / "data-00000-of-00001.arrow").write_bytes(b"ARROW1 no more")
    with pytest.raises(UserError, match="data-00000"):
        open_images(tmp_path / "one")


def raising(error):
    def load_dataset(*args, **options):
        raise error

    return load_dataset


def test_without_a_network_the_error_has_a_remedy(monkeypatch):
    monkeypatch.setattr(datasets, "load_dataset", raising(ConnectionError("Couldn't reach 'a/b' on the Hub")))
    for source in (open_images, open_stream):
        with pytest.raises(UserError, match=r"^cannot load 'hf:a/b' \(.*Couldn't reach .* parquet:PATH$"):
            source("hf:a/b")


def test_offsets_that_lead_out_of_an_arrow_file_are_an_error(tmp_path):
    datasets.Dataset.from_dict({"image": [b"abc" * 50] * 4}).save_to_disk(tmp_path)
    (file,) = tmp_path.glob("*.arrow")
    offsets = np.arange(5, dtype="<i4") * 150
    content = file.read_bytes()
    assert offsets.tobytes() in content
    file.write_bytes(content.replace(offsets.tobytes(), (offsets * 2**20).tobytes()))
    with pytest.raises(UserError, match=r"\.arrow"):
        open_images(tmp_path)


def write_table(path, labels, names=()):
    features = {"label": {"_type": "ClassLabel", "names": list(names)}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})} if names else None
    pq.write_table(pa.table({"image": cells(len(labels)), "label": labels}).replace_schema_metadata(metadata), path)


@pytest.mark.parametrize(
    ("train", "test", "classes", "expected"),
    [
        (["emu", "cat", "dog"], ["emu", "dog"], ("cat", "dog", "emu"), [2, 1]),
        (["1", "2", "3"], pa.array([3, -1, 2], pa.int32()), ("1", "2", "3"), [2, -1, 1]),
        (pa.array([1, 10], pa.int16()), pa.array([10, 2], pa.int64()), (), [10, 2]),
    ],
)
def test_labels_of_all_splits_have_the_same_numbers(tmp_path, train, test, classes, expected):
    write_table(tmp_path / "train.parquet", train)
    write_table(tmp_path / "test.parquet", test)
    splits = open_images(tmp_path)
    assert splits["train"].classes == splits["test"].classes == classes
    assert splits["test"].labels.tolist() == expected


@pytest.mark.parametrize(("names", "expected"), [(["a", "b"], [1, 0, -1]), (["a"], [1, 1, -1]), (["b"], [0, 0, -1])])
def test_classes_of_other_splits_are_joined_by_name(tmp_path, names, expected):
    write_table(tmp_path / "train.parquet", [1, 0], names=["b", "a"])
    write_table(tmp_path / "test.parquet", [0, min(1, len(names) - 1), -1], names=names)
    splits = open_images(tmp_path)
    assert splits["train"].classes == splits["test"].classes == ("b", "a")
    assert (splits["train"].labels.tolist(), splits["test"].labels.tolist()) == ([1, 0], expected)


def test_splits_that_name_their_classes_differently_are_refused(tmp_path):
    write_table(tmp_path / "train.parquet", [1, 0], names=["b", "a"])
    write_table(tmp_path / "test.parquet", [0, 1])
    assert open_images(tmp_path)["test"].classes == ("b", "a")  # numbers without names are those of the other split
    for labels, names in (([0, 1], ["a", "c"]), (["a", "b"], [])):
        write_table(tmp_path / "test.parquet", labels, names=names)
        with pytest.raises(UserError, match="differently"):
            open_images(tmp_path)


def test_lists_of_labels_are_several_labels_and_too_many_are_none():
    found = read_labels([["cat", "dog"], [], None, ["dog"]], "column 'tags'")
    assert (found.multi_labels.tolist(), found.classes) == ([[1, 1], [0, 0], [-1, -1], [0, 1]], ("cat", "dog"))
    assert "does not look like labels" in read_labels([[10**9]], "column 'tags'", names=("a",)).notes[0]


@pytest.mark.parametrize(("column", "expected"), [(None, {"test": 6, "train": 6}), ("split", {"a": 7, "b": 5})])
def test_a_column_of_splits_in_several_splits_loses_no_image(monkeypatch, column, expected):
    cells = {"path": [f"{k}.png" for k in range(6)]}
    tables = {name: datasets.Dataset.from_dict(cells | {"split": [*"aaabb", last]}) for name, last in HALVES.items()}
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **options: datasets.DatasetDict(tables))
    splits = open_images("hf:x/y", Reading(split_column=column))
    assert {name: len(images) for name, images in splits.items()} == expected
