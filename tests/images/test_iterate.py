import pytest
import torch

from fullrank.errors import UserError
from fullrank.images import DecodeErrors, Preprocess, iterate, open_images

PREPROCESS = Preprocess(3, 6, (0.5,) * 3, (0.5,) * 3)


@pytest.fixture
def folder(write):
    """Ten images of two classes, the fourth and fifth of which are broken."""
    folder = write(*(f"{'ab'[k // 5]}/{k}.png" for k in range(10)), size=(9, 6))
    (folder / "a" / "3.png").write_text("no image")
    (folder / "a" / "4.png").write_bytes((folder / "a" / "2.png").read_bytes()[:40])
    return folder


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_images_are_left_out_and_the_others_keep_their_place(folder, workers):
    decode_errors = DecodeErrors(max_error_fraction=0.5)
    batches = list(iterate(open_images(folder)["all"], PREPROCESS, batch=4, workers=workers, decode_errors=decode_errors))
    assert [batch.pixels.shape for batch in batches] == [(3, 3, 6, 6), (3, 3, 6, 6), (2, 3, 6, 6)]
    indices = torch.cat([batch.indices for batch in batches]).tolist()
    assert indices == [0, 1, 2, 5, 6, 7, 8, 9]
    assert [name for batch in batches for name in batch.names] == [f"{'ab'[k // 5]}/{k}.png" for k in indices]
    assert torch.cat([batch.labels for batch in batches]).tolist() == [k // 5 for k in indices]
    assert torch.cat([batch.pixels for batch in batches])[:, 0, 0, 0].tolist() == indices
    assert list(decode_errors.reasons) == ["a/3.png", "a/4.png"]


def test_a_batch_without_readable_images_is_left_out(folder):
    indices = [
        batch.indices.tolist()
        for batch in iterate(open_images(folder)["all"], PREPROCESS, batch=1, decode_errors=DecodeErrors(max_error_fraction=0.5))
    ]
    assert indices == [[0], [1], [2], [5], [6], [7], [8], [9]]


def test_too_many_bad_images_stop_at_the_end_of_a_short_pass(folder):
    with pytest.raises(UserError, match="2 of 10 images could not be read"):
        list(iterate(open_images(folder)["all"], PREPROCESS))


def test_channels_that_cannot_be_converted_are_refused():
    with pytest.raises(UserError, match=r"'digits\[0\]' has 1 channels, 4 were asked for"):
        list(iterate(open_images("digits")["all"], Preprocess(4, 8, (0.5,) * 4, (0.5,) * 4)))
