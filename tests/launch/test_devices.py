from dataclasses import replace

import pytest
import torch

from fullrank.errors import UserError
from fullrank.launch import launch_fabric, resolve_devices
from fullrank.launch.devices import launched_world_size
from fullrank.recipes import MachineConfig, Recipe, with_devices


@pytest.fixture
def launched(monkeypatch):
    """`launched(4)`: what the environment of a process looks like that torchrun started among four."""

    def pretend(world, *, by_torchrun=True):
        monkeypatch.setenv("WORLD_SIZE", str(world))
        if by_torchrun:
            monkeypatch.setenv("LOCAL_WORLD_SIZE", str(world))
            monkeypatch.setenv("TORCHELASTIC_RUN_ID", "test")

    return pretend


def test_where_nobody_launched_anything_the_recipe_or_the_caller_decides():
    assert launched_world_size() == 0
    assert resolve_devices(with_devices(Recipe(), 2)).machine.devices == 2
    assert resolve_devices(with_devices(Recipe(), 2), 1).machine.devices == 1


def test_a_recipe_for_one_process_takes_as_many_as_were_launched(launched):
    launched(4)
    assert launched_world_size() == 4
    assert (
        resolve_devices(Recipe()).machine.devices
        == resolve_devices(with_devices(Recipe(), 4)).machine.devices
        == resolve_devices(Recipe(), 4).machine.devices
        == 4
    )


@pytest.mark.parametrize("world", [1, 4])
def test_another_number_of_processes_than_was_launched_is_refused(world, launched):
    launched(world)
    with pytest.raises(UserError, match=rf"{world} processes were started for a run on 2; give --devices {world}"):
        resolve_devices(with_devices(Recipe(), 2))


def test_processes_that_would_each_train_alone_are_refused(launched):
    launched(4, by_torchrun=False)
    with pytest.raises(UserError, match="WORLD_SIZE is 4, but torchrun did not start this process"):
        resolve_devices(Recipe())


def test_more_devices_than_there_are_is_refused(launched, monkeypatch):
    launched(2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(UserError, match=r"2 devices asked for, but this machine has 1; give --devices or a --machine\.accelerator"):
        launch_fabric(with_devices(Recipe(), 2))


def test_one_process_joins_nobody():
    fabric = launch_fabric(replace(Recipe(), machine=MachineConfig(accelerator="cpu")))
    assert (fabric.world_size, fabric.global_rank, torch.distributed.is_initialized()) == (1, 0, False)
