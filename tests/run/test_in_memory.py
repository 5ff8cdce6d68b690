"""`pretrain` on images that are given as Python objects, and how a recipe reads images."""

from dataclasses import replace
from io import StringIO

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

import fullrank
from fullrank.errors import UserError
from fullrank.images import open_images
from fullrank.methods import BackboneConfig, ProjectorConfig
from fullrank.recipes import DataConfig, Recipe
from fullrank.views import ViewConfig
from small import Flipped

QUIET = Console(quiet=True)


@pytest.fixture
def tiny():
    return Recipe(
        data=DataConfig(channels=1, workers=0),
        views=(ViewConfig(size=8, grayscale=0.0),),
        backbone=BackboneConfig(name="test_resnet"),
        projector=ProjectorConfig(widths=(8,)),
        batch_size=32,
        epochs=1,
    )


def test_images_in_memory_train_like_the_same_source(tiny, tmp_path):
    digits = open_images("digits")["all"].subset(np.arange(80))
    pixels = torch.stack([torch.from_numpy(digits.open(k)) for k in range(80)]).permute(0, 3, 1, 2)
    one = fullrank.pretrain(tiny, pixels, out=tmp_path / "one", console=QUIET)
    two = fullrank.pretrain(tiny, pixels.double() / 255, out=tmp_path / "two", console=QUIET)
    assert one.recipe.data.source == "memory"
    weights, others = one.checkpoint().weights(), two.checkpoint().weights()
    assert all(torch.equal(weights[name], others[name]) for name in weights)


def test_several_processes_cannot_read_the_memory_of_this_one(tiny, tmp_path):
    with pytest.raises(UserError, match="torchrun"):
        fullrank.pretrain(tiny, torch.zeros(80, 1, 8, 8), out=tmp_path / "run", devices=2, console=QUIET)
    assert not (tmp_path / "run").exists()


def test_the_bit_depth_is_found_said_and_stored(tiny, tmp_path):
    (tmp_path / "photos").mkdir()
    rng, output = np.random.default_rng(0), StringIO()
    for k in range(80):
        Image.fromarray(rng.integers(0, 4096, (8, 8), dtype=np.uint16)).save(tmp_path / "photos" / f"{k}.png")
    console = Console(file=output, width=999)
    run = fullrank.pretrain(tiny, str(tmp_path / "photos"), out=tmp_path / "run", console=console)
    assert "read as 12 bits" in output.getvalue()
    assert run.recipe.data.bits == 12
    assert run.recipe.data.mean[0] == pytest.approx(0.5, abs=0.05)


def test_random_transforms_of_a_data_set_stay_random_and_the_run_can_be_resumed(tiny, tmp_path):
    output, images = StringIO(), Flipped(open_images("digits")["all"].subset(np.arange(80)))
    run = fullrank.pretrain(tiny, images, out=tmp_path / "run", console=Console(file=output, width=999))
    assert "differ at each access" in output.getvalue()
    step = run.checkpoint().step
    assert fullrank.pretrain(data=images, resume=run.path, epochs=2, console=QUIET).checkpoint().step == 2 * step


def test_another_number_of_channels_names_all_flags_at_once(tiny, tmp_path):
    (tmp_path / "photos").mkdir()
    for k in range(40):
        np.save(tmp_path / "photos" / f"{k}.npy", np.full((8, 8, 4), k, dtype=np.uint8))
    recipe = replace(tiny, data=replace(tiny.data, channels=3), views=(ViewConfig(size=8),))
    with pytest.raises(UserError, match=r"--data\.channels 4 .*--views\.0\.jitter\.saturation 0"):
        fullrank.pretrain(recipe, str(tmp_path / "photos"), out=tmp_path / "run", console=QUIET)
