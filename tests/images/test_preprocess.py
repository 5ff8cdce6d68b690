import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from fullrank.images import Preprocess

COLOUR = dict(mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4))


@pytest.mark.parametrize("shape", [(64, 48), (48, 64), (33, 77), (101, 40), (20, 31), (9, 9)])
@pytest.mark.parametrize("size", [24, 31])
def test_preprocessing_equals_resize_and_centre_crop_of_torchvision(photo, shape, size):
    image = photo.resize(shape)
    reference = v2.Compose([v2.Resize(size, antialias=True), v2.CenterCrop(size), v2.PILToTensor()])
    assert torch.equal(Preprocess(3, size, **COLOUR).pixels(image), reference(image))


@pytest.mark.parametrize("shape", [(64, 48), (33, 77), (24, 24), (20, 31)])
def test_the_resized_side_may_exceed_the_crop(photo, shape):
    """The test images of ImageNet: Resize(256) and CenterCrop(224), here at a tenth of the size."""
    image = photo.resize(shape)
    reference = v2.Compose([v2.Resize(26, antialias=True), v2.CenterCrop(24), v2.PILToTensor()])
    assert torch.equal(Preprocess(3, 24, **COLOUR, resize=26).pixels(image), reference(image))
    assert torch.equal(Preprocess(3, 240, **COLOUR, resize=260).at_most(24).pixels(image), reference(image))


def test_arrays_are_resized_like_images(photo):
    image = np.asarray(photo)
    many = np.concatenate([image, image[..., :2]], axis=2)
    colour = Preprocess(3, 20, **COLOUR).pixels(photo)
    assert torch.equal(Preprocess(5, 20, (0.0,) * 5, (1.0,) * 5).pixels(many), torch.cat([colour, colour[:2]]))


def test_normalize_subtracts_the_mean_and_divides_by_the_deviation():
    pixels = torch.randint(256, (5, 3, 4, 4), dtype=torch.uint8)
    expected = v2.Normalize(COLOUR["mean"], COLOUR["std"])(pixels / 255)
    x = Preprocess(3, 4, **COLOUR).normalize(pixels)
    assert x.dtype == torch.float32
    torch.testing.assert_close(x, expected)
