import pickle

import pytest
from PIL import Image

from fullrank.errors import UserError
from fullrank.images.decode_error import ImageDecodeError, reading


def test_a_bad_image_survives_the_way_back_from_a_worker():
    bad = pickle.loads(pickle.dumps(ImageDecodeError("a.jpg", "empty file")))
    assert (bad.name, bad.reason, str(bad)) == ("a.jpg", "empty file", "a.jpg: empty file")


def test_whatever_goes_wrong_while_reading_is_a_bad_image_in_one_line():
    with pytest.raises(ImageDecodeError, match=r"^x\.png: one line and another$"), reading("x.png"):
        raise SyntaxError("one line\nand another")


def test_an_error_without_words_is_called_by_its_type():
    with pytest.raises(ImageDecodeError, match="EOFError"), reading("x.png"):
        raise EOFError


def test_the_mistakes_of_the_user_pass_unchanged():
    with pytest.raises(UserError, match="channels"), reading("x.png"):
        raise UserError("channels")


@pytest.mark.parametrize("share", [0.9, 0.4])  # of the limit: Pillow warns from 1 on, and raises from 2 on
def test_more_pixels_than_the_limit_are_a_bad_image(share, tmp_path, monkeypatch):
    Image.new("L", (10, 10)).save(tmp_path / "x.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", int(100 * share))
    with pytest.raises(ImageDecodeError, match="more pixels than the limit"), reading("x.png"):
        Image.open(tmp_path / "x.png")
