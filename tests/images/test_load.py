import json
import pickle

import numpy as np
import pytest
import torch

from fullrank.errors import UserError
from fullrank.images import Preprocess, iterate_batches, load_images, open_images
from fullrank.images.decode_errors import DecodeErrors, Decoding, ImageDecodeError, convert_errors

PREPROCESS = Preprocess(3, 6, (0.5,) * 3, (0.5,) * 3)


@pytest.fixture
def folder(write):
    """Return ten images of two classes; the fourth and the fifth are unreadable."""
    folder = write(*(f"{'ab'[k // 5]}/{k}.png" for k in range(10)), size=(9, 6))
    (folder / "a" / "3.png").write_text("no image")
    (folder / "a" / "4.png").write_bytes((folder / "a" / "2.png").read_bytes()[:40])
    return folder


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_skip_unreadable_images_and_keep_the_order(folder, workers):
    decode_errors = DecodeErrors(max_error_fraction=0.5)
    decoding = Decoding(workers, errors=decode_errors)
    batches = list(iterate_batches(open_images(folder)["all"], PREPROCESS, batch_size=4, decoding=decoding))
    assert [batch.pixels.shape for batch in batches] == [(3, 3, 6, 6), (3, 3, 6, 6), (2, 3, 6, 6)]
    indices = torch.cat([batch.indices for batch in batches]).tolist()
    assert indices == [0, 1, 2, 5, 6, 7, 8, 9]
    assert [name for batch in batches for name in batch.names] == [f"{'ab'[k // 5]}/{k}.png" for k in indices]
    assert torch.cat([batch.labels for batch in batches]).tolist() == [k // 5 for k in indices]
    assert torch.cat([batch.pixels for batch in batches])[:, 0, 0, 0].tolist() == indices
    assert list(decode_errors.reasons) == ["a/3.png", "a/4.png"]


@pytest.mark.parametrize("workers", [0, 2])
def test_all_images_are_loaded_into_one_tensor(workers):
    images = open_images("digits")["all"]
    memory = load_images(images, channels=1, decoding=Decoding(workers))
    assert memory.pixels.dtype == torch.uint8
    assert np.array_equal(memory.pixels[:, 0].numpy(), images.rows.items[..., 0])
    assert memory.labels.tolist() == images.labels.tolist()
    assert memory.names[:2] == ("digits[0]", "digits[1]")
    assert memory.classes == images.classes
    assert len(memory) == 1797


def test_unreadable_images_are_left_out_and_recorded(write):
    folder = write("a.png", "b.png", "c.png")
    (folder / "a.png").write_text("no image")
    decode_errors = DecodeErrors(max_error_fraction=0.5)
    memory = load_images(open_images(folder)["all"], channels=3, decoding=Decoding(errors=decode_errors))
    assert memory.names == ("b.png", "c.png")
    assert memory.pixels[:, 0, 0, 0].tolist() == [1, 2]
    assert decode_errors.reasons == {"a.png": "Pillow cannot identify the image format"}


def test_several_sizes_need_a_size(write, monkeypatch):
    write("a.png", "b.png")
    folder = write("c.png", size=(4, 4))
    images = open_images(folder)["all"]
    expected = r"several sizes: 'a.png' has 8×6 pixels, 'c.png' has 4×4"
    with pytest.raises(UserError, match=expected):
        load_images(images, channels=3)
    monkeypatch.setattr("fullrank.images.load.CHUNK", 2)  # so that the sizes are in different chunks
    with pytest.raises(UserError, match=expected):
        load_images(images, channels=3)
    assert load_images(images, channels=3, size=5).pixels.shape == (3, 3, 5, 5)


def test_a_decode_error_can_be_pickled():
    error = pickle.loads(pickle.dumps(ImageDecodeError("a.jpg", "empty file")))
    assert (error.name, error.reason, str(error)) == ("a.jpg", "empty file", "a.jpg: empty file")


def test_every_exception_becomes_a_decode_error_of_one_line():
    with pytest.raises(ImageDecodeError, match=r"^x\.png: one line and another$"), convert_errors("x.png"):
        raise SyntaxError("one line\nand another")


def decode_error(k):
    return ImageDecodeError(f"{k}.jpg", "empty file")


def test_a_fraction_above_the_limit_raises_after_enough_attempts():
    decode_errors = DecodeErrors(max_error_fraction=0.1, min_attempts=100)
    decode_errors.add(99, map(decode_error, range(50)))
    words = r"51 of 100 images could not be read, expected at most 10%; the first is '0.jpg': empty file"
    with pytest.raises(UserError, match=f"{words}.* allow more"):
        decode_errors.add(1, [decode_error(50)])
    with pytest.raises(UserError, match=r"repair or remove these images$"):  # all are missing
        DecodeErrors().add(100, map(decode_error, range(100)))


def test_a_file_that_fails_in_every_epoch_is_written_once(tmp_path):
    decode_errors = DecodeErrors(max_error_fraction=1.0)
    for _ in range(3):
        decode_errors.add(2, [decode_error(0), ImageDecodeError("é\udcff.png", "x")])
    decode_errors.write(tmp_path / "decode_errors.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "decode_errors.jsonl").read_text().splitlines()]
    assert rows == [{"name": "0.jpg", "reason": "empty file"}, {"name": "é\udcff.png", "reason": "x"}]
