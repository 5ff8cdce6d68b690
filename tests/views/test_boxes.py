import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest
from torchvision.transforms import v2
from torchvision.tv_tensors import Image

from fullrank.views import CropConfig, ViewConfig
from fullrank.views.boxes import boxes
from fullrank.views.draw import draw

DRAWS = 20_000
SCALE, RATIO = (0.1, 0.7), (0.6, 1.5)


@pytest.fixture(scope="module")
def reference():
    torch.manual_seed(0)
    image, transform = Image(torch.zeros(1, 375, 500)), v2.RandomResizedCrop(8, scale=SCALE, ratio=RATIO)
    params = [transform.make_params([image]) for _ in range(DRAWS)]
    return torch.tensor([[p["top"], p["left"], p["height"], p["width"]] for p in params], dtype=torch.float64)


def p_values(box, other, height=375, width=500):
    """Kolmogorov-Smirnov: of area, ratio and the two positions, each as a share of the room that it has."""

    def statistics(box):
        top, left, h, w = box.double().unbind(-1)
        yield from (h * w, w / h, (top + 0.5) / (height - h + 1), (left + 0.5) / (width - w + 1))

    return [kstest(a.numpy(), b.numpy()).pvalue for a, b in zip(statistics(box), statistics(other), strict=True)]


def test_have_the_distribution_of_torchvision(reference):
    ours = boxes(draw(1, DRAWS, seed=0, step=0), [ViewConfig(crop=CropConfig(scale=SCALE, ratio=RATIO))], 375, 500)[0]
    assert min(p_values(ours, reference)) > 1e-3


def test_another_scale_has_another_distribution(reference):
    ours = boxes(draw(1, DRAWS, seed=0, step=0), [ViewConfig(crop=CropConfig(scale=(0.12, 0.7), ratio=RATIO))], 375, 500)[0]
    assert min(p_values(ours, reference)) < 1e-3


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 300), st.integers(1, 300), st.integers(0, 9))
def test_lie_inside_the_image(height, width, seed):
    top, left, h, w = boxes(
        draw(2, 20, seed=seed, step=0), [ViewConfig(), ViewConfig(crop=CropConfig(scale=(0.9, 1.0)))], height, width
    ).unbind(-1)
    assert min(h.min(), w.min()) >= 1
    assert min(top.min(), left.min()) >= 0
    assert (top + h).max() <= height
    assert (left + w).max() <= width


@pytest.mark.parametrize(("height", "width"), [(20, 200), (200, 20), (101, 100)])
def test_fall_back_to_the_centre_as_torchvision(height, width):
    # No box of this scale fits, so that all ten tries fail.
    transform = v2.RandomResizedCrop(8, scale=(1.5, 2.0))
    p = transform.make_params([Image(torch.zeros(1, height, width))])
    box = boxes(draw(1, 3, seed=0, step=0), [ViewConfig(crop=CropConfig(scale=(1.5, 2.0)))], height, width)
    assert (box == torch.tensor([p["top"], p["left"], p["height"], p["width"]])).all()


def test_without_a_crop_are_the_whole_image():
    box = boxes(draw(1, 50, seed=0, step=0), [ViewConfig(crop=CropConfig(probability=0.0))], 30, 40)
    assert (box == torch.tensor([0, 0, 30, 40])).all()
    half = boxes(draw(1, 4000, seed=0, step=0), [ViewConfig(crop=CropConfig(probability=0.5, scale=(0.1, 0.5)))], 30, 40)
    assert (half == torch.tensor([0, 0, 30, 40])).all(-1).double().mean() == pytest.approx(0.5, abs=0.03)
