import numpy as np
import pytest
from PIL import Image

from fullrank.errors import UserError
from fullrank.images import DatasetInfo, dataset_info, fits, open_images


def test_one_size_is_uniform_and_counted_exactly():
    assert dataset_info(open_images("digits")["all"]) == DatasetInfo(
        count=1797, channels=1, minimum=(8, 8), median=(8, 8), maximum=(8, 8), uniform=True, bytes_in_memory=115008, modes={"uint8×1": 64}
    )


def test_mixed_sizes_are_summarised(write):
    write("a.png", "b.jpg", size=(10, 20))
    write("c.png", size=(30, 6))
    folder = write("d.png", "e.png", size=(12, 8))
    Image.new("L", (12, 8)).save(folder / "f.png")
    found = dataset_info(open_images(folder)["all"])
    assert (found.minimum, found.median, found.maximum) == ((10, 6), (12, 8), (30, 20))
    assert not found.uniform
    assert (found.count, found.channels) == (6, 3)
    assert found.modes == {"L": 1, "RGB": 5}
    assert found.bytes_in_memory == 6 * 3 * 12 * 8


def test_only_headers_are_read(write):
    folder = write("a.jpg", size=(640, 480))
    (folder / "a.jpg").write_bytes((folder / "a.jpg").read_bytes()[:700])
    assert dataset_info(open_images(folder)["all"]).median == (640, 480)


@pytest.mark.parametrize(("mode", "channels"), [("1", 1), ("L", 1), ("I;16", 1), ("P", 3), ("RGBA", 3), ("LA", 3), ("CMYK", 3)])
def test_grey_files_have_one_channel(tmp_path, mode, channels):
    Image.new(mode, (4, 4)).save(tmp_path / "a.tiff" if mode == "CMYK" else tmp_path / "a.png")
    assert dataset_info(open_images(tmp_path)["all"]).channels == channels


def test_arrays_say_how_many_channels_they_have(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((4, 6, 5), dtype=np.uint8))
    found = dataset_info(open_images(tmp_path)["all"])
    assert (found.channels, found.median, found.modes) == (5, (6, 4), {"uint8×5": 1})


def test_sizes_are_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (40, 20)).save(tmp_path / "a.jpg", exif=exif)
    assert dataset_info(open_images(tmp_path)["all"]).median == (20, 40)


def test_bad_images_do_not_count_unless_all_are(write):
    folder = write("a.png", "b.png")
    (folder / "a.png").write_text("no image")
    assert dataset_info(open_images(folder)["all"]).modes == {"RGB": 1}
    (folder / "b.png").write_text("no image")
    with pytest.raises(UserError, match=r"none of 2 sampled images of .* can be read; the first is 'a.png': not an image"):
        dataset_info(open_images(folder)["all"])


def test_fits_compares_with_the_budget():
    found = dataset_info(open_images("digits")["all"])
    assert fits(found, 1797 * 64)
    assert not fits(found, 1797 * 64 - 1)
    assert fits(found, 1797 * 16, size=4)
    assert not fits(found, 1797 * 16 - 1, size=4)
