"""Test the messages about memory and micro-batches."""

import re
from dataclasses import replace

import pytest
import torch
from rich.console import Console
from timm.models.resnet import ResNet
from torch import nn

from fullrank import pretrain
from fullrank.errors import UserError
from fullrank.training.memory import check_micro_batch, is_out_of_memory


@pytest.fixture
def tiny(small):
    """Two steps of 256 images."""
    return replace(small, batch_size=256, epochs=1)


@pytest.fixture
def room(monkeypatch):
    """`room(images, error)`: limit the number of images that the backbone can train on at once; return the list of
    batch sizes so far."""

    def make(images, error):
        forward, sizes = ResNet.forward, []

        def limited(self, x):
            if self.training and len(x) > images:
                raise error
            if self.training:
                sizes.append(len(x))
            return forward(self, x)

        monkeypatch.setattr(ResNet, "forward", limited)
        return sizes

    return make


def train(recipe, path, micro_batch):
    machine = replace(recipe.machine, micro_batch=micro_batch, ghost_batchnorm=True)
    return pretrain(replace(recipe, machine=machine), out=path, console=Console(quiet=True))


def test_following_the_remedy_leads_to_a_micro_batch_that_fits(tiny, room, tmp_path):
    sizes, micro_batch = room(80, torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")), 0
    for tried, half in ((256, 128), (128, 64)):
        words = f"^out of memory with {tried} images in one forward pass; give "
        with pytest.raises(UserError, match=words) as failure:
            train(tiny, tmp_path / str(tried), micro_batch)
        micro_batch = int(re.search(r"--machine\.micro-batch (\d+) --machine.ghost-batchnorm", str(failure.value))[1])
        assert micro_batch == half
    run = train(tiny, tmp_path / "run", micro_batch)
    assert set(sizes) == {64}
    assert run.checkpoint().step == 5


@pytest.mark.parametrize(("share", "micro_batch"), [(64, 1), (3, 2)])
def test_batchnorm_with_a_single_image_is_an_error(share, micro_batch):
    words = f"machine.micro_batch is {micro_batch}, but BatchNorm needs at least 2 images; change"
    with pytest.raises(UserError, match=words):
        check_micro_batch(nn.BatchNorm1d(2), share=share, micro_batch=micro_batch, ghost=True)


def test_micro_batches_that_would_change_batchnorm_are_an_error_that_names_the_choices(tiny, tmp_path):
    words = r"into 4, and BatchNorm .* accept it with --machine.ghost-batchnorm, or use a network without BatchNorm"
    with pytest.raises(UserError, match=words):
        pretrain(tiny, out=tmp_path, console=Console(quiet=True), **{"machine.micro_batch": 64})
    assert not list(tmp_path.iterdir())
    method = nn.Module()
    method.backbone, method.projector = nn.LayerNorm(3), nn.BatchNorm1d(3)
    with pytest.raises(UserError, match=r"or use --projector\.no-batchnorm"):
        check_micro_batch(method, 256, 64, ghost=False)


def test_an_error_of_the_cpu_allocator_is_recognised():
    with pytest.raises(RuntimeError) as failure:
        torch.empty(10**15)
    assert is_out_of_memory(failure.value)
