import pytest
import torch
from torchvision.transforms.v2 import functional as F

from fullrank.views.filters import gaussian_blur, gaussian_noise_, normalize_


@pytest.mark.parametrize(("size", "radius"), [(8, 4), (17, 8), (32, 8), (33, 3), (96, 11), (100, 8)])
def test_blur_equals_torchvision_with_a_sigma_per_image(size, radius):
    x = torch.rand(4, 3, size, size, generator=torch.Generator().manual_seed(size), dtype=torch.float64)
    sigma = torch.tensor([0.1, 0.7, 1.3, 2.0], dtype=torch.float64)
    out = gaussian_blur(x, sigma, radius=radius)
    for a, b, s in zip(out, x, sigma, strict=True):
        torch.testing.assert_close(a, F.gaussian_blur(b, [2 * radius + 1] * 2, [s.item()] * 2), atol=1e-12, rtol=0)


def test_normalize_equals_torchvision():
    x, mean, std = torch.rand(2, 3, 8, 8), [0.4, 0.5, 0.6], [0.2, 0.25, 0.3]
    torch.testing.assert_close(normalize_(x.clone(), torch.tensor(mean), torch.tensor(std)), F.normalize(x, mean, std))


def noise(key, shape=(3, 64, 64)):
    x = torch.full((1, *shape), 0.5, dtype=torch.float64)
    return gaussian_noise_(x, torch.tensor([0.01]), torch.tensor([float(key)]))[0].sub_(0.5).div_(0.01)


def test_noise_is_independent_between_pixels_channels_and_keys():
    a, b = noise(11), noise(12)
    pairs = [(a, b), (a[0], a[1]), (a[..., 1:], a[..., :-1]), (a[:, 1:], a[:, :-1]), (a.square(), b.square())]
    for one, other in pairs:
        assert torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1].abs() < 5 / one.numel() ** 0.5


def test_noise_is_a_function_of_its_key_and_zero_if_std_is_zero():
    x = torch.full((2, 3, 8, 8), 0.5)
    keys = torch.tensor([3.0, 3.0])
    both, second = (gaussian_noise_(x.clone(), torch.tensor(std), keys) for std in ([0.1, 0.1], [0.0, 0.1]))
    torch.testing.assert_close(both[0], second[1])
    torch.testing.assert_close(second[0], x[0])
