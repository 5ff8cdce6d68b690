import io
import pickle
import tarfile

import numpy as np
import pytest
from PIL import Image

from fullrank.errors import UserError
from fullrank.images import DecodeErrors, ImageDecodeError, iterate_batches, open_images
from fullrank.images.preprocess import Preprocess


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
    assert open_images(tmp_path / "set", labels="none")["train"].labels.max() == -1
    one = open_images(tmp_path / "set" / "train-000001.tar")["train"]
    assert [one.open(k).getpixel((0, 0))[0] for k in range(3)] == [3, 4, 5]


def test_workers_read_what_one_process_reads(tmp_path):
    path = write_tar(tmp_path / "a.tar", [member for k in range(6) for member in sample(k, str(k % 3))])
    images = open_images(path)["all"]
    assert images.labels.tolist() == [0, 1, 2] * 2
    preprocess = Preprocess(3, 6, (0.5,) * 3, (0.5,) * 3)
    alone = [batch.pixels for batch in iterate_batches(images, preprocess, batch_size=4)]
    shared = [batch.pixels for batch in iterate_batches(images, preprocess, batch_size=4, workers=1)]
    assert all(a.equal(b) for a, b in zip(alone, shared, strict=True))


def test_no_member_leads_out_of_the_tar_file(tmp_path):
    (tmp_path / "secret.png").write_bytes(encoded(1))
    links = [
        ("link.png", str(tmp_path / "secret.png"), tarfile.SYMTYPE),
        ("hard.png", "../secret.png", tarfile.LNKTYPE),
        ("pipe.png", "", tarfile.FIFOTYPE),
    ]
    before = sorted(tmp_path.rglob("*"))
    path = write_tar(tmp_path / "set" / "a.tar", [("../../up.png", encoded(2)), ("/etc/abs.png", encoded(3))], links)
    images = open_images(path)["all"]
    assert [images.open(k).getpixel((0, 0))[0] for k in range(len(images))] == [2, 3]  # their bytes, from the tar file
    assert sorted(tmp_path.rglob("*")) == sorted([*before, path, path.parent])


def test_unreadable_members_are_counted_and_damaged_files_refused(tmp_path):
    path = write_tar(tmp_path / "a.tar", [*sample(0, "1"), ("0001.png", b"no image"), ("0002.npy", b"\x93NUMPY")])
    errors = DecodeErrors(max_error_fraction=1.0)
    preprocess = Preprocess(3, 6, (0.5,) * 3, (0.5,) * 3)
    assert sum(len(batch.pixels) for batch in iterate_batches(open_images(path)["all"], preprocess, decode_errors=errors)) == 1
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
