"""A run that is killed, stopped, or loses its terminal or its reader at a random moment ends like the undisturbed run,
bit for bit, on one and on two processes."""

import json
import os
import pty
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from fullrank import pretrain
from fullrank.recipes import to_dict

STEPS = 22


@pytest.fixture(scope="module")
def forks():
    """`forks("start", …)`, `forks("wait", pid)`: a request to a process of `forks.py`."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    script = [sys.executable, Path(__file__).with_name("forks.py")]
    process = subprocess.Popen(script, **pipes, text=True)

    def request(*values):
        process.stdin.write(json.dumps(values) + "\n")
        process.stdin.flush()
        return int(process.stdout.readline())

    yield request
    process.kill()
    process.communicate()


@pytest.fixture(scope="module")
def arguments(small, tmp_path_factory):
    """`arguments(path, processes)`: the command of a new run."""
    recipe = tmp_path_factory.mktemp("recipe") / "recipe.json"
    recipe.write_text(json.dumps(to_dict(small)))
    return lambda path, processes: ["pretrain", str(recipe), "--out", str(path), "--devices", str(processes)]


@pytest.fixture(scope="module")
def finish(forks):
    """`finish(arguments, log)`: run a command to its end."""

    def run_to_end(arguments, log):
        assert forks("wait", forks("start", arguments, str(log), [])) == 0, log.read_text()

    return run_to_end


def wait_until(condition, what):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.002)


def wait_for_a_step(path, rng, steps=range(1, STEPS - 4)):
    step, log = rng.choice(steps), path / "metrics.jsonl"
    wait_until(lambda: log.exists() and f'"step": {step},' in log.read_text(), f"step {step} is not reached")
    time.sleep(rng.uniform(0, 0.1))


def workers(pid):
    """The pids of the processes of a run, by rank."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    children = [child for task in tasks for child in (task / "children").read_text().split()]
    return sorted(int(child) for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes())


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def rng(request):
    return random.Random(request.node.name)


def test_a_run_is_killed_at_its_start_and_again_after_a_step(forks, arguments, finish, run, rng, tmp_path, assert_same):
    path, command = tmp_path / "run", arguments(tmp_path / "run", 1)
    for moment in ("start", "step"):
        parent = forks("start", command, str(tmp_path / f"{moment}.txt"), [])
        time.sleep(rng.uniform(0, 1.5)) if moment == "start" else wait_for_a_step(path, rng)
        os.kill(parent, signal.SIGKILL)
        assert forks("wait", parent) == -signal.SIGKILL
        command = ["pretrain", "--resume", str(path)] if (path / "recipe.json").exists() else command
    finish(command, tmp_path / "again.txt")
    assert_same(path, run.path)


def test_a_run_under_nohup_outlives_its_terminal_and_its_reader(forks, arguments, run, rng, tmp_path, assert_same):
    """Its standard error is a pipe that is closed, or a terminal that is lost; nohup ignores SIGHUP."""
    pipe = tmp_path / "fifo"
    os.mkfifo(pipe)
    reader, (master, terminal) = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), pty.openpty()
    parents = {}
    for name, output in (("pipe", str(pipe)), ("terminal", os.ttyname(terminal))):
        parents[name] = forks("start", arguments(tmp_path / name, 1), output, ["SIGHUP"])
    wait_until((tmp_path / "terminal").exists, "the run has not started")
    os.close(terminal)
    for name, end in (("pipe", reader), ("terminal", master)):
        wait_for_a_step(tmp_path / name, rng)
        os.close(end)
        os.kill(parents[name], signal.SIGHUP)
    for name, parent in parents.items():
        assert forks("wait", parent) == 0
        assert_same(tmp_path / name, run.path)


@pytest.mark.ddp
def test_two_processes_are_stopped_and_killed(forks, arguments, small, rng, tmp_path, assert_same):
    """First one process hangs and the parent is told to end; then the parent is killed."""
    path, command, log = tmp_path / "run", arguments(tmp_path / "run", 2), tmp_path / "log"
    for steps in (range(1, 7), range(10, STEPS - 4)):
        parent = forks("start", command, str(log), [])
        wait_for_a_step(path, rng, steps)
        ranks = workers(parent)
        if steps.start == 1:
            os.kill(ranks[1], signal.SIGSTOP)
            time.sleep(0.5)
        os.kill(parent, signal.SIGTERM if steps.start == 1 else signal.SIGKILL)
        assert forks("wait", parent) == (128 + signal.SIGTERM if steps.start == 1 else -signal.SIGKILL), log.read_text()
        assert "Traceback" not in log.read_text() or steps.start > 1  # gloo may complain when its partner was killed
        wait_until(lambda left=ranks: not any(map(is_running, left)), "a process is left")
        command = ["pretrain", "--resume", str(path)]
    quiet = Console(quiet=True)
    pretrain(resume=path, console=quiet)
    pretrain(small, out=tmp_path / "undisturbed", devices=2, console=quiet)
    assert_same(path, tmp_path / "undisturbed")
