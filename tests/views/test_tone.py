import torch
from scipy.stats import kstest
from torchvision.transforms.v2 import functional as F

from fullrank.views.tone import noise_, normalize_, solarize_


def test_solarize_equals_torchvision_and_can_be_off():
    x = torch.randint(0, 5, (3, 3, 8, 8)) / 4
    out = solarize_(x.clone(), torch.tensor([0.5, 0.3, 2.0]))
    torch.testing.assert_close(out[0], F.solarize(x[0], 0.5))
    torch.testing.assert_close(out[1], F.solarize(x[1], 0.3))
    torch.testing.assert_close(out[2], x[2])


def test_normalize_equals_torchvision():
    x, mean, std = torch.rand(2, 3, 8, 8), [0.4, 0.5, 0.6], [0.2, 0.25, 0.3]
    torch.testing.assert_close(normalize_(x.clone(), torch.tensor(mean), torch.tensor(std)), F.normalize(x, mean, std))


def noise(key, shape=(3, 64, 64)):
    return (
        noise_(torch.full((1, *shape), 0.5, dtype=torch.float64), torch.tensor([0.01]), torch.tensor([float(key)]))[0].sub_(0.5).div_(0.01)
    )


def test_noise_is_standard_normal():
    assert kstest(torch.stack([noise(key) for key in range(4)]).flatten().numpy(), "norm").pvalue > 1e-3


def test_noise_is_independent_between_pixels_channels_and_keys():
    a, b = noise(11), noise(12)
    pairs = [(a, b), (a[0], a[1]), (a[..., 1:], a[..., :-1]), (a[:, 1:], a[:, :-1]), (a.square(), b.square())]
    for one, other in pairs:
        assert torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1].abs() < 5 / one.numel() ** 0.5


def test_noise_is_a_function_of_its_key_and_off_where_std_is_zero():
    x = torch.full((2, 3, 8, 8), 0.5)
    keys = torch.tensor([3.0, 3.0])
    torch.testing.assert_close(noise_(x.clone(), torch.tensor([0.1, 0.1]), keys)[0], noise_(x.clone(), torch.tensor([0.0, 0.1]), keys)[1])
    torch.testing.assert_close(noise_(x.clone(), torch.tensor([0.0, 0.1]), keys)[0], x[0])


def test_noise_of_the_largest_hash_is_finite_and_can_be_off():
    x = torch.full((1, 3, 96, 96), 0.5)  # with key 84, one pixel's hash begins with 24 ones
    torch.testing.assert_close(noise_(x.clone(), torch.tensor([0.0]), torch.tensor([84.0])), x)
    assert (noise_(x, torch.tensor([0.01]), torch.tensor([84.0])) - 0.5).abs().max() < 0.06


def test_noise_is_clamped():
    x = noise_(torch.rand(1, 3, 32, 32), torch.tensor([1.0]), torch.tensor([5.0]))
    assert x.min() == 0
    assert x.max() == 1
