import json
import sys
import types

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fullrank.errors import UserError
from fullrank.run import Log
from fullrank.run.metrics_writer import scalars


def rows(steps):
    return [{"step": step, "epoch": step / 10, "kind": "train", "loss": step + 0.5, "terms": {"variance": float(step)}} for step in steps]


def write(path, steps, **numbers):
    log = Log(path, **numbers)
    for row in rows(steps):
        log.write(row)
    log.close()


def read(path):
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def events(path):
    """Tag → [(step, value)], of all event files together."""
    accumulator = EventAccumulator(str(path / "tensorboard"), size_guidance={"scalars": 0})
    accumulator.Reload()
    return {tag: [(event.step, event.value) for event in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]}


def test_rows_are_on_disk_as_soon_as_they_are_written(tmp_path):
    log = Log(tmp_path)
    for row in rows([1, 2]):
        log.write(row)
        assert read(tmp_path)[-1] == row
    log.close()


def test_tensorboard_holds_each_number_of_each_row(tmp_path):
    write(tmp_path, [1, 2, 3])
    assert events(tmp_path) == {"loss": [(s, s + 0.5) for s in (1, 2, 3)], "terms/variance": [(s, float(s)) for s in (1, 2, 3)]}


def test_on_resume_later_rows_are_dropped_and_no_step_stands_twice(tmp_path):
    write(tmp_path, [10, 20, 30, 40])
    write(tmp_path, [30, 40, 50], after=20)
    assert read(tmp_path) == rows([10, 20, 30, 40, 50])
    assert events(tmp_path) == {
        "loss": [(s, s + 0.5) for s in (10, 20, 30, 40, 50)],
        "terms/variance": [(s, float(s)) for s in (10, 20, 30, 40, 50)],
    }


def test_a_new_log_drops_what_an_old_one_left(tmp_path):
    write(tmp_path, [10, 20])
    write(tmp_path, [5])
    assert read(tmp_path) == rows([5])
    assert [step for step, _ in events(tmp_path)["loss"]] == [5]


def test_on_resume_a_half_written_row_is_dropped(tmp_path):
    write(tmp_path, [10])
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 20, "lo')
    write(tmp_path, [20], after=10)
    assert read(tmp_path) == rows([10, 20])


def test_damage_is_said_and_nothing_is_lost(tmp_path):
    write(tmp_path, [10])
    damaged = "nonsense\n" + (tmp_path / "metrics.jsonl").read_text()
    (tmp_path / "metrics.jsonl").write_text(damaged)
    with pytest.raises(UserError, match="corrupted at line 1"):
        Log(tmp_path, after=10)
    assert (tmp_path / "metrics.jsonl").read_text() == damaged


def test_scalars_are_the_numbers_under_their_path():
    row = {
        "step": 3,
        "epoch": 0.5,
        "kind": "spectrum",
        "backbone": {"rank": 2, "condition": None},
        "leading_eigenvalues": [1.0],
        "loss": 0.25,
    }
    assert dict(scalars(row)) == {"backbone/rank": 2.0, "loss": 0.25}


class Wandb(types.ModuleType):
    """What W&B would be told."""

    def __init__(self):
        super().__init__("wandb")
        self.runs = []

    def init(self, **options):
        self.runs.append({**options, "rows": [], "finished": False})
        return self

    def log(self, row, *, step):
        self.runs[-1]["rows"].append((step, row))

    def finish(self):
        self.runs[-1]["finished"] = True


@pytest.fixture
def wandb(monkeypatch):
    module = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def test_wandb_gets_the_same_rows(tmp_path, wandb):
    write(tmp_path, [1, 2], wandb=True, name="digits")
    (run,) = wandb.runs
    assert run["name"] == "digits"
    assert run["dir"] == str(tmp_path)
    assert run["rows"] == [(s, {"loss": s + 0.5, "terms/variance": float(s)}) for s in (1, 2)]
    assert run["finished"]


def test_wandb_continues_the_run_of_the_same_folder_and_no_other(tmp_path, wandb):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    write(tmp_path / "a", [1], wandb=True, name="digits")
    write(tmp_path / "a", [2], wandb=True, name="digits", after=1)
    write(tmp_path / "b", [1], wandb=True, name="digits")
    first, again, other = (run["id"] for run in wandb.runs)
    assert first == again != other


def test_a_missing_wandb_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match=r"--wandb needs the package wandb, which is not installed; pip install 'fullrank\[wandb\]'"):
        Log(tmp_path, wandb=True)
