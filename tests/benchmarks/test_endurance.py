"""The instrument of long and killed runs at a tiny size, and that it sees a leak and a damaged log."""

import json
import os

import pytest
import torch

from benchmarks import endurance
from fullrank.run import Run
from fullrank.run.logger import RunLogger


@pytest.fixture(autouse=True)
def _threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_a_run_stays_small_and_survives_kills(tmp_path):
    out = tmp_path / "endurance.json"
    endurance.main(steps=60, kills=2, out=out)
    found = json.loads(out.read_text())
    assert all(found["killed"]["verdicts"].values()), found["killed"]
    # Memory and open files of this process are also those of the tests before.
    assert all(found["long"]["verdicts"][name] for name in ("checkpoints", "log")), found["long"]
    assert (found["long"]["steps"], len(found["killed"]["moments"])) == (88, 2)


def test_a_leak_is_seen(tmp_path, monkeypatch):
    after_step, kept = RunLogger.after_step, []

    def leak(self, step):
        after_step(self, step)
        kept.append((torch.ones(500_000), os.dup(0)))

    monkeypatch.setattr(RunLogger, "after_step", leak)
    verdicts = endurance.long_run(tmp_path / "run", 44)["verdicts"]
    for _, handle in kept:
        os.close(handle)
    assert (verdicts["memory"], verdicts["open_files"]) == (False, False)


def test_a_row_that_is_logged_twice_and_a_file_that_is_left_are_seen(run, copy):
    same = {"weights": True, "rows": True, "spectra": True, "files": True}
    assert endurance.compare(run, Run(copy)) == same
    log = copy / "metrics.jsonl"
    log.write_text(log.read_text() + log.read_text().splitlines(keepends=True)[-1])
    (copy / ".metrics.jsonl.1.tmp").touch()
    assert endurance.compare(run, Run(copy)) == same | {"rows": False, "files": False}
