import pytest
import torch

from fullrank.errors import UserError
from fullrank_papers.figures.pixels import load_pixels, random_crops


def test_images_depend_on_classes_and_seed():
    X, labels = load_pixels(None, 5, seed=0, classes=(4, 9))
    assert labels.tolist() == [4] * 5 + [9] * 5
    assert torch.equal(X, load_pixels(None, 5, seed=0, classes=(4, 9))[0])
    assert not torch.equal(X, load_pixels(None, 5, seed=1, classes=(4, 9))[0])
    assert X.dtype == torch.float64
    assert 0 <= X.min() < X.max() <= 1


def test_too_few_images_raise():
    with pytest.raises(UserError, match="but 100000 are needed"):
        load_pixels(None, 100_000, seed=0)
    with pytest.raises(UserError, match="of label 4"):
        load_pixels(None, 1000, seed=0, classes=(4,))


@pytest.mark.parametrize("channels", [1, 3])
def test_crops_keep_the_channels_and_add_noise_of_the_stated_size(channels):
    levels = torch.tensor([51, 102, 153]).double()[:channels] / 255
    X = levels.repeat_interleave(64).expand(
        200, -1
    )  # every channel of 8 × 8 pixels is constant, and so is any crop of it
    torch.testing.assert_close(random_crops(X, area=0.3, seed=0), X.expand(2, -1, -1), rtol=0, atol=1e-6)
    noise = random_crops(X, area=0.3, seed=0, noise=0.05) - X
    assert noise.std().item() == pytest.approx(0.05, rel=0.05)
    assert torch.corrcoef(noise.flatten(1))[0, 1].abs() < 0.05


def test_crops_differ_and_have_at_least_the_area():
    X, _ = load_pixels(None, 50, seed=0)
    mild, strong = (random_crops(X, area=area, seed=0) for area in (0.95, 0.3))
    assert not torch.equal(mild[0], mild[1])
    assert (mild - X).square().mean() < (strong - X).square().mean() / 4
