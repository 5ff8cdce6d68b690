import json

import pytest

from fullrank.errors import UserError
from fullrank.images import BadImage, Skipped


def bad(k):
    return BadImage(f"{k}.jpg", "empty file")


def test_a_share_within_the_limit_is_tolerated():
    skipped = Skipped(tolerate=0.1)
    for k in range(20):
        skipped.add(10, [bad(k)])
    skipped.finish()
    assert (skipped.tried, skipped.failed, len(skipped.reasons)) == (200, 20, 20)


def test_a_share_past_the_limit_stops_once_enough_were_tried():
    skipped = Skipped(tolerate=0.1, minimum=100)
    skipped.add(99, map(bad, range(50)))
    with pytest.raises(
        UserError, match=r"51 of 100 images could not be read, more than the tolerated 10%; the first is '0.jpg': empty file"
    ):
        skipped.add(1, [bad(50)])


def test_a_short_pass_is_judged_at_its_end():
    skipped = Skipped(tolerate=0.1)
    skipped.add(5, [bad(0)])
    with pytest.raises(UserError, match="1 of 5"):
        skipped.finish()


def test_nothing_tried_is_nothing_wrong():
    Skipped(tolerate=0.0).finish()


def test_a_file_that_fails_in_every_epoch_is_listed_once(tmp_path):
    skipped = Skipped(tolerate=1.0)
    for _ in range(3):
        skipped.add(2, [bad(0), BadImage("é\udcff.png", "x")])
    skipped.write(tmp_path / "skipped.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "skipped.jsonl").read_text().splitlines()]
    assert rows == [{"name": "0.jpg", "reason": "empty file"}, {"name": "é\udcff.png", "reason": "x"}]
