import json
import pickle

import pytest

from fullrank.errors import UserError
from fullrank.images import DecodeErrors, ImageDecodeError
from fullrank.images.decode_errors import convert_errors


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
    with pytest.raises(
        UserError, match=r"51 of 100 images could not be read, expected at most 10%; the first is '0.jpg': empty file"
    ):
        decode_errors.add(1, [decode_error(50)])


def test_a_file_that_fails_in_every_epoch_is_written_once(tmp_path):
    decode_errors = DecodeErrors(max_error_fraction=1.0)
    for _ in range(3):
        decode_errors.add(2, [decode_error(0), ImageDecodeError("é\udcff.png", "x")])
    decode_errors.write(tmp_path / "decode_errors.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "decode_errors.jsonl").read_text().splitlines()]
    assert rows == [{"name": "0.jpg", "reason": "empty file"}, {"name": "é\udcff.png", "reason": "x"}]
