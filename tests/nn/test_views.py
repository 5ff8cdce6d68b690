"""The views as a transform of a batch, of one image, and of a DataLoader."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from fullrank.errors import UserError
from fullrank.nn import Views
from fullrank.views import MultiViewTransform, ViewConfig

CONFIGS = (ViewConfig(size=16), ViewConfig(size=8, count=3))


@pytest.fixture
def pictures():
    pixels = np.random.default_rng(0).integers(0, 256, (6, 20, 24, 3), dtype=np.uint8)
    return [Image.fromarray(image) for image in pixels]


def as_batch(pictures):
    return torch.stack([torch.from_numpy(np.array(picture)).permute(2, 0, 1) for picture in pictures])


def test_a_batch_has_the_views_of_the_library(pictures):
    torch.manual_seed(0)
    seed = int(torch.randint(2**62, ()))
    numbers = {"mean": (0.5,) * 3, "std": (0.25,) * 3}
    transform = MultiViewTransform(CONFIGS, channels=3, **numbers)
    expected = transform(as_batch(pictures), transform.make_params(seed, 0, 6))
    torch.manual_seed(0)
    found = Views(CONFIGS, **numbers)(as_batch(pictures))
    assert [tuple(x.shape) for x in found] == [(6, 3, 16, 16)] * 2 + [(6, 3, 8, 8)] * 3
    assert all(map(torch.equal, found, [view for group in expected for view in group]))
    assert not torch.equal(found[0], Views(CONFIGS, **numbers)(as_batch(pictures))[0])  # new random numbers


def test_all_ways_give_the_same_views(pictures):
    views, found = Views(CONFIGS), []
    whole = lambda: views(as_batch(pictures))  # noqa: E731
    for way in (whole, lambda: views.collate([(picture, 0) for picture in pictures])[0]):
        torch.manual_seed(1)
        found.append(way())
    for x, y in zip(*found, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=0.05)  # the crops are rounded to uint8
    torch.manual_seed(1)
    one = views(pictures[0])
    torch.manual_seed(1)
    for x, y in zip(one, views(as_batch(pictures[:1])[0]), strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=0.05)


def test_samples_of_any_form_are_collated(pictures):
    views, tensors = Views(ViewConfig(size=12)), as_batch(pictures)
    for images in (pictures, tensors.unbind(), (tensors / 255).unbind()):
        (x0, _), labels, names = views.collate([(image, k, f"{k}.png") for k, image in enumerate(images)])
        assert (x0.shape, labels.tolist(), names[0]) == ((6, 3, 12, 12), [*range(6)], "0.png")
        assert views.collate([*images])[1].shape == (6, 3, 12, 12)
        batch = views.collate([{"label": k, "image": image} for k, image in enumerate(images)])
        assert (batch["image"][1].shape, batch["label"].tolist()) == ((6, 3, 12, 12), [*range(6)])
        batch = views.collate([{"boxes": torch.zeros(3, 4), "image": image} for image in images])
        assert (batch["image"][0].shape, batch["boxes"].shape) == ((6, 3, 12, 12), (6, 3, 4))
    with pytest.raises(UserError, match="a sample has label, path, expected an image"):
        views.collate([{"label": 0, "path": "0.png"}])


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((2, 2, 3, 9, 9), torch.uint8),
        ((4, 9, 9, 3), torch.uint8),
        ((0, 3, 9, 9), torch.uint8),
        ((3, 9, 9), torch.int16),
    ],
)
def test_tensors_of_another_form_are_an_error(shape, dtype):
    with pytest.raises(UserError, match=r"images are torch.* of shape .*, expected \(3, H, W\), or a batch"):
        Views(ViewConfig(size=8))(torch.zeros(shape, dtype=dtype))
    with pytest.raises(UserError, match="give images of Pillow"):
        Views(ViewConfig(size=8))(np.zeros((9, 9, 3), np.int64))


def test_common_mistakes_have_their_remedy(pictures):
    views, images = Views(ViewConfig(size=8)), as_batch(pictures).float()
    for mistake, remedy in (
        (lambda: views([(picture, 0) for picture in pictures]), "call views.collate"),
        (lambda: views(images), r"to 25\d, expected floats in \[0, 1\]"),
        (lambda: views(images[:, :1] / 255), "channels=1"),
    ):
        with pytest.raises(UserError, match=remedy):
            mistake()


def test_in_torchvision_and_in_a_loader(pictures, tmp_path):
    for k, picture in enumerate(pictures):
        (folder := tmp_path / "ab"[k % 2]).mkdir(exist_ok=True)
        picture.resize((20 + k, 30)).save(folder / f"{k}.png")
    views = Views(ViewConfig(size=12))
    (x0, x1), label = ImageFolder(tmp_path, v2.Compose([v2.RandomRotation(10), views]))[0]
    assert (x0.shape, x1.shape, label) == ((3, 12, 12), (3, 12, 12), 0)
    (x0, x1), labels = next(iter(DataLoader(ImageFolder(tmp_path), batch_size=4, collate_fn=views.collate)))
    assert (x0.shape, x1.shape, labels.tolist()) == ((4, 3, 12, 12), (4, 3, 12, 12), [0, 0, 0, 1])
    assert not torch.equal(x0, x1)
