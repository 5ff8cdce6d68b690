import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fullrank.errors import UserError
from fullrank.images import load_images, open_images
from fullrank.images.fingerprint import SAMPLE, Fingerprint, compared_indices


@pytest.fixture(scope="module")
def digits():
    return load_images(open_images("digits")["all"], channels=1)


def changes(before, now):
    return Fingerprint.of(before).changes(now, Fingerprint.of(now))


def test_equal_images_have_no_changes_also_after_json(digits):
    stored = Fingerprint.from_json(json.loads(json.dumps(Fingerprint.of(digits).to_json())))
    assert stored == Fingerprint.of(digits)
    assert stored.changes(digits, Fingerprint.of(digits)) == []


def test_each_changed_pixel_is_found_and_counted(digits):
    pixels = digits.pixels.clone()
    for index in (17, 500, 1796):
        pixels[index, 0, 3, 3] ^= 1
    assert changes(digits, replace(digits, pixels=pixels)) == [
        "3 of 1,797 images have other pixels (first: digits[17])"
    ]


def test_two_exchanged_images_are_found(digits):
    pixels = digits.pixels.clone()
    pixels[[4, 5]] = pixels[[5, 4]]
    assert changes(digits, replace(digits, pixels=pixels)) == ["2 of 1,797 images have other pixels (first: digits[4])"]


def test_classes_names_labels_and_sizes_are_compared(digits):
    names, labels = ("x", *digits.names[1:]), digits.labels.roll(1)
    assert changes(digits, replace(digits, classes=("zero", *digits.classes[1:]))) == ["classes renamed 0 → zero"]
    assert changes(digits, replace(digits, classes=digits.classes[1:])) == ["10 classes are now 9"]
    assert changes(digits, replace(digits, names=names)) == ["files were renamed, or other files took their place"]
    assert changes(digits, replace(digits, labels=labels)) == ["labels differ"]
    assert changes(digits, replace(digits, pixels=digits.pixels[..., 1:])) == [
        "images of 1×8×8 in memory are now of 1×8×7 in memory"
    ]
    fewer = replace(
        digits, pixels=digits.pixels[1:], labels=digits.labels[1:], names=digits.names[1:], groups=digits.groups[1:]
    )
    assert changes(digits, fewer) == ["1,797 images are now 1,796"]


def test_images_on_disk_are_compared_by_their_files(tmp_path):
    for k in range(200):
        path = tmp_path / "here" / f"{k:03}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(np.full((4, 4), k, np.uint8)).save(path)
    moved = Path(shutil.copytree(tmp_path / "here", tmp_path / "there"))
    here, there = (open_images(tmp_path / name)["all"] for name in ("here", "there"))
    assert changes(here, there) == []
    for k in (0, 199):
        Image.fromarray(np.full((4, 4), 77, np.uint8)).save(moved / f"{k:03}.png")
    assert changes(here, there) == [f"2 of {SAMPLE} compared images have other content (first: 000.png)"]
    (moved / "000.png").write_bytes(b"no image")
    assert len(changes(here, there)) == 1


def test_the_compared_images_are_spread_over_the_whole_set():
    indices = compared_indices(100_000)
    assert (len(indices), indices[0], indices[-1]) == (SAMPLE, 0, 99_999)
    assert max(np.diff(indices)) - min(np.diff(indices)) <= 1


@pytest.mark.parametrize("value", [None, 3, [], {}, {"count": "many"}])
def test_a_damaged_fingerprint_is_a_user_error(value):
    with pytest.raises(UserError, match="fingerprint"):
        Fingerprint.from_json(value)


def test_damaged_checksums_are_a_difference(digits):
    stored = replace(Fingerprint.of(digits), contents="AAAA")
    assert len(stored.changes(digits, Fingerprint.of(digits))) == 1
    stored = replace(Fingerprint.of(digits), contents="no base64!")
    assert len(stored.changes(digits, Fingerprint.of(digits))) == 1
