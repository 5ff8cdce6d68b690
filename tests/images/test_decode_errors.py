import json

import pytest

from fullrank.errors import UserError
from fullrank.images import DecodeErrors, ImageDecodeError


def bad(k):
    return ImageDecodeError(f"{k}.jpg", "empty file")


def test_a_share_within_the_limit_is_tolerated():
    decode_errors = DecodeErrors(max_error_fraction=0.1)
    for k in range(20):
        decode_errors.add(10, [bad(k)])
    decode_errors.finish()
    assert (decode_errors.tried, decode_errors.failed, len(decode_errors.reasons)) == (200, 20, 20)


def test_a_share_past_the_limit_stops_once_enough_were_tried():
    decode_errors = DecodeErrors(max_error_fraction=0.1, minimum=100)
    decode_errors.add(99, map(bad, range(50)))
    with pytest.raises(
        UserError, match=r"51 of 100 images could not be read, more than the tolerated 10%; the first is '0.jpg': empty file"
    ):
        decode_errors.add(1, [bad(50)])


def test_a_short_pass_is_judged_at_its_end():
    decode_errors = DecodeErrors(max_error_fraction=0.1)
    decode_errors.add(5, [bad(0)])
    with pytest.raises(UserError, match="1 of 5"):
        decode_errors.finish()


def test_nothing_tried_is_nothing_wrong():
    DecodeErrors(max_error_fraction=0.0).finish()


def test_a_file_that_fails_in_every_epoch_is_listed_once(tmp_path):
    decode_errors = DecodeErrors(max_error_fraction=1.0)
    for _ in range(3):
        decode_errors.add(2, [bad(0), ImageDecodeError("é\udcff.png", "x")])
    decode_errors.write(tmp_path / "decode_errors.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "decode_errors.jsonl").read_text().splitlines()]
    assert rows == [{"name": "0.jpg", "reason": "empty file"}, {"name": "é\udcff.png", "reason": "x"}]
