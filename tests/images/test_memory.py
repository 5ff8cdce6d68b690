import numpy as np
import pytest
import torch

from fullrank.errors import UserError
from fullrank.images import DecodeErrors, load, open_images


@pytest.mark.parametrize("workers", [0, 2])
def test_a_whole_set_becomes_one_tensor(workers):
    images = open_images("digits")["all"]
    memory = load(images, channels=1, workers=workers)
    assert memory.pixels.dtype == torch.uint8
    assert np.array_equal(memory.pixels[:, 0].numpy(), images.pixels[..., 0])
    assert memory.labels.tolist() == images.labels.tolist()
    assert memory.names[:2] == ("digits[0]", "digits[1]")
    assert memory.classes == images.classes
    assert len(memory) == 1797


def test_images_need_not_be_square(write):
    assert load(open_images(write("a.png", "b.png"))["all"], channels=3).pixels.shape == (2, 3, 6, 8)


def test_bad_images_are_left_out_and_recorded(write):
    folder = write("a.png", "b.png", "c.png")
    (folder / "a.png").write_text("no image")
    decode_errors = DecodeErrors(max_error_fraction=0.5)
    memory = load(open_images(folder)["all"], channels=3, decode_errors=decode_errors)
    assert memory.names == ("b.png", "c.png")
    assert memory.pixels[:, 0, 0, 0].tolist() == [1, 2]
    assert decode_errors.reasons == {"a.png": "not an image that Pillow can read"}


def test_several_sizes_need_a_size(write, monkeypatch):
    write("a.png", "b.png")
    folder = write("c.png", size=(4, 4))
    images = open_images(folder)["all"]
    expected = r"images of several sizes: 'a.png' has 8×6 pixels, 'c.png' 4×4; give a size, to which all of them are resized"
    with pytest.raises(UserError, match=expected):
        load(images, channels=3)
    monkeypatch.setattr("fullrank.images.memory.CHUNK", 2)  # so that they meet in different chunks
    with pytest.raises(UserError, match=expected):
        load(images, channels=3)
    assert load(images, channels=3, size=5).pixels.shape == (3, 3, 5, 5)


def test_a_set_of_which_nothing_can_be_read_is_refused(write):
    folder = write("a.png")
    (folder / "a.png").write_text("no image")
    with pytest.raises(UserError, match=r"none of the 1 images of .* can be read"):
        load(open_images(folder)["all"], channels=3, decode_errors=DecodeErrors(max_error_fraction=1.0))


def test_it_moves_to_a_device_as_a_whole():
    memory = load(open_images("digits")["all"].subset(range(5)), channels=3).to("meta")
    assert (memory.pixels.device.type, memory.labels.device.type) == ("meta", "meta")
    assert memory.names[4] == "digits[4]"


def test_real_jpegs_decode(real):
    memory = load(open_images(real / "cifar10")["test"].subset(range(500)), channels=3)
    assert memory.pixels.shape == (500, 3, 32, 32)
    assert memory.classes[:2] == ("airplane", "automobile")
