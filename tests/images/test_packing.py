import json
import pickle
import struct

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file, save_file

from fullrank.cli.main import main
from fullrank.errors import UserError
from fullrank.images import DecodeErrors, as_images, iterate_batches, load_images, open_images, pack, train_and_test
from fullrank.images.packing import FORMAT
from fullrank.images.preprocess import Preprocess


@pytest.fixture
def packed(tmp_path):
    """Return a packed file of a table of paths with two splits, and the table."""
    rng = np.random.default_rng(0)
    lines = ["path,label,who,split"]
    for k in range(10):
        Image.fromarray(rng.integers(0, 256, (20 + k, 30, 3), dtype=np.uint8)).save(tmp_path / f"{k}.png")
        lines.append(f"{k}.png,{'ab'[k % 2]},{k // 2},{'train' if k < 7 else 'test'}")
    (tmp_path / "t.csv").write_text("\n".join(lines))
    (tmp_path / "3.png").write_bytes(b"no image")
    errors = DecodeErrors(max_error_fraction=0.5)
    path = pack(tmp_path / "t.csv", out=tmp_path / "t.safetensors", size=16, decode_errors=errors, group="who")
    assert list(errors.reasons) == ["3.png"]
    return path, tmp_path / "t.csv"


def test_a_packed_file_has_the_pixels_labels_groups_names_and_splits_of_its_source(packed):
    path, table = packed
    preprocess = Preprocess(3, 16, (0.5,) * 3, (0.5,) * 3)
    sources = open_images(table, group="who")
    for split, images in open_images(path).items():
        kept = [i for i in range(len(sources[split])) if sources[split].name(i) != "3.png"]
        source = sources[split].subset(kept)
        assert len(images) == len(source) > 0
        assert [images.name(i) for i in range(len(images))] == [source.name(i) for i in range(len(images))]
        assert images.labels.tolist() == source.labels.tolist()
        assert images.groups.tolist() == source.groups.tolist()
        assert images.classes == ("a", "b")
        for batch, expected in zip(
            iterate_batches(images, preprocess), iterate_batches(source, preprocess), strict=True
        ):
            assert batch.pixels.equal(expected.pixels)
    assert "t.safetensors[test]" in train_and_test(path).statement
    assert open_images(path, labels="none")["test"].labels.max() == -1


def test_a_packed_file_is_opened_again_by_a_worker(packed):
    images = open_images(packed[0])["train"]
    first = images.open(2)
    assert np.array_equal(pickle.loads(pickle.dumps(images)).open(2), first)
    preprocess = Preprocess(3, 16, (0.5,) * 3, (0.5,) * 3)
    batches = [batch.pixels for batch in iterate_batches(images, preprocess, batch_size=3, workers=1)]
    assert np.array_equal(batches[0][2].permute(1, 2, 0).numpy(), first)


def test_more_channels_are_packed(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 4096, (4, 5, 12, 12), dtype=np.uint16)
    (tmp_path / "bands").mkdir()
    for k, image in enumerate(pixels):
        np.save(tmp_path / "bands" / f"{k}.npy", image.transpose(1, 2, 0))
    path = pack(tmp_path / "bands", out=tmp_path / "bands.safetensors", size=12)
    loaded = load_images(open_images(path)["all"], channels=5)
    assert np.allclose(loaded.pixels.numpy(), pixels / 4095, atol=1 / 65535)
    assert len(as_images(path)) == 4


def test_floats_keep_16_bits(tmp_path):
    pixels = np.random.default_rng(0).random((12, 12, 1), dtype=np.float32)
    (tmp_path / "floats").mkdir()
    np.save(tmp_path / "floats" / "a.npy", pixels)
    path = pack(tmp_path / "floats", out=tmp_path / "packed.safetensors", size=12)
    loaded = load_images(open_images(path)["all"], channels=1).pixels
    assert np.abs(loaded[0].permute(1, 2, 0).numpy() - pixels).max() < 1e-5


def test_the_file_is_written_whole_or_not_at_all(tmp_path, write):
    folder = write(*(f"{k}.png" for k in range(5)))
    out = tmp_path / "a.safetensors"
    out.write_text("precious")
    with pytest.raises(UserError, match="exists already"):
        pack(folder, out=out)
    assert out.read_text() == "precious"
    for k in range(5):
        (folder / f"{k}.png").write_bytes(b"no image") if k else None
    with pytest.raises(UserError, match="could not be read"):
        pack(folder, out=tmp_path / "b.safetensors", size=8)
    assert not (tmp_path / "b.safetensors").exists()
    for size in (0, 5000):
        with pytest.raises(UserError, match="size"):
            pack("digits", out=tmp_path / "c.safetensors", size=size)
    with pytest.raises(UserError, match=r"expected \.safetensors"):
        pack("digits", out=tmp_path / "c.npy")


def test_the_command_packs_and_pretraining_reads_the_file(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["pack", "digits", "--size", "8", "--out", "d.safetensors", "--workers", "0"]) == 0
    assert "1,797 images of 8×8 px" in capsys.readouterr().err
    assert open_images("d.safetensors")["all"].labels.tolist() == open_images("digits")["all"].labels.tolist()
    assert main(["pack", "digits", "--out", "d.safetensors"]) == 2
    assert main(["pack", "no-such", "--out", "e.safetensors"]) == 2


def forge(path, **changes):
    tensors = load_file(path)
    text = json.loads(tensors["text"].tobytes())
    text |= changes.pop("text", {})
    tensors["text"] = np.frombuffer(json.dumps(text).encode(), dtype=np.uint8)
    save_file(tensors | changes, path, metadata={"format": FORMAT})


@pytest.mark.parametrize(
    "change",
    [
        {"labels": np.zeros(3, dtype=np.int64)},
        {"labels": np.full(9, 2)},
        {"groups": np.full(9, -2)},
        {"pixels": np.zeros((9, 16, 16, 3), dtype=np.float32)},
        {"pixels": np.zeros((9, 16, 48), dtype=np.uint8)},
        {"text": {"names": ["a"]}},
        {"text": {"names": [1] * 9}},
        {"text": {"splits": {"train": 4, "test": 8}}},
        {"text": {"splits": {"train": 10, "test": 9}}},
        {"text": {"splits": [9]}},
        {"text": {"classes": None}},
    ],
)
def test_a_forged_file_is_refused(packed, change):
    forge(packed[0])
    open_images(packed[0])  # unchanged content is accepted
    forge(packed[0], **change)
    with pytest.raises(UserError, match="cannot read the packed images"):
        open_images(packed[0])


def test_a_damaged_file_and_weights_are_refused(packed, tmp_path):
    data = packed[0].read_bytes()
    for broken in (data[:-5], data[:100], b"", struct.pack("<Q", 2**60) + data[8:]):
        packed[0].write_bytes(broken)
        with pytest.raises(UserError, match="cannot read the packed images"):
            open_images(packed[0])
    save_file({"weight": np.zeros(3)}, tmp_path / "w.safetensors")
    with pytest.raises(UserError, match="does not contain images"):
        open_images(tmp_path / "w.safetensors")
