import datasets
import numpy as np
import pytest
import torch
from PIL import Image

from fullrank.errors import UserError
from fullrank.images import DecodeErrors, Decoding, ImageDecodeError, as_images, load_images, open_images

PIXELS = torch.arange(5 * 3 * 4 * 6, dtype=torch.uint8).view(5, 3, 4, 6)


class Photos(torch.utils.data.Dataset):
    targets = (0, 1, 0, 1, 2)
    classes = ("a", "b", "c")

    def __len__(self):
        return 5

    def __getitem__(self, index):
        return Image.fromarray(PIXELS[index].permute(1, 2, 0).numpy()), self.targets[index]


def hub_data_set():
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b", "c"])})
    rows = {"image": [Photos()[k][0] for k in range(5)], "label": list(Photos.targets)}
    return datasets.Dataset.from_dict(rows, features=features)


def paths(tmp_path):
    for k in range(5):
        Photos()[k][0].save(tmp_path / f"{k}.png")
    return sorted(tmp_path.iterdir())


def test_every_kind_of_data_gives_the_same_pixels(tmp_path):
    files, pictures = paths(tmp_path), [Photos()[k][0] for k in range(5)]
    opened = open_images(tmp_path)["all"]
    big_endian = (PIXELS / 255).numpy().astype(">f4")
    data = [PIXELS, PIXELS.numpy(), PIXELS.double() / 255, big_endian, Photos(), pictures, hub_data_set()]
    data += [torch.utils.data.TensorDataset(PIXELS, torch.tensor(Photos.targets)), files, tmp_path, opened]
    for each in (*data, load_images(opened, channels=3), [{"image": np.asarray(picture)} for picture in pictures]):
        assert torch.equal(load_images(as_images(each), channels=3).pixels, PIXELS)


def test_labels_come_with_the_data():
    assert as_images(Photos()).labels.tolist() == list(Photos.targets)
    assert as_images(Photos()).classes == ("a", "b", "c")
    assert as_images(torch.utils.data.Subset(Photos(), [4, 1])).labels.tolist() == [2, 1]
    tensors = torch.utils.data.TensorDataset(PIXELS, torch.tensor(Photos.targets))
    assert as_images(tensors).labels.tolist() == list(Photos.targets)
    assert as_images(hub_data_set()).classes == ("a", "b", "c")
    assert as_images(PIXELS).labels.tolist() == [-1] * 5


@pytest.mark.parametrize(
    "data",
    [
        *([], PIXELS[:0], PIXELS[0], PIXELS.permute(0, 2, 3, 1).repeat(1, 2, 1, 1), PIXELS.float(), PIXELS.long()),
        *(["a.png", 3], {"image": PIXELS}, object(), datasets.Dataset.from_dict({"a": [1]})),
    ],
)
def test_what_is_not_images_is_one_line(data):
    with pytest.raises(UserError) as caught:
        as_images(data)
    assert "\n" not in str(caught.value)


class Broken(Photos):
    def __getitem__(self, index):
        if index == 1:
            raise RuntimeError("no network")
        return [None, None, torch.zeros(4), "x.png", torch.full((3, 4, 6), 7.0)][index]


def test_items_that_are_no_images_are_counted():
    images = as_images(Broken())
    for k, word in enumerate(["has no image", "no network", "Pillow image", "Pillow image", "0, 1"]):
        with pytest.raises((ImageDecodeError, UserError), match=word):
            images.open(k)
    with pytest.raises(UserError, match="0, 1"):
        load_images(images, channels=3, decoding=Decoding(errors=DecodeErrors(max_error_fraction=1.0)))


@pytest.mark.parametrize(
    "labels",
    [["b", "a", None, "b"], (1, 0, -1, 1), [1, 0, None, 1], np.array([1, 0, -1, 1]), torch.tensor([1, 0, -1, 1])],
)
def test_labels_are_given_beside_any_images(labels, write):
    folder = write("0.png", "1.png", "2.png", "3.png")
    paths = [folder / f"{k}.png" for k in range(4)]
    for data in (torch.zeros(4, 3, 8, 6), np.zeros((4, 3, 8, 6), np.uint8), paths, folder, as_images(paths)):
        images = as_images((data, labels))
        assert images.labels.tolist() == [1, 0, -1, 1]
        assert images.classes == (("a", "b") if isinstance(labels[0], str) else ())
        assert images.open(0) is not None
    original = as_images(paths)
    as_images((original, labels))
    assert original.labels.tolist() == [-1] * 4


@pytest.mark.parametrize("labels", [[0, 1], [0, 1, "a", 1], [0.5, 1, 1, 1], [0, 1, -2, 1]])
def test_labels_that_fit_no_images_are_refused(labels):
    with pytest.raises(UserError, match="label"):
        as_images((torch.zeros(4, 3, 8, 6), labels)).open(0)


def test_a_subset_of_a_subset_has_the_names_of_the_whole():
    images = open_images("digits")["all"]
    some = images.subset([9, 3, 7, 3]).subset([2, 1])
    assert [some.name(i) for i in range(len(some))] == ["digits[7]", "digits[3]"]
    assert some.labels.tolist() == images.labels[[7, 3]].tolist()
    assert np.array_equal(some.open(0), images.open(7))
    assert (some.source, some.classes) == (images.source, images.classes)


def test_images_have_no_groups_unless_they_are_given_and_a_subset_keeps_them():
    images = open_images("digits")["all"]
    assert np.array_equal(images.groups, np.full(1797, -1))
    images.groups = np.arange(1797) // 10
    chosen = images.subset([25, 3, 999])
    assert chosen.groups.tolist() == [2, 0, 99]
    assert chosen.subset([2]).groups.tolist() == [99]
    in_memory = load_images(chosen, channels=1)
    assert in_memory.to("cpu").groups.tolist() == [2, 0, 99]
    assert as_images(in_memory).groups.tolist() == [2, 0, 99]
