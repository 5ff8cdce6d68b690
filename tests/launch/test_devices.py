from dataclasses import replace

import pytest
import torch

from fullrank.errors import UserError
from fullrank.launch.devices import launch_fabric, launched_world_size, resolve_devices
from fullrank.recipes import MachineConfig, Recipe, with_devices


@pytest.fixture
def launched(monkeypatch):
    """`launched(4)`: set the environment of one of four processes that torchrun started."""

    def set_environment(world, *, by_torchrun=True):
        monkeypatch.setenv("WORLD_SIZE", str(world))
        if by_torchrun:
            monkeypatch.setenv("LOCAL_WORLD_SIZE", str(world))
            monkeypatch.setenv("TORCHELASTIC_RUN_ID", "test")

    return set_environment


def test_without_a_launcher_the_recipe_or_the_caller_decides():
    assert launched_world_size() == 0
    assert resolve_devices(with_devices(Recipe(), 2)).machine.devices == 2
    assert resolve_devices(with_devices(Recipe(), 2), 1).machine.devices == 1


def test_a_recipe_for_one_process_uses_all_launched_processes(launched):
    launched(4)
    assert launched_world_size() == 4
    assert (
        resolve_devices(Recipe()).machine.devices
        == resolve_devices(with_devices(Recipe(), 4)).machine.devices
        == resolve_devices(Recipe(), 4).machine.devices
        == 4
    )


@pytest.mark.parametrize("world", [1, 4])
def test_another_number_of_processes_than_launched_is_an_error(world, launched):
    launched(world)
    with pytest.raises(UserError, match=rf"started {world} processes, but the run asks for 2 devices; give --devices {world}"):
        resolve_devices(with_devices(Recipe(), 2))


def test_a_launcher_other_than_torchrun_is_an_error(launched):
    launched(4, by_torchrun=False)
    with pytest.raises(UserError, match="WORLD_SIZE is 4, but torchrun did not start this process"):
        resolve_devices(Recipe())


def test_more_devices_than_available_is_an_error(launched, monkeypatch):
    launched(2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(UserError, match=r"asks for 2 devices, but this machine has 1; change --devices or --machine\.accelerator"):
        launch_fabric(with_devices(Recipe(), 2))


def test_one_process_has_no_process_group():
    fabric = launch_fabric(replace(Recipe(), machine=MachineConfig(accelerator="cpu")))
    assert (fabric.world_size, fabric.global_rank, torch.distributed.is_initialized()) == (1, 0, False)
