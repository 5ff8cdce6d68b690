import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest
from torchvision.transforms import functional as V1
from torchvision.transforms import v2
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as F
from torchvision.tv_tensors import Image

from fullrank.views import CropConfig, ViewConfig, geometry
from fullrank.views.augmentation_params import make_params

BOXES = 20_000
SCALE, RATIO = (0.1, 0.7), (0.6, 1.5)


@pytest.fixture(scope="module")
def reference():
    torch.manual_seed(0)
    image, transform = Image(torch.zeros(1, 375, 500)), v2.RandomResizedCrop(8, scale=SCALE, ratio=RATIO)
    params = [transform.make_params([image]) for _ in range(BOXES)]
    return torch.tensor([[p["top"], p["left"], p["height"], p["width"]] for p in params], dtype=torch.float64)


def p_values(box, other, height=375, width=500):
    """Return Kolmogorov-Smirnov p-values for area, ratio and the two positions, each as a fraction of its range."""

    def statistics(box):
        top, left, h, w = box.double().unbind(-1)
        yield from (h * w, w / h, (top + 0.5) / (height - h + 1), (left + 0.5) / (width - w + 1))

    return [kstest(a.numpy(), b.numpy()).pvalue for a, b in zip(statistics(box), statistics(other), strict=True)]


def test_crop_boxes_have_the_distribution_of_torchvision(reference):
    view = ViewConfig(crop=CropConfig(scale=SCALE, ratio=RATIO))
    ours = geometry.crop_boxes(make_params(1, BOXES, seed=0, step=0), [view], 375, 500)[0]
    assert min(p_values(ours, reference)) > 1e-3


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 300), st.integers(1, 300), st.integers(0, 9))
def test_crop_boxes_lie_inside_the_image(height, width, seed):
    views = [ViewConfig(), ViewConfig(crop=CropConfig(scale=(0.9, 1.0), ratio=(30.0, 100.0)))]
    top, left, h, w = geometry.crop_boxes(make_params(2, 20, seed=seed, step=0), views, height, width).unbind(-1)
    assert min(h.min(), w.min()) >= 1
    assert min(top.min(), left.min()) >= 0
    assert (top + h).max() <= height
    assert (left + w).max() <= width


@pytest.mark.parametrize("size", [7, 32, 50])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_resized_crop_equals_torchvision(size, channels):
    g = torch.Generator().manual_seed(size)
    images = torch.randint(0, 256, (5, channels, 40, 60), generator=g, dtype=torch.uint8)
    height, width = torch.randint(1, 41, (2, 5), generator=g), torch.randint(1, 61, (2, 5), generator=g)
    top = (torch.rand(2, 5, generator=g) * (41 - height)).long()
    left = (torch.rand(2, 5, generator=g) * (61 - width)).long()
    flips = torch.rand(2, 5, 2, generator=g) < 0.5
    out = geometry.resized_crop(images, torch.stack([top, left, height, width], -1).float(), flips.float(), size=size)
    for v in range(2):
        for i in range(5):
            box = [int(t[v, i]) for t in (top, left, height, width)]
            expected = F.resized_crop(images[i].float() / 255, *box, [size, size], antialias=True)
            expected = expected.flip([axis for axis, on in zip((-1, -2), flips[v, i], strict=True) if on])
            torch.testing.assert_close(out[v, i], expected, atol=1e-5, rtol=0)


CASES = [
    (30.0, [0, 0], 1.0, [0.0, 0.0]),
    (-75.0, [3, -2], 0.7, [10.0, 0.0]),
    (12.0, [-5, 4], 1.4, [-8.0, 20.0]),
    (0.0, [2, 0], 1.0, [0.0, 0.0]),
]


@pytest.mark.parametrize(("angle", "shift", "scale", "shear"), CASES)
def test_the_affine_matrix_equals_torchvision(angle, shift, scale, shear):
    ours = geometry.inverse_affine_matrix(*(torch.tensor(t, dtype=torch.float64) for t in (angle, shift, scale, shear)))
    expected = V1._get_inverse_affine_matrix([0.0, 0.0], angle, shift, scale, shear)
    torch.testing.assert_close(ours.flatten(), torch.tensor(expected, dtype=torch.float64))


def test_the_warp_equals_torchvision():
    x = torch.rand(len(CASES), 3, 24, 24, generator=torch.Generator().manual_seed(0))
    cases = [(angle, [*map(float, shift)], scale, shear) for angle, shift, scale, shear in CASES]
    theta = torch.stack([geometry.inverse_affine_matrix(*map(torch.tensor, case)) for case in cases])
    out = geometry.warp(x, theta)
    for a, b, (angle, shift, scale, shear) in zip(out, x, CASES, strict=True):
        expected = F.affine(b, angle, shift, scale, shear, interpolation=InterpolationMode.BILINEAR)
        torch.testing.assert_close(a, expected, atol=2e-5, rtol=0)
