"""A run that is killed, stopped, or loses its terminal or its reader at a random moment ends like the undisturbed run,
bit for bit."""

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

from fullrank.recipes import to_dict

STEPS = 22
CASES = [
    # processes, what happens, to whom, the moment: a random one after the start (in seconds), or after a random step
    (1, "SIGKILL", "parent", "start"),
    *[(1, "SIGKILL", "parent", "step")] * 2,
    (1, "SIGHUP under nohup", "parent", "step"),
    (1, "closed pipe", "parent", "step"),
    (1, "lost terminal", "parent", "step"),
    pytest.param(2, "SIGKILL", "parent", "step", marks=pytest.mark.ddp),
    pytest.param(2, "SIGSTOP", "rank 1", "step", marks=pytest.mark.ddp),
]


class Forks:
    """A process of `forks.py`."""

    def __init__(self):
        script = Path(__file__).with_name("forks.py")
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen([sys.executable, script], **pipes, text=True, env=environment)

    def __call__(self, *request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


@pytest.fixture(scope="module")
def forks():
    forks = Forks()
    yield forks
    forks.process.kill()
    forks.process.communicate()


@pytest.fixture(scope="module")
def recipe(small, tmp_path_factory):
    path = tmp_path_factory.mktemp("recipe") / "recipe.json"
    path.write_text(json.dumps(to_dict(small)))
    return path


@pytest.fixture(scope="module")
def undisturbed(forks, recipe, tmp_path_factory):
    """`undisturbed(processes)`: the run without an attack."""
    paths = {}

    def train(processes):
        if processes not in paths:
            path = paths[processes] = tmp_path_factory.mktemp("undisturbed") / "run"
            arguments = ["pretrain", str(recipe), "--out", str(path), "--devices", str(processes)]
            assert forks("wait", forks("start", arguments, f"{path}.txt", [])) == 0, Path(f"{path}.txt").read_text()
        return paths[processes]

    return train


def wait_until(condition, what):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.002)


def workers(pid):
    """The pids of the processes of a run, by rank."""
    children = [
        child for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]
    return sorted(int(child) for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes())


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(("processes", "event", "victim", "moment"), CASES)
def test_the_resumed_run_equals_the_undisturbed_run(
    processes, event, victim, moment, forks, recipe, undisturbed, assert_same, tmp_path, request
):
    rng, expected = random.Random(request.node.name), undisturbed(processes)
    path, log = tmp_path / "run", tmp_path / "stderr.txt"
    arguments = ["pretrain", str(recipe), "--out", str(path), "--devices", str(processes)]
    output, reader = log, None
    if event == "closed pipe":
        output = tmp_path / "pipe"
        os.mkfifo(output)
        reader = os.open(output, os.O_RDONLY | os.O_NONBLOCK)
    elif event == "lost terminal":
        reader, terminal = pty.openpty()
        output = os.ttyname(terminal)

    parent = forks("start", arguments, str(output), ["SIGHUP"] if event == "SIGHUP under nohup" else [])
    if event == "lost terminal":
        wait_until(lambda: path.exists(), "the run has not started")
        os.close(terminal)
    ranks = []
    if moment == "step":
        step, logged = rng.randrange(1, STEPS - 4), path / "metrics.jsonl"
        wait_until(lambda: logged.exists() and f'"step": {step},' in logged.read_text(), f"step {step} is not reached")
        ranks = workers(parent) if processes > 1 else []
    time.sleep(rng.uniform(0, 0.1 if moment == "step" else 1.5))
    if reader is not None:
        os.close(reader)
    else:
        target = parent if victim == "parent" else ranks[int(victim.removeprefix("rank "))]
        os.kill(target, getattr(signal, event.split()[0]))
    if event == "SIGSTOP":
        time.sleep(0.5)
        os.kill(parent, signal.SIGTERM)
    status = forks("wait", parent)

    text = log.read_text() if log.exists() else ""
    assert "Traceback" not in text or event == "SIGKILL", text  # gloo may complain when its partner was killed
    if reader is not None or event == "SIGHUP under nohup":
        assert status == 0, text
    elif event == "SIGSTOP":
        assert status in (0, 128 + signal.SIGTERM), text
    else:
        assert status == -signal.SIGKILL, text
    wait_until(lambda: not any(map(is_running, ranks)), "a process is left")
    if status != 0:
        continued = ["pretrain", "--resume", str(path)] if (path / "recipe.json").exists() else arguments
        again = tmp_path / "again.txt"
        assert forks("wait", forks("start", continued, str(again), [])) == 0, again.read_text()
    assert_same(path, expected)
