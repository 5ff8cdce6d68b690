"""Run several processes on this machine: the parent starts the processes, forwards signals, and reports in one line how
they ended.

The processes get torchrun's environment variables. Torch's launcher is not used, because it leaves signal handlers in
the calling program, and in many versions it kills processes after a fixed time, even while they write a checkpoint.
"""

import math
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch.distributed import TCPStore

from fullrank.errors import Interrupted, ProcessFailed, UserError
from fullrank.run.directory import Run, resume_command
from fullrank.run.launch.process import STOP_TIMEOUT, ProcessFiles, ProcessResult, ProcessSpec
from fullrank.run.launch.signals import StopFlag, stop_on_signals

PROCESS_COMMAND = (
    sys.executable,
    "-P",
    "-m",
    "fullrank.run.launch.process",
)  # -P: Python does not add the working directory to sys.path
POLL_INTERVAL = 0.05  # seconds
SHUTDOWN_TIMEOUT = 30.0  # seconds that the other processes have to end after one process has failed


def run_processes(spec: ProcessSpec, count: int) -> Path:
    """Run `count` processes and return the path of their run.

    Raises:
        UserError: one of the processes raised a UserError.
        Interrupted: this process or one of its processes received SIGINT, SIGTERM or SIGHUP; a checkpoint has been
            written.
        ProcessFailed: one of the processes was killed, crashed, or raised an unexpected exception.
    """
    with TemporaryDirectory(prefix="fullrank-") as folder:
        files = ProcessFiles(Path(folder))
        files.write_spec(spec)
        with stop_on_signals() as flag, start_processes(folder, count) as processes:
            exit_statuses = wait_for_processes(processes, flag)
        results, run = files.read_results(count), files.read_run_path()
    for result in results.values():
        if result.status == "user error":
            raise UserError(result.message)
        if result.status == "interrupted":
            raise Interrupted(result.signum, result.message)
    # When one process dies, the others fail too and write a result; report the one without a result, which is the
    # cause.
    failed = [rank for rank in exit_statuses if rank not in results]
    failed += [rank for rank, result in results.items() if result.status == "failed"]
    if failed and flag.signum and -signal.SIGKILL in exit_statuses.values():
        raise Interrupted(flag.signum, f"stopped before the end of a step; {describe_progress(run)}")
    if failed and flag.signum:
        # The signal arrived before training: re-raise it for the default action.
        signal.raise_signal(flag.signum)
        # Reached only if the signal is ignored (nohup).
        raise Interrupted(flag.signum, f"stopped before training; {describe_progress(run)}")
    if failed:
        raise failure_error(failed[0], count, results.get(failed[0]), exit_statuses.get(failed[0], 0), run)
    assert run is not None, "all processes succeeded, but no run was written"
    return run


@contextmanager
def start_processes(folder: str, count: int) -> Iterator[list[subprocess.Popen]]:
    """Start the processes at the beginning of the context, and end all remaining processes afterwards."""
    store = TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False
    )  # rendezvous of the processes, on a free port
    processes: list[subprocess.Popen] = []
    try:
        for rank in range(count):
            # start_new_session: the child does not get the terminal's SIGINT; the parent forwards it. Children detect
            # the parent's death through the closed stdin pipe.
            env = process_environment(rank, count, store.port)
            processes.append(
                subprocess.Popen([*PROCESS_COMMAND, folder], env=env, stdin=subprocess.PIPE, start_new_session=True)
            )
        yield processes
    finally:
        deadline = time.monotonic() + SHUTDOWN_TIMEOUT
        for process in processes:
            send_signal(process, signal.SIGTERM)
        for process in processes:
            try:
                process.wait(max(deadline - time.monotonic(), 0))
            except subprocess.TimeoutExpired:  # e.g. blocked in a collective with the failed process
                process.kill()
                process.wait()
            assert process.stdin is not None, "each process has a pipe"
            process.stdin.close()


def process_environment(rank: int, count: int, port: int) -> dict[str, str]:
    """Return the environment of one process: torchrun's variables, the parent's import path, and a share of the
    threads.
    """
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "GROUP_RANK": 0}
    rendezvous = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "TORCHELASTIC_RUN_ID": uuid.uuid4(),
        "TORCHELASTIC_USE_AGENT_STORE": True,
    }
    modules = {"PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path)}
    threads = {"OMP_NUM_THREADS": max(torch.get_num_threads() // count, 1)}
    return {name: str(value) for name, value in (threads | dict(os.environ) | modules | ranks | rendezvous).items()}


def wait_for_processes(processes: list[subprocess.Popen], flag: StopFlag) -> dict[int, int]:
    """Wait until all processes have succeeded or one process has failed; return the nonzero exit statuses by rank.

    A signal is passed on. Processes that have not ended some time later are killed, with the exit status of SIGKILL.
    """
    deadline = math.inf
    while True:
        statuses = {rank: process.poll() for rank, process in enumerate(processes)}
        failed = {rank: status for rank, status in statuses.items() if status}
        if failed or None not in statuses.values():
            return failed
        if flag.signum and deadline == math.inf:
            deadline = time.monotonic() + STOP_TIMEOUT
            for process in processes:
                send_signal(process, flag.signum)
        if time.monotonic() > deadline:
            return {rank: -signal.SIGKILL for rank, status in statuses.items() if status is None}
        time.sleep(POLL_INTERVAL)


def send_signal(process: subprocess.Popen, signum: int) -> None:
    """Send a signal to a process, and wake the process if it is stopped (SIGSTOP), because a stopped process handles no
    signal.
    """
    process.send_signal(signum)
    process.send_signal(signal.SIGCONT)


def failure_error(
    rank: int, count: int, result: ProcessResult | None, exit_status: int, run: Path | None
) -> ProcessFailed:
    """Return an error that names the failed process, the cause and how to continue; a traceback is added as a note."""
    traceback = result.message.rstrip() if result else ""
    failure = f"failed with {traceback.splitlines()[-1]}" if result else describe_exit(exit_status)
    error = ProcessFailed(f"process {rank} of {count} (counted from 0) {failure}; {describe_progress(run)}")
    if traceback:
        error.add_note(traceback)
    return error


def describe_exit(status: int) -> str:
    """Describe the exit status of a process that wrote no result.

    >>> describe_exit(-9), describe_exit(3)
    ('was terminated by SIGKILL (possibly out of memory)', 'ended with exit status 3')
    """
    if status > 0:
        return f"ended with exit status {status}"
    name = signal.Signals(-status).name
    return f"was terminated by {name}" + (" (possibly out of memory)" if name == "SIGKILL" else "")


def describe_progress(run: Path | None) -> str:
    """Describe the last checkpoint of a run, and give the command that continues the run."""
    if run is None:
        return "nothing was written"
    checkpoints = Run(run).checkpoints
    if not checkpoints:
        return f"no checkpoint has been written yet; restart from step 0 with: {resume_command(run)}"
    return f"the checkpoint of step {checkpoints[-1].step} is complete; continue with: {resume_command(run)}"
