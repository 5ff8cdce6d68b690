import io
import json
import pickle
import tarfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice, takewhile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fullrank.errors import UserError
from fullrank.images import (
    DecodeErrors,
    Decoding,
    ImageDecodeError,
    Preprocess,
    Reading,
    iterate_batches,
    open_images,
    open_stream,
    shards,
)


def encoded(k):
    file = io.BytesIO()
    Image.new("RGB", (8, 6), (k, 100, 200)).save(file, "png")
    return file.getvalue()


def write_tar(path, members, links=()):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        for name, target, kind in links:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target
            tar.addfile(info)
    return path


def sample(k, label):
    return [(f"{k:04}.png", encoded(k)), (f"{k:04}.cls", label.encode())]


def test_shards_have_splits_labels_and_names(tmp_path):
    for shard in range(2):
        members = [member for k in range(3) for member in sample(3 * shard + k, "catdogemu"[3 * k : 3 * k + 3])]
        write_tar(tmp_path / "set" / f"train-{shard:06}.tar", members)
    write_tar(tmp_path / "set" / "val-000000.tar", [*sample(7, "emu"), ("0008.png", encoded(8)), ("0008.json", b"{}")])
    splits = open_images(tmp_path / "set")
    assert {split: len(images) for split, images in splits.items()} == {"train": 6, "val": 2}
    train, val = splits["train"], splits["val"]
    assert train.labels.tolist() == [0, 1, 2] * 2
    assert val.labels.tolist() == [2, -1]
    assert train.classes == val.classes == ("cat", "dog", "emu")
    assert train.name(4) == "train-000001.tar/0004.png"
    assert pickle.loads(pickle.dumps(train)).open(4).getpixel((0, 0)) == (4, 100, 200)
    assert open_images(tmp_path / "set", Reading(labels="none"))["train"].labels.max() == -1
    one = open_images(tmp_path / "set" / "train-000001.tar")["train"]
    assert [one.open(k).getpixel((0, 0))[0] for k in range(3)] == [3, 4, 5]


def folders(names):
    return [(name, encoded(k)) for k, name in enumerate(names)]


def test_shards_behind_links_are_streamed_on_request(tmp_path):
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "a.tar").symlink_to(write_tar(tmp_path / "a.tar", sample(1, "cat")))
    stream = open_stream(str(tmp_path / "links"), Reading(follow_links=True), split="all")
    assert next(stream.iterate(seed=0)).name == "0001.png"


def test_class_folders_inside_shards_are_labels(tmp_path):
    write_tar(tmp_path / "set" / "train-0.tar", folders(["./data/dog/1.png", "./data/cat/1.png", "./data/cat/2.png"]))
    write_tar(tmp_path / "set" / "val-0.tar", folders(["./data/cat/9.png", "./data/loose.png"]))
    splits = open_images(tmp_path / "set")
    assert splits["train"].classes == splits["val"].classes == ("cat", "dog")
    assert splits["train"].labels.tolist() == [1, 0, 0]
    assert splits["val"].labels.tolist() == [0, -1]
    assert open_images(tmp_path / "set", Reading(labels="none"))["train"].labels.max() == -1
    albums = write_tar(tmp_path / "albums.tar", folders(["trips/rome/1.png", "family/xmas/2.png"]))
    images = open_images(albums)["all"]
    assert images.labels.max() == -1
    assert "inside these folders" in images.notes[0]
    assert open_images(albums, Reading(labels="folders"))["all"].labels.tolist() == [1, 0]
    with pytest.raises(UserError, match="no class folders"):
        open_images(write_tar(tmp_path / "flat.tar", folders(["1.png", "2.png"])), Reading(labels="folders"))


def test_folders_of_splits_inside_one_file_are_splits(tmp_path):
    names = ["set/train/cat/1.png", "set/val/dog/2.png", "set/train/dog/3.png", "set/readme.png"]
    splits = open_images(write_tar(tmp_path / "a.tar", folders(names)))
    labels = {split: images.labels.tolist() for split, images in splits.items()}
    assert labels == {"train": [0, 1], "val": [1], "other": [-1]}
    assert splits["train"].name(1) == "a.tar/set/train/dog/3.png"
    assert splits["val"].open(0).getpixel((0, 0))[0] == 1


def test_json_members_have_labels(tmp_path):
    members = []
    contents = [{"label": "cat", "lens": 1}, {"label": "dog", "lens": 0}, {"label": None}, [], {"label": True}]
    for k, content in enumerate(contents):
        members += [(f"{k}.png", encoded(k)), (f"{k}.json", json.dumps(content).encode())]
    path = write_tar(tmp_path / "a.tar", [*members, ("5.png", encoded(5)), ("5.json", b"{"), ("6.png", encoded(6))])
    images = open_images(path)["all"]
    assert images.labels.tolist() == [0, 1, -1, -1, -1, -1, -1]
    assert images.classes == ("cat", "dog")
    assert open_images(path, Reading(label_column="lens"))["all"].labels.tolist() == [1, 0, -1, -1, -1, -1, -1]
    assert open_images(path, Reading(labels="none"))["all"].labels.max() == -1
    with pytest.raises(UserError, match="lens"):
        open_images(path, Reading(label_column="lenz"))


@pytest.mark.parametrize("option", ["image_column", "group_column", "split_column"])
def test_columns_of_tables_are_refused_for_other_sources(tmp_path, option):
    path = write_tar(tmp_path / "set" / "a.tar", folders(["1.png", "2.png"]))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.png").write_bytes(encoded(1))
    for source in (path, tmp_path / "folder"):
        with pytest.raises(UserError, match="no columns"):
            open_images(source, Reading(**{option: "patient"}))


def test_no_member_leads_out_of_the_tar_file(tmp_path):
    (tmp_path / "secret.png").write_bytes(encoded(1))
    links = [("link.png", str(tmp_path / "secret.png"), tarfile.SYMTYPE), ("pipe.png", "", tarfile.FIFOTYPE)]
    links += [("hard.png", "../secret.png", tarfile.LNKTYPE)]
    before = sorted(tmp_path.rglob("*"))
    path = write_tar(tmp_path / "set" / "a.tar", [("../../up.png", encoded(2)), ("/etc/abs.png", encoded(3))], links)
    images = open_images(path)["all"]
    assert [images.open(k).getpixel((0, 0))[0] for k in range(len(images))] == [2, 3]  # their bytes, from the tar file
    assert sorted(tmp_path.rglob("*")) == sorted([*before, path, path.parent])


def test_unreadable_members_are_counted_and_damaged_files_refused(tmp_path):
    path = write_tar(tmp_path / "a.tar", [*sample(0, "1"), ("0001.png", b"no image"), ("0002.npy", b"\x93NUMPY")])
    errors = DecodeErrors(max_error_fraction=1.0)
    preprocess = Preprocess(3, 6, (0.5,) * 3, (0.5,) * 3)
    batches = iterate_batches(open_images(path)["all"], preprocess, decoding=Decoding(errors=errors))
    assert sum(len(batch.pixels) for batch in batches) == 1
    assert list(errors.reasons) == ["a.tar/0001.png", "a.tar/0002.npy"]
    images = open_images(path)["all"]
    path.write_bytes(path.read_bytes()[:600])
    with pytest.raises(ImageDecodeError):
        images.open(1)
    for data in (b"no tar file" * 100, np.random.default_rng(0).bytes(4096)):
        path.write_bytes(data)
        with pytest.raises(UserError, match="cannot read the tar file"):
            open_images(path)
    with tarfile.open(path, "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("a.png"))
    with pytest.raises(UserError, match="uncompressed"):
        open_images(path)
    write_tar(path, [("a.txt", b"text")])
    with pytest.raises(UserError, match="contain no images"):
        open_images(path)


@pytest.fixture
def server(tmp_path):
    """Return the address of a server of the files in tmp_path."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


@pytest.mark.parametrize("address", ["{server}/set", "{server}/set/train-*.tar", "file://{folder}/set", "{folder}/set"])
@pytest.mark.parametrize("processes", [1, 2, 3])
def test_shards_are_streamed_from_an_address_and_an_epoch_has_every_image_once(tmp_path, server, address, processes):
    for shard in range(4):
        members = [member for k in range(3 * shard, 3 * shard + 3) for member in sample(k, str(k % 5))]
        write_tar(tmp_path / "set" / f"train-{shard:06}.tar", members)
    write_tar(
        tmp_path / "set" / "val-000000.tar", [("a.json", b'{"label": 7}'), ("a.png", encoded(99)), ("b.txt", b"x")]
    )
    source = address.format(server=server, folder=tmp_path)
    stream = open_stream(source)
    shares = [
        list(islice(stream.iterate(seed=0, rank=rank, world_size=processes), 12 // processes))
        for rank in range(processes)
    ]
    found = [image for share in shares for image in share]
    assert sorted(image.name for image in found) == [f"{k:04}.png" for k in range(12)]
    for image in found:
        k = int(image.name[:4])
        assert image.label == k % 5
        assert stream.collect([image]).open(0).getpixel((0, 0)) == (k, 100, 200)
    if "*" not in address:
        assert [(image.name, image.label) for image in islice(open_stream(source, split="val").iterate(seed=0), 1)] == [
            ("a.png", 7)
        ]


@pytest.mark.filterwarnings("ignore")  # of botocore
def test_unequal_shards_are_streamed_from_an_object_store_and_an_epoch_has_every_image_once(tmp_path, monkeypatch):
    s3fs, moto = pytest.importorskip("s3fs"), pytest.importorskip("moto.server")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    server, numbers = moto.ThreadedMotoServer("127.0.0.1", port=0), iter(range(12))
    server.start()
    try:
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://{}:{}".format(*server.get_host_and_port()))
        store = s3fs.S3FileSystem(skip_instance_cache=True)
        s3fs.S3FileSystem.clear_instance_cache()
        store.mkdir("bucket")
        for shard, size in enumerate((6, 1, 3, 2)):
            members = [member for k in islice(numbers, size) for member in sample(k, "0")]
            file = write_tar(tmp_path / f"train-{shard}.tar", members)
            store.put(str(file), f"bucket/set/{file.name}")
        stream = open_stream("s3://bucket/set")
        for processes in (1, 2, 3):
            found = []
            for rank in range(processes):
                images = stream.iterate(seed=0, rank=rank, world_size=processes, pass_ends=(ends := []))
                found += [image.name for image in takewhile(lambda _, ends=ends: not ends, images)]
            assert sorted(found) == [f"{k:04}.png" for k in range(12)]
    finally:
        server.stop()


def test_parquet_files_are_streamed_from_an_address(parquet, server):
    for name in ("train-0.parquet", "train-1.parquet"):
        parquet(name, n=6)
    images = list(islice(open_stream(f"{server}/tables").iterate(seed=0), 12))
    assert sorted((image.name, image.label) for image in images) == sorted(2 * [(f"{k}.png", k % 3) for k in range(6)])


def test_an_address_without_files_names_the_reason_and_one_of_images_can_only_be_streamed(tmp_path, server):
    (tmp_path / "a.png").write_bytes(encoded(0))
    for address, reason in ((server, "no .parquet or .tar files"), ("parket://set", "Protocol not known: parket")):
        with pytest.raises(UserError, match=f"'{address}' .*{reason}"):
            open_stream(address)
    for address in ("https://me:secret@host/a.tar", "https://host/a.tar?signature=secret"):
        with pytest.raises(UserError, match="the https address has a query or a password") as caught:
            open_stream(address)
        assert "secret" not in str(caught.value)
    with pytest.raises(UserError, match=r"can only be streamed; train with .* --data\.storage streaming"):
        open_images(f"{server}/train.tar")


def test_a_file_that_breaks_off_is_opened_again_where_it_broke(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "DELAYS", (0.0, 0.0))
    members = [member for k in range(6) for member in sample(k, str(k))]
    path, opened = write_tar(tmp_path / "train.tar", members), []

    def opener(file):
        opened.append(file)
        content = Path(file).read_bytes()
        return io.BytesIO(content[: 8000 * len(opened)])  # the whole file the third time

    rows = list(shards._stream([str(path)], opener, "cls", "label"))
    assert [(row["image"]["path"], row["label"]) for row in rows] == [(f"{k:04}.png", k) for k in range(6)]
    assert len(opened) > 1
    with pytest.raises(UserError, match=r"cannot read the tar file .* go on with --resume"):
        list(shards._stream([str(path)], lambda file: io.BytesIO(b"no tar file"), None, "label"))


def test_labels_of_a_stream_are_integers_of_one_key(tmp_path):
    for k in range(4):
        write_tar(
            tmp_path / f"train-{k}.tar",
            [(f"{k}.json", b'{"category": 1, "fine": 2, "name": "cat"}'), (f"{k}.png", encoded(k))],
        )
    for column, expected in ((None, {1}), ("fine", {2})):
        stream = open_stream(str(tmp_path), Reading(label_column=column))
        assert {image.label for image in islice(stream.iterate(seed=0), 4)} == expected
    with pytest.raises(UserError, match=r"unknown label of .*'coarse'; choose from category, fine, name"):
        open_stream(str(tmp_path), Reading(label_column="coarse"))
    write_tar(tmp_path / "val-0.tar", [("a.png", encoded(1)), ("a.cls", b"cat")])
    assert next(open_stream(str(tmp_path), split="val").iterate(seed=0)).label == -1


def test_images_of_one_key_that_are_too_large_for_memory_raise(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "LARGEST", 500)
    write_tar(tmp_path / "train.tar", [(f"img.{k}.png", encoded(k)) for k in range(20)])
    with pytest.raises(UserError, match="have more than 500 bytes; expected one image for each name"):
        open_stream(str(tmp_path))
