"""Tests of the parent; its processes are small scripts."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch

from fullrank.errors import Interrupted, ProcessFailed, UserError
from fullrank.run import resume_command
from fullrank.run.launch import launcher
from fullrank.run.launch.launcher import run_processes
from fullrank.run.launch.process import ProcessFiles, ProcessResult, ProcessSpec
from fullrank.training import save_checkpoint

SPEC = ProcessSpec(recipe={}, out=None, resume=False, overwrite=False, wandb=False, quiet=True, argv=["fullrank"])

PREAMBLE = """
import json, os, signal, sys, time
folder, rank = sys.argv[1], int(os.environ["RANK"])

def write(name, text):
    open(os.path.join(folder, "." + name), "w").write(text)
    os.replace(os.path.join(folder, "." + name), os.path.join(folder, name))

def report(status, message="", signum=0):
    write(f"{rank}.json", json.dumps({"status": status, "message": message, "signum": signum}))

def wait_for(*names):
    while not all(os.path.exists(os.path.join(folder, name)) for name in names):
        time.sleep(0.01)

"""

pytestmark = pytest.mark.ddp


@pytest.fixture
def run(monkeypatch, tmp_path):
    """`run(script, count)`: the result of processes that run the script."""
    monkeypatch.chdir(tmp_path)

    def run_script(script, count=2):
        (tmp_path / "process.py").write_text(PREAMBLE + script)
        monkeypatch.setattr(launcher, "PROCESS_COMMAND", (sys.executable, str(tmp_path / "process.py")))
        return run_processes(SPEC, count)

    return run_script


def test_the_first_process_reports_the_path_of_the_run(run, tmp_path):
    assert str(run('if rank == 0: write("run", "runs/here")\nreport("succeeded")')) == "runs/here"
    assert {path.name for path in tmp_path.iterdir()} == {"process.py"}


def test_processes_have_torchruns_environment_and_the_modules_of_their_parent(run, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path / "modules")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    script = """
seen = {name: os.environ.get(name) for name in ("LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "OMP_NUM_THREADS")}
seen |= {"path": sys.path, "session": os.getsid(0) == os.getpid(), "spec": json.load(open(os.path.join(folder, "spec.json")))}
json.dump(seen, open(f"seen-{rank}", "w"))
write("run", "here")
report("succeeded")
"""
    run(script, count=3)
    for rank in range(3):
        seen = json.loads((tmp_path / f"seen-{rank}").read_text())
        assert (seen["LOCAL_RANK"], seen["WORLD_SIZE"], seen["LOCAL_WORLD_SIZE"], seen["GROUP_RANK"]) == (
            str(rank),
            "3",
            "3",
            "0",
        )
        assert seen["OMP_NUM_THREADS"] == str(max(torch.get_num_threads() // 3, 1))
        assert str(tmp_path / "modules") in seen["path"]
        assert seen["session"], "a terminal's Ctrl-C would reach it directly, and a second time through its parent"
        assert ProcessSpec(**seen["spec"]) == SPEC


def test_omp_num_threads_of_the_user_is_not_changed(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert launcher.process_environment(0, 2, 1234)["OMP_NUM_THREADS"] == "7"


def test_a_user_error_of_one_process_is_raised_and_no_process_is_left(run, tmp_path):
    script = """
open(f"pid-{rank}", "w").write(str(os.getpid()))
if rank == 1:
    while not os.path.exists("pid-0"): time.sleep(0.01)
    report("user error", "the file of the second process is damaged; fix it")
    sys.exit(2)
time.sleep(60)
"""
    with pytest.raises(UserError, match=r"^the file of the second process is damaged; fix it$"):
        run(script)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid-0").read_text()), 0)


@pytest.mark.parametrize("first", [0, 1])
def test_the_killed_process_is_reported_not_the_one_that_fails_later(first, run):
    script = """
def complain():
    report("failed", "Traceback\\nRuntimeError: connection closed by peer")
    write("complained", "")

if rank == 0:
    if FIRST == 0: complain()
    wait_for("gone")
    if FIRST == 1: complain()
    time.sleep(0.02)  # less than POLL_INTERVAL
    sys.exit(1)
if FIRST == 0: wait_for("complained")
write("gone", "")
os.kill(os.getpid(), signal.SIGKILL)
"""
    with pytest.raises(
        ProcessFailed, match=r"process 1 of 2 .* was terminated by SIGKILL .*; nothing was written"
    ) as caught:
        run(script.replace("FIRST", str(first)))
    assert not hasattr(caught.value, "__notes__")


def test_the_last_checkpoint_is_named(tmp_path):
    assert (
        launcher.describe_progress(tmp_path)
        == f"no checkpoint has been written yet; restart from step 0 with: {resume_command(tmp_path)}"
    )
    save_checkpoint(tmp_path / "checkpoints", 7, weights={}, state={}, meta={})
    assert (
        launcher.describe_progress(tmp_path)
        == f"the checkpoint of step 7 is complete; continue with: {resume_command(tmp_path)}"
    )


def test_the_first_of_two_failures_is_shown_with_its_traceback(run):
    script = """
if rank == 0: wait_for("1.json")
report("failed", f"Traceback of {rank}\\nZeroDivisionError: division of {rank}")
sys.exit(1)
"""
    with pytest.raises(
        ProcessFailed, match=r"process 1 of 2 \(counted from 0\) failed with ZeroDivisionError: division of 1; nothing"
    ) as caught:
        run(script)
    assert caught.value.__notes__ == ["Traceback of 1\nZeroDivisionError: division of 1"]


def test_a_blocked_process_is_killed_after_a_timeout(run, monkeypatch):
    monkeypatch.setattr(launcher, "SHUTDOWN_TIMEOUT", 0.2)
    script = """
if rank == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    write("ready", "")
    time.sleep(60)
wait_for("ready")
os._exit(3)
"""
    began = time.monotonic()
    with pytest.raises(ProcessFailed, match=r"process 1 of 2 .* ended with exit status 3; nothing was written"):
        run(script)
    assert time.monotonic() - began < 20


def send(signum, *, after):
    """Send this process a signal when there are files of these names in its working directory."""

    def wait():
        deadline = time.monotonic() + 20
        while not all(os.path.exists(name) for name in after):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.kill(os.getpid(), signum)

    threading.Thread(target=wait, daemon=True).start()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_passed_on_once(signum, run, tmp_path):
    script = """
came = []
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda signum, frame: came.append(signum))
open(f"ready-{rank}", "w")
while not came: time.sleep(0.01)
time.sleep(0.3)
open(f"came-{rank}", "w").write(repr(came))
report("interrupted", "stopped after step 3", came[0])
"""
    send(signum, after=["ready-0", "ready-1"])
    with pytest.raises(Interrupted, match="stopped after step 3") as caught:
        run(script)
    assert caught.value.signum == signum
    assert [(tmp_path / f"came-{rank}").read_text() for rank in range(2)] == [repr([int(signum)])] * 2


@pytest.mark.parametrize(
    ("handler", "raised"),
    [(signal.default_int_handler, KeyboardInterrupt), (signal.SIG_IGN, Interrupted)],
    ids=["terminal", "nohup"],
)
def test_a_signal_before_the_training_acts_as_on_one_process(run, handler, raised):
    before = signal.signal(signal.SIGINT, handler)
    try:
        send(signal.SIGINT, after=["ready-0", "ready-1"])
        with pytest.raises(raised):
            run('signal.signal(signal.SIGINT, signal.SIG_DFL); open(f"ready-{rank}", "w"); time.sleep(60)')
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_process_stops_and_removes_the_folder_when_its_parent_has_ended(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "spec.json").touch()
    code = (
        "import sys; from pathlib import Path; from fullrank.run.launch.process import stop_with_parent; "
        "print('ready', flush=True); stop_with_parent(Path(sys.argv[1]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    assert process.poll() is None
    assert folder.exists()
    process.stdin.close()
    assert process.wait(20) == -signal.SIGTERM
    assert not folder.exists()
    ProcessFiles(folder).write_result(0, ProcessResult("succeeded"))  # nobody reads it, and it is no error
    process.stdout.close()


def test_a_stopped_process_wakes_to_handle_a_signal(run, tmp_path):
    script = """
def stop(number, frame):
    report("interrupted", "stopped after step 3", number); sys.exit(0)
signal.signal(signal.SIGTERM, stop)
open(f"ready-{rank}", "w")
if rank == 1: os.kill(os.getpid(), signal.SIGSTOP)
time.sleep(60)
"""
    send(signal.SIGTERM, after=["ready-0", "ready-1"])
    with pytest.raises(Interrupted, match="stopped after step 3"):
        run(script)


def test_processes_that_do_not_stop_are_killed(run, monkeypatch):
    monkeypatch.setattr(launcher, "STOP_TIMEOUT", 0.5)
    monkeypatch.setattr(launcher, "SHUTDOWN_TIMEOUT", 0.5)
    send(signal.SIGTERM, after=["ready-0", "ready-1"])
    with pytest.raises(Interrupted, match="before the end of a step; nothing was written") as stop:
        run('signal.signal(signal.SIGTERM, signal.SIG_IGN); open(f"ready-{rank}", "w"); time.sleep(60)')
    assert stop.value.signum == signal.SIGTERM


def test_results_are_read_in_the_order_in_which_they_were_written(tmp_path):
    files = ProcessFiles(tmp_path)
    assert (files.read_run_path(), files.read_results(3)) == (None, {})
    for rank in (2, 0):
        files.write_result(rank, ProcessResult("interrupted", f"of {rank}", 15))
        time.sleep(0.02)
    files.write_run_path(tmp_path / "run")
    assert list(files.read_results(3).items()) == [
        (2, ProcessResult("interrupted", "of 2", 15)),
        (0, ProcessResult("interrupted", "of 0", 15)),
    ]
    assert files.read_run_path() == tmp_path / "run"
