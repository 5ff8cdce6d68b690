import numpy as np
import torch

from fullrank.views import CropConfig, JitterConfig, MultiViewTransform, ViewConfig
from fullrank.views.preview import preview

CROP, JITTER = CropConfig(probability=0.0), JitterConfig(probability=0.0)
PLAIN = ViewConfig(count=2, size=16, crop=CROP, flip=0.0, jitter=JITTER, grayscale=0.0)


def test_a_preview_shows_each_image_and_its_views_without_the_normalisation():
    images = torch.randint(0, 256, (3, 3, 16, 16), dtype=torch.uint8)
    views = MultiViewTransform(PLAIN, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4), channels=3)
    picture = np.array(preview(images, views, side=16))
    assert picture.shape == (3 * 16 + 2 * 3, 3 * 16 + 2 * 3, 3)
    for i in range(3):
        for column in range(3):
            cell = picture[i * 19 : i * 19 + 16, column * 19 : column * 19 + 16]
            assert (cell == images[i].permute(1, 2, 0).numpy()).all()


def test_a_preview_shows_any_number_of_channels_and_sizes():
    for channels in (1, 2, 3, 5):
        colourless = ViewConfig(count=3, size=8, jitter=JitterConfig(saturation=0.0, hue=0.0), grayscale=0.0)
        half = (0.5,) * channels
        views = MultiViewTransform([colourless, PLAIN], mean=half, std=half, channels=channels)
        assert preview([np.zeros((9, 7, channels), dtype=np.uint8)], views, side=10).size == (6 * 13 - 3, 10)
