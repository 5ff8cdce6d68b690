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
    *[(1, "SIGKILL", "parent", "start")] * 2,
    *[(1, "SIGKILL", "parent", "step")] * 3,
    *[(1, "SIGTERM", "parent", "step")] * 2,
    (1, "SIGINT", "parent", "step"),
    *[(1, "SIGHUP", "parent", "step")] * 2,
    (1, "SIGHUP under nohup", "parent", "step"),
    (1, "closed pipe", "parent", "step"),
    (1, "lost terminal", "parent", "step"),
    (2, "SIGKILL", "parent", "step"),
    (2, "SIGKILL", "rank 0", "step"),
    (2, "SIGKILL", "rank 1", "step"),
    (2, "SIGTERM", "rank 1", "step"),
    (2, "SIGHUP", "parent", "step"),
    (2, "SIGSTOP", "rank 1", "step"),
    (2, "closed pipe", "parent", "step"),
]


class Forks:
    """A process of `forks.py`."""

    def __init__(self, folder):
        environment = os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": str(folder)}
        script = Path(__file__).with_name("forks.py")
        self.process = subprocess.Popen(
            [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def __call__(self, *request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder for temporary files of all runs; nothing may remain there."""
    return tmp_path_factory.mktemp("temporary")


@pytest.fixture(scope="module")
def forks(folder):
    forks = Forks(folder)
    yield forks
    forks.process.kill()
    forks.process.wait()
    forks.process.stdin.close()
    forks.process.stdout.close()


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
            pid = forks(
                "start", ["pretrain", str(recipe), "--out", str(path), "--devices", str(processes)], f"{path}.txt", []
            )
            assert forks("wait", pid) == 0, Path(f"{path}.txt").read_text()
        return paths[processes]

    return train


def wait_until(condition, what):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.002)


def children(pid):
    """The pids of the processes of a run, by rank."""
    found = {}
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        variables = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        found |= {int(value.removeprefix(b"RANK=")): int(child) for value in variables if value.startswith(b"RANK=")}
    return found


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    ("processes", "event", "victim", "moment"),
    CASES,
    ids=["-".join(map(str, case)) + f"-{i}" for i, case in enumerate(CASES)],
)
def test_the_resumed_run_equals_the_undisturbed_run(
    processes, event, victim, moment, forks, folder, recipe, undisturbed, assert_same, tmp_path, request
):
    rng = random.Random(request.node.name)
    expected = undisturbed(processes)
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

    # The attack
    parent = forks("start", arguments, str(output), ["SIGHUP"] if event == "SIGHUP under nohup" else [])
    if event == "lost terminal":
        wait_until(lambda: path.exists(), "the run has not started")
        os.close(terminal)
    workers = {}
    if moment == "step":
        step = rng.randrange(1, STEPS - 4)
        logged = path / "metrics.jsonl"
        wait_until(lambda: logged.exists() and f'"step": {step},' in logged.read_text(), f"step {step} is not reached")
        workers = children(parent) if processes > 1 else {}
        time.sleep(rng.uniform(0, 0.1))
    else:
        time.sleep(rng.uniform(0, 1.5))
    target = parent if victim == "parent" else workers[int(victim.removeprefix("rank "))]
    if reader is not None:
        os.close(reader)
    else:
        os.kill(target, getattr(signal, event.split()[0]))
    if event == "SIGSTOP":
        time.sleep(0.5)
        os.kill(parent, signal.SIGTERM)
    status = forks("wait", parent)

    # The end of the attacked run
    number = {
        "SIGTERM": signal.SIGTERM,
        "SIGSTOP": signal.SIGTERM,
        "SIGINT": signal.SIGINT,
        "SIGHUP": signal.SIGHUP,
    }.get(event)
    text = log.read_text() if log.exists() else ""
    assert "Traceback" not in text or event == "SIGKILL", (
        text
    )  # a process whose partner was killed may show gloo's error
    if reader is not None or event == "SIGHUP under nohup":
        assert status == 0, text
    elif number is not None:
        assert status in (128 + number, 0), text
        assert status == 0 or "continue with: fullrank pretrain --resume" in text.splitlines()[-1]
    else:
        assert status == (-signal.SIGKILL if victim == "parent" else 1), text
    wait_until(lambda: not any(map(is_running, workers.values())), "a process is left")
    wait_until(lambda: not list(folder.glob("fullrank-*")), "a temporary folder is left")

    # The resumed run
    if status != 0:
        continued = ["pretrain", "--resume", str(path)] if (path / "recipe.json").exists() else arguments
        again = tmp_path / "again.txt"
        assert forks("wait", forks("start", continued, str(again), [])) == 0, again.read_text()
    assert_same(path, expected)
