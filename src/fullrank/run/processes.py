"""The devices of a run and its processes, one per device: torchrun starts them, or its launcher in this process.

`launch_fabric` joins the process group. SLURM needs no code here: `srun` starts one torchrun on each machine.
"""

import atexit
import logging
import multiprocessing
import os
import signal
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from inspect import signature
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from lightning.fabric.plugins.environments import LightningEnvironment, TorchElasticEnvironment
from lightning.fabric.strategies import DDPStrategy
from rich.console import Console
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch.nn.parallel import DistributedDataParallel

from fullrank.distributed import world_size
from fullrank.errors import Interrupted, ProcessFailed, UserError
from fullrank.images.parallel import hidden_main
from fullrank.recipes import Recipe
from fullrank.run.directory import describe_saved, is_run, resume_command
from fullrank.run.precision import on_cuda, resolve_precision
from fullrank.run.signals import stop_on_signals


def launched_world_size() -> int:
    """Return how many processes torchrun started for this run, including this one; 0 without torchrun.

    Raises:
        UserError: another launcher started several processes.
    """
    if dist.is_available() and dist.is_torchelastic_launched():
        return int(os.environ["WORLD_SIZE"])
    for name in ("WORLD_SIZE", "SLURM_STEP_NUM_TASKS"):
        if os.environ.get(name, "1") != "1":
            remedy = "start the processes with torchrun (one on each machine), or start one process with --devices"
            raise UserError(f"{name} is {os.environ[name]}, but torchrun did not start this process; {remedy}")
    return 0


def resolve_devices(recipe: Recipe) -> Recipe:
    """Return the recipe with its number of devices: its own, or the number of processes that torchrun started.

    Raises:
        UserError: torchrun started another number of processes than the recipe has, or this machine has fewer devices.

    >>> resolve_devices(Recipe()).machine.devices
    1
    """
    asked, world = recipe.machine.devices, launched_world_size()
    if world and asked not in (1, world):
        remedy = f"give --devices {world}, or start one process without torchrun"
        raise UserError(f"torchrun started {world} processes, but the run asks for {asked} devices; {remedy}")
    local = int(os.environ["LOCAL_WORLD_SIZE"]) if world > 1 else world or asked
    cuda = on_cuda(recipe)
    available = max(torch.cuda.device_count() if cuda else os.cpu_count() or 1, 1)
    if local > available and (cuda or not world):
        machine = f"this machine has {available} {'GPUs' if cuda else 'CPU cores'}"
        raise UserError(f"the run asks for {local} devices, but {machine}; give --devices {available} or less")
    return replace(recipe, machine=replace(recipe.machine, devices=world or asked))


def launch_fabric(recipe: Recipe) -> Fabric:
    """Launch Lightning Fabric on the recipe's devices; each of several processes joins the process group.

    Raises:
        UserError: the accelerator is not available, or there are too few devices.
    """
    machine, processes = recipe.machine, launched_world_size() or 1
    local = int(os.environ["LOCAL_WORLD_SIZE"]) if processes > 1 else 1
    # The environment is given, because Fabric would take that of a SLURM job, also in a job's interactive shell.
    options: dict[str, Any] = {"plugins": LightningEnvironment()}
    if processes > 1:
        options = {"plugins": TorchElasticEnvironment(), "num_nodes": processes // local}
        # Buffers are functions of the whole batch, so they need no broadcast. CPU tensors use gloo even if the network
        # is on GPUs, so that the host does not wait for the device.
        backend = "cpu:gloo,cuda:nccl" if on_cuda(recipe) else "gloo"
        names = signature(DistributedDataParallel).parameters  # the first one since torch 2.15
        sync: Any = {"forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers": False}
        options["strategy"] = DDPStrategy(process_group_backend=backend, **sync)
    for name in ("lightning.fabric", "lightning.pytorch"):  # Lightning logs the precision, and each process that joins
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        fabric = Fabric(accelerator=machine.accelerator, devices=local, precision=resolve_precision(recipe), **options)  # pyright: ignore[reportArgumentType]
    except (ValueError, RuntimeError) as error:  # Fabric raises either for a missing accelerator
        reason = next(iter(str(error).splitlines()), "")
        accelerator = f"--machine.accelerator {machine.accelerator} is not available on this machine ({reason})"
        raise UserError(f"{accelerator}; choose auto, cpu, cuda or mps") from error
    was_initialized = dist.is_initialized()
    fabric.launch()
    if dist.is_initialized() and not was_initialized:
        atexit.register(leave_group)  # at the end of the program, which may start another run
    assert fabric.world_size == world_size() == machine.devices, "the processes have not joined one group"
    torch.backends.cudnn.benchmark = True  # all batches have equal sizes
    return fabric


def leave_group() -> None:
    """Leave the group of processes, if this process is in one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def run_processes(function: Callable[..., Any], arguments: dict[str, Any], count: int, *, quiet: bool = False) -> None:
    """Call `function(**arguments)` in `count` processes on this machine, which torch's elastic launcher starts.

    A signal to this process is passed on as SIGTERM. If a process fails, the launcher ends the others. `quiet` gives
    the function a console that prints nothing.

    Raises:
        UserError: one of the processes raised a UserError.
        Interrupted: this process or one of its processes received SIGINT, SIGTERM, SIGHUP or SIGUSR2.
        ProcessFailed: one of the processes was killed, crashed, or raised an unexpected exception.
    """
    others = set(multiprocessing.active_children())

    def send(signum: int) -> None:
        for process in set(multiprocessing.active_children()) - others:
            with suppress(ProcessLookupError):
                os.kill(process.pid or 0, signum)
                os.kill(process.pid or 0, signal.SIGCONT)  # a stopped process handles no signal

    for name in ("torch.distributed.elastic", "torch.multiprocessing.spawn"):  # they log what is raised below
        logging.getLogger(name).addHandler(logging.NullHandler())
        logging.getLogger(name).propagate = False
    threads = max(torch.get_num_threads() // count, 1)
    # In a thread of its own, the launcher leaves the signal handlers of this program as they are, and its processes
    # begin with a blocked SIGINT: Ctrl-C reaches them only through this process.
    with (
        TemporaryDirectory(prefix="fullrank-", ignore_cleanup_errors=True) as folder,
        ThreadPoolExecutor(1, initializer=signal.pthread_sigmask, initargs=(signal.SIG_BLOCK, [signal.SIGINT])) as pool,
        hidden_main(),
        stop_on_signals(lambda: send(signal.SIGTERM)) as flag,
    ):
        meeting: Any = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "local_addr": "127.0.0.1"}
        config = LaunchConfig(
            *(1, 1, count),  # one machine
            run_id=uuid.uuid4().hex,
            **meeting,
            max_restarts=0,
            monitor_interval=0.02,  # seconds; the process that fails first is found before those that it takes along
            logs_specs=DefaultLogsSpecs(log_dir=folder),
        )
        try:
            stops = pool.submit(elastic_launch(config, _process), function, arguments, threads, quiet).result()
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            if flag.signum:
                raise Interrupted(flag.signum, "stopped before the first step") from None
            raise _explain(rank, count, failure) from None
        finally:
            send(signal.SIGKILL)  # none is left, unless a second Ctrl-C ends the wait
    if stop := next(filter(None, stops.values()), None):
        raise Interrupted(flag.signum or stop[0], stop[1])


@contextmanager
def explain_failure(path: Path, *, overwrite: bool = False) -> Iterator[None]:
    """Add to the failure of a process what is saved and how to go on; remove a folder in which nothing was written."""
    replaced = path.stat().st_ino if overwrite and is_run(path) else 0
    try:
        yield
    except ProcessFailed as error:
        written = is_run(path) and path.stat().st_ino != replaced
        saved = f"{describe_saved(path)}; continue with: {resume_command(path)}" if written else "nothing was written"
        error.args = (f"{error}; {saved}",)
        raise
    finally:
        if not is_run(path):
            (path / ".lock").unlink(missing_ok=True)
            with suppress(OSError):
                path.rmdir()


def _process(
    function: Callable[..., Any], arguments: dict[str, Any], threads: int, quiet: bool
) -> tuple[int, str] | None:
    """Work as one of several processes; return the number of the signal that stopped the run, and the message."""
    os.setsid()  # the terminal's signals come through the parent
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # also torch's signal for the death of the parent
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(threads)
    try:
        function(**arguments, **({"console": Console(quiet=True)} if quiet else {}))
    except Interrupted as stop:
        return stop.signum, str(stop)
    except UserError as error:  # `_explain` knows the type by its name
        raise UserError(str(error)) from error
    finally:
        leave_group()
        if (parent := multiprocessing.parent_process()) and not parent.is_alive():
            os._exit(1)  # torch would wait for the parent to take the result
    return None


def _explain(rank: int, count: int, failure: ProcessFailure) -> Exception:
    """Return the error of a process that failed, with its traceback as a note."""
    details: Any = failure.error_file_data["message"]
    if not isinstance(details, dict):
        how = f"was terminated by {failure.signal_name()}" if failure.exitcode < 0 else "ended without a message"
        how += " (possibly out of memory)" if failure.exitcode == -signal.SIGKILL else ""
        return ProcessFailed(f"process {rank} of {count} (counted from 0) {how}")
    kind, _, message = details["message"].partition(": ")
    if kind == "UserError":
        return UserError(message)
    error = ProcessFailed(f"process {rank} of {count} (counted from 0) failed with {kind}: {message}")
    error.add_note(details["extraInfo"]["py_callstack"])
    return error
