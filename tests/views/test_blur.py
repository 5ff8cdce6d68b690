import pytest
import torch
from torchvision.transforms.v2 import functional as F

from fullrank.views.blur import blur


@pytest.mark.parametrize(("size", "radius"), [(8, 4), (17, 8), (32, 8), (33, 3), (96, 11), (100, 8)])
def test_equals_torchvision_with_a_sigma_of_its_own_for_each_image(size, radius):
    x = torch.rand(4, 3, size, size, generator=torch.Generator().manual_seed(size), dtype=torch.float64)
    sigma = torch.tensor([0.1, 0.7, 1.3, 2.0], dtype=torch.float64)
    out = blur(x, sigma, radius=radius)
    for a, b, s in zip(out, x, sigma, strict=True):
        torch.testing.assert_close(a, F.gaussian_blur(b, [2 * radius + 1] * 2, [s.item()] * 2), atol=1e-12, rtol=0)


def test_keeps_a_constant_image():
    x = torch.full((1, 4, 20, 20), 0.3)
    torch.testing.assert_close(blur(x, torch.tensor([1.5]), radius=6), x)
