import os
from dataclasses import replace

import pytest
import torch

from fullrank.errors import UserError
from fullrank.recipes import MachineConfig, Recipe, with_devices
from fullrank.run.launch.devices import launch_fabric, resolve_devices
from fullrank.run.launch.environment import launched_world_size
from fullrank.terminal import is_rank_zero


@pytest.fixture
def launched(monkeypatch):
    """`launched(4)`: set the environment of one of four processes that torchrun started."""

    def set_environment(world, *, by_torchrun=True):
        monkeypatch.setenv("WORLD_SIZE", str(world))
        if by_torchrun:
            for name, value in {"LOCAL_WORLD_SIZE": world, "RANK": 0, "LOCAL_RANK": 0}.items():
                monkeypatch.setenv(name, str(value))
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
    with pytest.raises(
        UserError, match=rf"started {world} processes, but the run asks for 2 devices; give --devices {world}"
    ):
        resolve_devices(with_devices(Recipe(), 2))


def test_a_launcher_other_than_torchrun_is_an_error(launched):
    launched(4, by_torchrun=False)
    with pytest.raises(UserError, match="WORLD_SIZE is 4, but neither torchrun nor srun"):
        resolve_devices(Recipe())


def test_more_devices_than_available_is_an_error(launched, monkeypatch):
    launched(2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(
        UserError, match=r"asks for 2 devices, but this machine has 1; change --devices or --machine\.accelerator"
    ):
        launch_fabric(with_devices(Recipe(), 2))


@pytest.mark.parametrize("changes", [{"LOCAL_WORLD_SIZE": 0}, {"LOCAL_WORLD_SIZE": 3}, {"RANK": 4}, {"LOCAL_RANK": 9}])
def test_variables_that_contradict_each_other_are_one_line(launched, monkeypatch, changes):
    launched(4)
    for name, value in changes.items():
        monkeypatch.setenv(name, str(value))
    with pytest.raises(UserError, match="contradict each other"):
        launched_world_size()


def test_one_process_has_no_process_group():
    fabric = launch_fabric(replace(Recipe(), machine=MachineConfig(accelerator="cpu")))
    assert (fabric.world_size, fabric.global_rank, torch.distributed.is_initialized()) == (1, 0, False)


def test_more_processes_than_cores_or_gpus_is_an_error_before_any_is_started(monkeypatch):
    cpu = replace(Recipe(), machine=MachineConfig(accelerator="cpu"))
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert resolve_devices(cpu, 8).machine.devices == 8
    with pytest.raises(UserError, match=r"asks for 64 devices, but this machine has 8 CPU cores; give --devices 8"):
        resolve_devices(cpu, 64)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UserError, match="has 2 GPUs"):
        resolve_devices(Recipe(), 4)


def test_the_variables_of_a_slurm_job_do_not_hinder_a_single_process(monkeypatch):
    monkeypatch.setenv("SLURM_NTASKS", "4")
    monkeypatch.setenv("SLURM_JOB_NAME", "train")
    monkeypatch.setenv("SLURM_PROCID", "0")
    cpu = replace(Recipe(), machine=MachineConfig(accelerator="cpu"))
    assert resolve_devices(cpu).machine.devices == launch_fabric(cpu).world_size == 1


SRUN = {
    "SLURM_STEP_NUM_TASKS": 4,
    "SLURM_PROCID": 3,
    "SLURM_LOCALID": 1,
    "SLURM_NODEID": 1,
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
}


@pytest.fixture
def srun(monkeypatch):
    """`srun(SLURM_PROCID="x")`: set the environment of one of four tasks on two nodes, with changes."""
    before = dict(os.environ)

    def set_environment(**changes):
        job = {"SLURM_JOB_ID": "1234", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "gpu[07-08]"}
        os.environ.update({name: str(value) for name, value in (SRUN | job | changes).items()})

    yield set_environment
    os.environ.clear()
    os.environ.update(before)


def test_tasks_of_srun_become_processes_of_one_run(srun):
    srun()
    assert not is_rank_zero()
    assert resolve_devices(Recipe()).machine.devices == launched_world_size() == 4
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR")
    assert [os.environ[name] for name in names] == ["3", "1", "4", "2", "1", "gpu07"]
    assert 20000 <= int(os.environ["MASTER_PORT"]) < 30000
    assert not is_rank_zero()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"WORLD_SIZE": "x", "SLURM_STEP_NUM_TASKS": 1, "SLURM_PROCID": 0}, "WORLD_SIZE is 'x'"),
        ({"SLURM_STEP_NUM_TASKS": "two"}, "SLURM_STEP_NUM_TASKS is 'two'"),
        ({"SLURM_STEP_NUM_TASKS": 1}, "SLURM_PROCID is 3, but SLURM_STEP_NUM_TASKS is 1"),
        ({"SLURM_STEP_TASKS_PER_NODE": "3,1"}, "srun started 3,1 tasks"),
        ({"TORCHELASTIC_RUN_ID": "test", "WORLD_SIZE": 4}, "RANK is missing"),
    ],
)
def test_wrong_variables_of_a_launcher_are_one_line(changes, message, srun):
    srun(**changes)
    with pytest.raises(UserError, match=message):
        resolve_devices(Recipe())
