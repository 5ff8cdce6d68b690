import json
import sys
import types
from dataclasses import replace

import pytest

from fullrank.errors import UserError
from fullrank.run import Metrics
from fullrank.run.metrics import MetricsWriter, check_wandb, scalars
from fullrank.run.rows import AlarmRow, OnlineRow, SpectrumMetrics, SpectrumRow, TrainRow, row_to_json
from small import read_events


def rows(steps):
    numbers = {"lr": 0.1, "images_per_second": 9.0, "probe_loss": 1.0}
    return [TrainRow(step=s, epoch=s / 10, loss=s + 0.5, terms={"variance": float(s)}, **numbers) for s in steps]


VALUES = {"effective_rank": 2.0, "condition_number": None, "entropy": 1.0, "collapsed_dimensions": 0}
SPECTRUM = SpectrumMetrics(**VALUES, dimensions=3, samples=9)
ALARM = {"alarm": "divergence", "where": "loss", "metric": "loss", "observed": 40.0, "cause": "large steps"}
ALL_KINDS = (
    replace(rows([1])[0], effective_rank=2.0, leading_eigenvalues=(2.0, 1.0)),
    SpectrumRow(step=1, epoch=0.1, backbone=SPECTRUM, projector=SPECTRUM, probe_accuracy=0.5),
    OnlineRow(step=1, epoch=0.1, accuracy=0.25, top5=0.5, images=8),
    AlarmRow(step=1, epoch=0.1, **ALARM, message="the loss grew", remedy="lower it"),
)


def write(path, new, *, after=0, wandb=False, config=None):
    before = [row for row in Metrics.read(path / "metrics.jsonl") if row.step <= after]
    writer = MetricsWriter(path, before, wandb=wandb, config=config or {})
    for count, row in enumerate(new, start=len(before) + 1):
        writer.write(row)
        assert len(read(path)) == count  # each row is on the disk immediately
    writer.close()


def read(path):
    return list(Metrics.read(path / "metrics.jsonl"))


def test_rows_are_read_as_they_were_written(tmp_path):
    write(tmp_path, ALL_KINDS)
    metrics = Metrics.read(tmp_path / "metrics.jsonl")
    assert (metrics.train, metrics.spectrum, metrics.online, metrics.alarms) == tuple([row] for row in ALL_KINDS)
    assert metrics[:2] == ALL_KINDS[:2]
    assert len(metrics.to_pandas()) == 4


@pytest.mark.parametrize("change", [{"kind": "test"}, {"loss": "low"}, {"epochs": 1}, {"step": None}])
def test_a_row_with_another_schema_is_reported_with_its_line(tmp_path, change):
    lines = [row_to_json(row) for row in rows([1, 2])]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (lines[0], lines[1] | change)))
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 2"):
        read(tmp_path)


def test_tensorboard_has_each_number_and_on_resume_each_step_is_logged_once(tmp_path):
    write(tmp_path, rows([10, 20, 30, 40]))
    write(tmp_path, rows([30, 40, 50]), after=20)
    assert read(tmp_path) == rows([10, 20, 30, 40, 50])
    found = read_events(tmp_path)
    assert found.keys() == {"loss", "terms/variance", "lr", "images_per_second", "probe_loss"}
    assert found["loss"] == [(s, s + 0.5) for s in (10, 20, 30, 40, 50)]


class Wandb(types.ModuleType):
    """Records what W&B would receive."""

    def __init__(self):
        super().__init__("wandb")
        self.runs = []

    def init(self, **options):
        self.runs.append({**options, "rows": [], "alerts": [], "finished": False})
        return self

    def log(self, row, *, step):
        self.runs[-1]["rows"].append((step, row))

    def alert(self, *, title, text, level):
        self.runs[-1]["alerts"].append((title, text, level))

    def finish(self):
        self.runs[-1]["finished"] = True


@pytest.fixture
def wandb(monkeypatch):
    module = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def test_wandb_gets_the_same_rows_the_hyperparameters_and_the_alarms(tmp_path, wandb):
    write(tmp_path, [*rows([1, 2]), ALL_KINDS[-1]], wandb=True, config={"batch_size": 8})
    (run,) = wandb.runs
    assert (run["project"], run["name"], run["dir"]) == ("fullrank", tmp_path.name, str(tmp_path))
    assert run["config"] == {"batch_size": 8}
    alarm = (1, {"alarm": "divergence: the loss grew; lower it"})
    assert run["rows"] == [*((row.step, scalars(row)) for row in rows([1, 2])), alarm]
    assert run["alerts"] == [("divergence", "the loss grew; lower it", "WARN")]
    assert run["finished"]


def test_wandb_continues_the_run_of_the_same_folder_without_an_untrusted_settings(tmp_path, wandb):
    write(tmp_path, rows([1]), wandb={"project": "mine", "name": "first"})
    file = tmp_path / "wandb" / "run.json"
    strange = {"settings": {"base_url": "https://elsewhere.example"}, "dir": "/"}
    file.write_text(json.dumps(json.loads(file.read_text()) | strange))
    write(tmp_path, rows([2]), wandb=True, after=1)
    first, again = wandb.runs
    assert (first["project"], first["name"], first["id"]) == (again["project"], again["name"], again["id"])
    assert (again["project"], again["dir"]) == ("mine", str(tmp_path))
    assert "settings" not in again


def test_the_error_for_a_missing_wandb_names_the_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match=r"pip install 'fullrank\[wandb\]'"):
        check_wandb(True)
    check_wandb(False)
