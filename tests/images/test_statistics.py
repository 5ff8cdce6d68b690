import pytest
import torch

from fullrank.errors import UserError
from fullrank.images import DecodeErrors, MemoryImages, channel_statistics, load, open_images


def test_equal_the_mean_and_deviation_of_all_pixels():
    pixels = torch.randint(256, (5000, 3, 4, 5), dtype=torch.uint8) // torch.tensor([1, 2, 3], dtype=torch.uint8)[:, None, None]
    mean, std = channel_statistics(MemoryImages(pixels, torch.zeros(5000, dtype=torch.int64), ("",) * 5000, ()))
    x = pixels.double() / 255
    torch.testing.assert_close(torch.tensor(mean, dtype=torch.float64), x.mean(dim=(0, 2, 3)), rtol=1e-12, atol=0)
    torch.testing.assert_close(torch.tensor(std, dtype=torch.float64), x.std(dim=(0, 2, 3), unbiased=False), rtol=1e-12, atol=0)


def test_a_sample_that_is_everything_equals_memory():
    images = open_images("digits")["all"]
    assert channel_statistics(images, channels=1, sample=5000) == channel_statistics(load(images, channels=1))


def test_a_sample_is_close_to_everything():
    images = open_images("digits")["all"]
    (mean,), (std,) = channel_statistics(images, channels=1, sample=300)
    (true_mean,), (true_std,) = channel_statistics(load(images, channels=1))
    assert abs(mean - true_mean) < 0.02
    assert abs(std - true_std) < 0.02


def test_bad_images_are_left_out_of_a_sample_and_recorded(write):
    folder = write("a.png", "b.png", "c.png")
    (folder / "c.png").write_text("no image")
    decode_errors = DecodeErrors(max_error_fraction=0.5)
    mean, std = channel_statistics(open_images(folder)["all"], decode_errors=decode_errors)
    assert mean == pytest.approx((0.5 / 255, 100 / 255, 200 / 255))
    assert std == pytest.approx((0.5 / 255, 0, 0), abs=1e-12)
    assert list(decode_errors.reasons) == ["c.png"]
    with pytest.raises(UserError, match="1 of 3"):
        channel_statistics(open_images(folder)["all"])


def test_real_statistics_are_the_known_ones(real):
    images = open_images(real / "mnist")["test"]
    (mean,), (std,) = channel_statistics(images, channels=1, sample=1000)
    assert mean == pytest.approx(0.1325, abs=0.01)  # of all test images; the sample is a tenth
    assert std == pytest.approx(0.3105, abs=0.01)
