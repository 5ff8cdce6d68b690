import io

import numpy as np
import pytest
import torch
from PIL import Image

from fullrank.views import CropConfig, JitterConfig, MultiViewTransform, ViewConfig
from fullrank.views.worker import cut, pixels, side


def photo(height, width, scale=60):
    y, x = np.mgrid[0:height, 0:width] / scale
    channels = [np.sin(x + y), np.cos(2 * x - y), np.sin(3 * y)]
    return Image.fromarray(np.stack([127 + 100 * c for c in channels], -1).astype(np.uint8))


def jpeg(image):
    file = io.BytesIO()
    image.save(file, "JPEG", quality=95)
    file.seek(0)
    return Image.open(file)


@pytest.mark.parametrize("box", [(0, 0, 60, 90), (10, 20, 33, 41), (5, 7, 9, 8)])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_a_crop_is_within_one_grey_level_of_pillow(box, channels):
    array = np.random.default_rng(0).integers(0, 256, (60, 90, channels), dtype=np.uint8)
    top, left, h, w = box
    flips = torch.tensor([[True, False]])
    out = cut(torch.from_numpy(array), torch.tensor([box]), flips, size=16)[0]
    for c in range(channels):
        expected = Image.fromarray(array[..., c]).crop((left, top, left + w, top + h)).resize((16, 16), Image.Resampling.BILINEAR)
        assert (out[c].int() - torch.from_numpy(np.array(expected)).flip(-1).int()).abs().max() <= 1


def test_a_large_jpeg_is_decoded_small_where_pixels_are_left():
    image = photo(1600, 2400)
    assert pixels(jpeg(image), channels=3, shrink=1.9).shape == (1600, 2400, 3)
    assert pixels(jpeg(image), channels=3, shrink=4.0).shape == (400, 600, 3)
    assert pixels(jpeg(image), channels=1, shrink=2.0).shape == (800, 1200, 1)


def test_a_shrunken_jpeg_shows_the_same_crops():
    spec = ViewConfig(count=4, size=64, crop=CropConfig(scale=(0.4, 1.0)), jitter=JitterConfig(probability=0.0), grayscale=0.0)
    views = MultiViewTransform(spec, mean=(0.0,) * 3, std=(1.0,) * 3, channels=3)
    file, draws = jpeg(photo(1600, 2400, scale=600)), views.draw(0, 0, 1)
    array = np.array(jpeg(photo(1600, 2400, scale=600)))
    small, large = views.crops(file, draws, 0)[0], views.crops(array, draws, 0)[0]
    assert side(file)[0] < 1600
    assert (small.int() - large.int()).abs().double().mean() < 2


def test_modes_are_converted():
    image = photo(30, 40)
    grey = pixels(image, channels=1, shrink=1.0)
    assert torch.equal(grey[..., 0], torch.from_numpy(np.array(image.convert("L"))))
    palette = pixels(image.convert("P"), channels=3, shrink=1.0)
    assert palette.shape == (30, 40, 3)
    assert pixels(np.zeros((5, 4), dtype=np.uint8), channels=1, shrink=1.0).shape == (5, 4, 1)


def test_crops_leave_the_array_alone():
    array = np.array(photo(30, 40))
    before = array.copy()
    views = MultiViewTransform(ViewConfig(size=8), mean=(0.0,) * 3, std=(1.0,) * 3, channels=3)
    views.crops(array, views.draw(0, 0, 1), 0)
    assert (array == before).all()
