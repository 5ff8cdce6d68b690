import datasets
import numpy as np
import pytest
import torch
from PIL import Image

from fullrank.errors import UserError
from fullrank.images import DecodeErrors, ImageDecodeError, as_images, load_images, open_images

PIXELS = torch.arange(5 * 3 * 4 * 6, dtype=torch.uint8).view(5, 3, 4, 6)


class Photos(torch.utils.data.Dataset):
    targets = [0, 1, 0, 1, 2]
    classes = ["a", "b", "c"]

    def __len__(self):
        return 5

    def __getitem__(self, index):
        return Image.fromarray(PIXELS[index].permute(1, 2, 0).numpy()), self.targets[index]


def hub_data_set():
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b", "c"])})
    rows = {"image": [Photos()[k][0] for k in range(5)], "label": Photos.targets}
    return datasets.Dataset.from_dict(rows, features=features)


def paths(tmp_path):
    for k in range(5):
        Photos()[k][0].save(tmp_path / f"{k}.png")
    return sorted(tmp_path.iterdir())


@pytest.mark.parametrize(
    "make",
    [
        lambda path: PIXELS,
        lambda path: PIXELS.numpy(),
        lambda path: PIXELS.double() / 255,
        lambda path: (PIXELS / 255).numpy(),
        lambda path: PIXELS.to(torch.bfloat16).float() * 0 + PIXELS / 255,
        lambda path: torch.utils.data.TensorDataset(PIXELS, torch.tensor(Photos.targets)),
        lambda path: torch.utils.data.TensorDataset(PIXELS / 255),
        lambda path: Photos(),
        lambda path: [Photos()[k][0] for k in range(5)],
        lambda path: [{"image": np.asarray(Photos()[k][0])} for k in range(5)],
        lambda path: hub_data_set(),
        paths,
        lambda path: tuple(map(str, paths(path))),
        lambda path: paths(path)[0].parent,
        lambda path: load_images(open_images(paths(path)[0].parent)["all"], channels=3),
        lambda path: open_images(paths(path)[0].parent)["all"],
    ],
)
def test_every_kind_of_data_gives_the_same_pixels(make, tmp_path):
    assert torch.equal(load_images(as_images(make(tmp_path)), channels=3).pixels, PIXELS)


def test_labels_come_with_the_data():
    assert as_images(Photos()).labels.tolist() == Photos.targets
    assert as_images(Photos()).classes == ("a", "b", "c")
    assert as_images(torch.utils.data.Subset(Photos(), [4, 1])).labels.tolist() == [2, 1]
    assert as_images(torch.utils.data.TensorDataset(PIXELS, torch.tensor(Photos.targets))).labels.tolist() == Photos.targets
    assert as_images(hub_data_set()).classes == ("a", "b", "c")
    assert as_images(PIXELS).labels.tolist() == [-1] * 5


def test_a_selection_of_a_hub_data_set_keeps_labels_and_images_together():
    images = as_images(hub_data_set().select([4, 0]))
    assert images.labels.tolist() == [2, 0]
    assert torch.equal(load_images(images, channels=3).pixels, PIXELS[[4, 0]])


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (3, "data is 3"),
        (object(), "type object"),
        ([], "no images"),
        (PIXELS[:0], "no images"),
        (PIXELS[0], r"data\[None\]"),
        (PIXELS.permute(0, 2, 3, 1).repeat(1, 2, 1, 1), "permute"),
        (PIXELS.numpy().transpose(0, 2, 3, 1).repeat(2, 1), "transpose"),
        (PIXELS.float(), "0, 1"),
        (PIXELS / 255 - 0.5, "normalisation"),
        (PIXELS / 0.0, "not finite"),
        (PIXELS.long(), "int64"),
        (["a.png", 3], "only paths"),
        ({"image": PIXELS}, "type dict"),
        (b"image", "type bytes"),
        (datasets.DatasetDict(train=datasets.Dataset.from_dict({"a": [1]})), "DatasetDict"),
        (datasets.Dataset.from_dict({"a": [1]}), "no image column"),
    ],
)
def test_what_is_not_images_is_one_line(data, word):
    with pytest.raises(UserError, match=word) as caught:
        as_images(data)
    assert "\n" not in str(caught.value)


class Broken(Photos):
    def __getitem__(self, index):
        if index == 1:
            raise RuntimeError("no network")
        return [None, torch.full((3, 4, 6), 7.0), torch.zeros(4), "x.png", {}][index]


def test_items_that_are_no_images_are_counted():
    images = as_images(Broken())
    for k, word in enumerate(["expected a Pillow image", "no network", "shape", "expected a Pillow image", "expected a Pillow image"]):
        with pytest.raises((ImageDecodeError, UserError), match=word):
            images.open(k)
    with pytest.raises(UserError, match="can be read|could not be read"):
        load_images(images, channels=3, decode_errors=DecodeErrors(max_error_fraction=1))
