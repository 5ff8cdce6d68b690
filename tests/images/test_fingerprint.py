import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import one_hot

from fullrank.config import from_json
from fullrank.images import Fingerprint, as_images, load_images, open_images
from small import Flipped


@pytest.fixture(scope="module")
def digits():
    return load_images(open_images("digits")["all"], channels=1)


def changes(before, now):
    return Fingerprint.of(before).changes(Fingerprint.of(now))


def test_equal_images_have_no_changes_also_after_json(digits):
    stored = from_json(Fingerprint, json.dumps(vars(Fingerprint.of(digits))), "fingerprint")
    assert stored == Fingerprint.of(digits)
    assert stored.changes(Fingerprint.of(digits)) == []


def test_pixels_classes_names_labels_and_numbers_are_compared(digits):
    pixels = digits.pixels.clone()
    pixels[1796, 0, 3, 3] ^= 1
    others = {
        "pixels": pixels,
        "classes": ("zero", *digits.classes[1:]),
        "names": ("x", *digits.names[1:]),
        "labels": digits.labels.roll(1),
        "groups": torch.arange(1797) // 2,
        "multi_labels": one_hot(digits.labels).to(torch.int8),
    }
    for name, value in others.items():
        assert len(changes(digits, replace(digits, **{name: value}))) == 1
    assert changes(digits, digits.subset(range(1, 1797))) == ["1,797 images are now 1,796"]


def test_pixels_that_change_at_each_access_are_left_out(digits):
    images, others = (Flipped(as_images(digits.subset(rows))) for rows in (range(90), [*range(1, 90), 0]))
    assert [len(changes(as_images(images), as_images(part))) for part in (images, others)] == [0, 1]  # other labels
    fixed = [as_images(torch.utils.data.TensorDataset(pixels)) for pixels in (digits.pixels, 255 - digits.pixels)]
    assert len(changes(*fixed)) == 1


def test_images_on_disk_are_compared_by_their_files(tmp_path):
    (tmp_path / "here").mkdir()
    for k in range(200):
        Image.fromarray(np.full((4, 4), k, np.uint8)).save(tmp_path / "here" / f"{k:03}.png")
    moved = Path(shutil.copytree(tmp_path / "here", tmp_path / "there"))
    here, there = (open_images(tmp_path / name)["all"] for name in ("here", "there"))
    assert changes(here, there) == []
    (moved / "000.png").write_bytes(b"no image")
    assert len(changes(here, there)) == 1
