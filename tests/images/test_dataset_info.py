import pytest
import torch
from PIL import Image

from fullrank.errors import UserError
from fullrank.images import (
    DatasetInfo,
    DecodeErrors,
    Decoding,
    MemoryImages,
    channel_statistics,
    dataset_info,
    load_images,
    open_images,
)


def test_images_of_one_size_are_uniform():
    sizes = dict.fromkeys(("minimum", "median", "maximum"), (8, 8))
    assert dataset_info(open_images("digits")["all"]) == DatasetInfo(count=1797, channels=1, **sizes)


def test_mixed_sizes_are_summarised(write):
    write("a.png", "b.jpg", size=(10, 20))
    write("c.png", size=(30, 6))
    folder = write("d.png", "e.png", size=(12, 8))
    Image.new("L", (12, 8)).save(folder / "f.png")
    found = dataset_info(open_images(folder)["all"])
    assert (found.minimum, found.median, found.maximum) == ((10, 6), (12, 8), (30, 20))
    assert not found.uniform
    assert (found.count, found.channels) == (6, 3)
    assert (found.bytes_in_memory(), found.bytes_in_memory(5)) == (6 * 3 * 12 * 8, 6 * 3 * 5 * 5)


@pytest.mark.parametrize(
    ("mode", "channels"), [("1", 1), ("L", 1), ("I;16", 1), ("P", 3), ("RGBA", 3), ("LA", 3), ("CMYK", 3)]
)
def test_grayscale_files_have_one_channel(tmp_path, mode, channels):
    Image.new(mode, (4, 4)).save(tmp_path / "a.tiff" if mode == "CMYK" else tmp_path / "a.png")
    assert dataset_info(open_images(tmp_path)["all"]).channels == channels


def test_statistics_equal_the_mean_and_deviation_of_all_pixels():
    divisors = torch.tensor([1, 2, 3], dtype=torch.uint8)[:, None, None]
    pixels = torch.randint(256, (5000, 3, 4, 5), dtype=torch.uint8) // divisors
    mean, std = channel_statistics(MemoryImages(pixels, torch.zeros(5000, dtype=torch.int64), ("",) * 5000, ()))
    x = pixels.double() / 255
    torch.testing.assert_close(torch.tensor(mean, dtype=torch.float64), x.mean(dim=(0, 2, 3)), rtol=1e-12, atol=0)
    deviations = x.std(dim=(0, 2, 3), unbiased=False)
    torch.testing.assert_close(torch.tensor(std, dtype=torch.float64), deviations, rtol=1e-12, atol=0)


def test_a_sample_without_a_readable_image_is_an_error(write):
    folder = write("a.png", "b.png")
    for file in folder.iterdir():
        file.write_bytes(file.read_bytes()[:-30])
    with pytest.raises(UserError, match="can be read"):
        channel_statistics(open_images(folder)["all"], decoding=Decoding(errors=DecodeErrors(max_error_fraction=1.0)))


def test_a_sample_of_all_images_equals_images_in_memory():
    images = open_images("digits")["all"]
    assert channel_statistics(images, channels=1, sample=5000) == channel_statistics(load_images(images, channels=1))
