"""The code of docs/finetuning.md, executed as it stands."""

import re
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

from fullrank import export, finetune, open_images
from fullrank.images import MemoryImages

BLOCKS = re.findall(r"```python\n(.*?)```", Path("docs/finetuning.md").read_text("utf-8"), re.DOTALL)


@pytest.fixture(scope="module")
def page():
    names = {}
    for block in BLOCKS:
        if "def " in block:
            exec(block, names)
    return names


def test_fine_tuning_learns(page):
    torch.manual_seed(0)
    labels = torch.arange(2).repeat(32)
    images = torch.randn(64, 3) + 4 * labels[:, None]
    network = torch.nn.Linear(3, 2)
    before = page["accuracy"](network, TensorDataset(images, labels))
    network = page["fine_tune"](network, TensorDataset(images, labels), epochs=20, lr=0.1)
    assert not network.training
    assert page["accuracy"](network, TensorDataset(images, labels)) > max(before, 0.95)


def test_the_page_fine_tunes_an_exported_folder_on_photos(page, tmp_path, monkeypatch):
    for split, pixel in (("train", 40), ("test", 60)):
        for i in range(10):
            folder = tmp_path / "photos" / split / f"class {i}"
            folder.mkdir(parents=True)
            Image.new("RGB", (20, 16), (pixel, 20 * i, 255 - 20 * i)).save(folder / "a.png")
    monkeypatch.chdir(tmp_path)
    export("timm-untrained:test_resnet", "backbone")
    (block,) = [block for block in BLOCKS if "ImageFolder" in block]
    names = page | {"fine_tune": lambda network, train: page["fine_tune"](network, train, epochs=1)}
    exec(block, names)
    assert names["config"]["input_size"] == (3, 160, 160)
    assert 0 <= page["accuracy"](names["network"], names["test"]) <= 1


def test_the_search_on_embeddings_finds_the_digits(page, run):
    images = open_images("digits")["all"].subset(range(700))
    arrays = [images.open(i) for i in range(700)]
    classifier = page["search"](str(run.path), arrays[:600], images.labels[:600])
    assert classifier.score(arrays[600:], images.labels[600:]) > 0.25  # chance is 0.1; the network of the test is tiny


def test_the_page_names_the_classes_of_new_photos(page, tmp_path):
    pixels = torch.arange(40).remainder(2).mul(200).byte()[:, None, None, None].expand(40, 3, 32, 32).contiguous()
    images = MemoryImages(pixels, torch.arange(40) % 2, tuple(map(str, range(40))), ("dark", "bright"))
    finetune("timm-untrained:test_resnet", images, out=tmp_path / "tuned", seeds=1, epochs=8, batch_size=4)
    names = page["classify"](tmp_path / "tuned", [Image.new("RGB", (32, 32), (level,) * 3) for level in (200, 0, 200)])
    assert names == ["bright", "dark", "bright"]
