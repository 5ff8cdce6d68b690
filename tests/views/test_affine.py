import pytest
import torch
from torchvision.transforms import functional as V1
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as F

from fullrank.views.affine import inverse_affine, warp

CASES = [
    (30.0, [0, 0], 1.0, [0.0, 0.0]),
    (-75.0, [3, -2], 0.7, [10.0, 0.0]),
    (12.0, [-5, 4], 1.4, [-8.0, 20.0]),
    (0.0, [2, 0], 1.0, [0.0, 0.0]),
]


@pytest.mark.parametrize(("angle", "shift", "zoom", "shear"), CASES)
def test_the_matrix_is_torchvisions(angle, shift, zoom, shear):
    ours = inverse_affine(*(torch.tensor(t, dtype=torch.float64) for t in (angle, shift, zoom, shear)))
    expected = V1._get_inverse_affine_matrix([0.0, 0.0], angle, shift, zoom, shear)
    torch.testing.assert_close(ours.flatten(), torch.tensor(expected, dtype=torch.float64))


def test_the_warp_is_torchvisions():
    x = torch.rand(len(CASES), 3, 24, 24, generator=torch.Generator().manual_seed(0))
    theta = torch.stack([inverse_affine(*(torch.tensor(t) for t in case)) for case in [(c[0], [*map(float, c[1])], *c[2:]) for c in CASES]])
    out = warp(x, theta)
    for a, b, (angle, shift, zoom, shear) in zip(out, x, CASES, strict=True):
        expected = F.affine(b, angle, shift, zoom, shear, interpolation=InterpolationMode.BILINEAR)
        torch.testing.assert_close(a, expected, atol=2e-5, rtol=0)
