import pytest
import torch
from torchvision.transforms.v2 import functional as F

from fullrank.views.color import adjust_hue_, blend_, rgb_to_grayscale, solarize_

FACTORS = (0.0, 0.3, 1.0, 1.7)
BLENDS = {
    "brightness": (F.adjust_brightness, lambda f: (f, 0, 0)),
    "contrast": (F.adjust_contrast, lambda f: (f, 0, 1 - f)),
    "saturation": (F.adjust_saturation, lambda f: (f, 1 - f, 0)),
}


def pictures(channels=3):
    """Return random colours, coarse colours with ties, black and white, and grays."""
    g = torch.Generator().manual_seed(0)
    smooth = torch.rand(4, channels, 16, 16, generator=g)
    coarse = torch.randint(0, 3, (4, channels, 16, 16), generator=g) / 2
    flat = torch.rand(4, 1, 16, 16, generator=g).expand(4, channels, 16, 16)
    return torch.cat([smooth, coarse, flat])


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", BLENDS)
def test_blend_equals_torchvision(name, channels):
    reference, weights = BLENDS[name]
    x = pictures(channels)
    factors = torch.tensor(FACTORS).repeat(3)
    out = blend_(x.clone(), torch.tensor([weights(f.item()) for f in factors]))
    expected = torch.stack([reference(image, f.item()) for image, f in zip(x, factors, strict=True)])
    torch.testing.assert_close(out, expected, atol=1e-6, rtol=0)


def test_grayscale_equals_torchvision():
    x = pictures()
    expected = F.rgb_to_grayscale(x, num_output_channels=3)
    torch.testing.assert_close(blend_(x.clone(), torch.tensor([0.0, 1, 0]).expand(12, 3)), expected)
    torch.testing.assert_close(rgb_to_grayscale(x), expected[:, :1])


@pytest.mark.parametrize("shift", [-0.5, -0.31, -1 / 6, 0.0, 0.05, 1 / 3, 0.5])
def test_hue_equals_torchvision(shift):
    x, shifts = pictures(), torch.full((12,), shift)
    torch.testing.assert_close(adjust_hue_(x.clone(), shifts), F.adjust_hue(x, shift), atol=5e-6, rtol=0)


def test_colour_operations_work_in_place():
    x = pictures()
    assert blend_(x, torch.ones(12, 3)) is x
    y = x[:, :, 2:10]
    assert adjust_hue_(y, torch.zeros(12)).data_ptr() == y.data_ptr()


def test_solarize_equals_torchvision():
    x = torch.randint(0, 5, (3, 3, 8, 8)) / 4
    out = solarize_(x.clone(), torch.tensor([0.5, 0.3, 2.0]))
    torch.testing.assert_close(out[0], F.solarize(x[0], 0.5))
    torch.testing.assert_close(out[1], F.solarize(x[1], 0.3))
    torch.testing.assert_close(out[2], x[2])
