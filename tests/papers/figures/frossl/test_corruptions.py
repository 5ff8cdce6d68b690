"""Corruptions keep the form of the images, and what they leave is counted from chance."""

import pytest
import torch

from fullrank_papers.figures.frossl import corruptions


@pytest.mark.parametrize("name", corruptions.CORRUPTIONS)
def test_a_corruption_changes_pixels_and_keeps_their_form(name):
    pixels = torch.randint(256, (8, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    corrupt = corruptions.CORRUPTIONS[name]
    found = corrupt(pixels)
    assert (found.shape, found.dtype) == (pixels.shape, torch.uint8)
    assert torch.equal(found, corrupt(pixels))  # the same for every network
    assert not torch.equal(found, pixels)
    share = found.float().mean() / pixels.float().mean()
    assert share == pytest.approx(0.5 if name == "brightness" else 1.0, abs=0.02)


def test_what_is_left_decides_and_not_the_accuracy():
    def rows(left):
        return [{"left": x, "accuracy": {"clean": 1 - x}} for x in (left, left + 0.01)]

    verdicts = corruptions.evaluate_claims({"frossl": rows(0.8), "simmer": rows(0.7), "byol": rows(0.9)})
    assert {name: verdict.holds for name, verdict in verdicts.items()} == {"nearest": True, "others: byol": False}
