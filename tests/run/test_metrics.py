import json
import sys
import types

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fullrank.errors import UserError
from fullrank.run import Metrics
from fullrank.run.metrics import MetricsWriter, scalars
from fullrank.run.rows import AlarmRow, OnlineRow, SpectrumMetrics, SpectrumRow, TrainRow, row_to_json
from fullrank.run.wandb_log import check_wandb


def rows(steps):
    return [
        TrainRow(
            step=s,
            epoch=s / 10,
            loss=s + 0.5,
            terms={"variance": float(s)},
            lr=0.1,
            images_per_second=9.0,
            probe_loss=1.0,
        )
        for s in steps
    ]


SPECTRUM = SpectrumMetrics(
    effective_rank=2.0, condition_number=None, entropy=1.0, collapsed_dimensions=0, dimensions=3, samples=9
)
ALL_KINDS = (
    TrainRow(
        step=1,
        epoch=0.1,
        loss=1.5,
        terms={"a": 1.5},
        lr=0.1,
        images_per_second=9.0,
        effective_rank=2.0,
        leading_eigenvalues=(2.0, 1.0),
    ),
    SpectrumRow(step=1, epoch=0.1, backbone=SPECTRUM, projector=SPECTRUM, probe_accuracy=0.5),
    OnlineRow(step=1, epoch=0.1, accuracy=0.25, top5=0.5, images=8),
    AlarmRow(
        step=1,
        epoch=0.1,
        alarm="divergence",
        where="loss",
        metric="loss",
        observed=40.0,
        cause="lr",
        details={"terms": ["a"]},
    ),
)


def writer_of(path, *, after=0, wandb=False, config=None):
    before = [row for row in Metrics.read(path / "metrics.jsonl") if row.step <= after]
    return MetricsWriter(path, before, wandb=wandb, config=config or {})


def write(path, steps, **keywords):
    writer = writer_of(path, **keywords)
    for row in rows(steps):
        writer.write(row)
    writer.close()


def read(path):
    return list(Metrics.read(path / "metrics.jsonl"))


def events(path):
    """Tag → [(step, value)], of all event files together."""
    accumulator = EventAccumulator(str(path / "tensorboard"), size_guidance={"scalars": 0})
    accumulator.Reload()
    return {
        tag: [(event.step, event.value) for event in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]
    }


def test_rows_are_read_as_they_were_written(tmp_path):
    writer = writer_of(tmp_path)
    for count, row in enumerate(ALL_KINDS, start=1):
        writer.write(row)
        assert read(tmp_path) == list(ALL_KINDS[:count])  # each row is on the disk immediately
    writer.close()
    metrics = Metrics.read(tmp_path / "metrics.jsonl")
    assert (metrics.train, metrics.spectrum, metrics.online, metrics.alarms) == tuple([row] for row in ALL_KINDS)
    assert metrics[:2] == ALL_KINDS[:2]


@pytest.mark.parametrize("change", [{"kind": "test"}, {"loss": "low"}, {"epochs": 1}, {"step": None}])
def test_a_row_with_another_schema_is_reported_with_its_line(tmp_path, change):
    lines = [row_to_json(row) for row in rows([1, 2])]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (lines[0], lines[1] | change)))
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 2"):
        read(tmp_path)


def test_tensorboard_has_each_number_of_each_row(tmp_path):
    write(tmp_path, [1, 2, 3])
    found = events(tmp_path)
    assert found.keys() == {"loss", "terms/variance", "lr", "images_per_second", "probe_loss"}
    assert found["loss"] == [(s, s + 0.5) for s in (1, 2, 3)]
    assert found["terms/variance"] == [(s, float(s)) for s in (1, 2, 3)]


def test_on_resume_later_rows_are_removed_and_each_step_is_logged_once(tmp_path):
    write(tmp_path, [10, 20, 30, 40])
    write(tmp_path, [30, 40, 50], after=20)
    assert read(tmp_path) == rows([10, 20, 30, 40, 50])
    assert events(tmp_path)["loss"] == [(s, s + 0.5) for s in (10, 20, 30, 40, 50)]


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


def test_wandb_gets_the_same_rows_and_the_hyperparameters(tmp_path, wandb):
    write(tmp_path, [1, 2], wandb=True, config={"batch_size": 8})
    (run,) = wandb.runs
    assert (run["project"], run["name"], run["dir"]) == ("fullrank", tmp_path.name, str(tmp_path))
    assert run["config"] == {"batch_size": 8}
    assert run["rows"] == [(row.step, scalars(row)) for row in rows([1, 2])]
    assert run["finished"]


def test_wandb_continues_the_run_of_the_same_folder_and_no_other(tmp_path, wandb):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    write(tmp_path / "a", [1], wandb={"project": "mine", "name": "first"})
    write(tmp_path / "a", [2], wandb=True, after=1)
    write(tmp_path / "b", [1], wandb={})
    first, again, other = wandb.runs
    assert (first["project"], first["name"]) == (again["project"], again["name"]) == ("mine", "first")
    assert (other["project"], other["name"]) == ("fullrank", "b")
    assert first["id"] == again["id"] != other["id"]


def test_wandb_gets_an_alarm_as_a_row_and_as_an_alert(tmp_path, wandb):
    alarm = ALL_KINDS[-1]
    log = writer_of(tmp_path, wandb=True)
    log.write(alarm, "the message")
    log.close()
    (run,) = wandb.runs
    assert run["rows"] == [(alarm.step, {"alarm": f"{alarm.alarm}: the message"})]
    assert run["alerts"] == [(alarm.alarm, "the message", "WARN")]


def test_the_error_for_a_missing_wandb_names_the_install_command(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(
        UserError, match=r"--wandb needs the package wandb, which is not installed; pip install 'fullrank\[wandb\]'"
    ):
        check_wandb(True)
    check_wandb(False)


def test_settings_of_wandb_in_a_strangers_run_are_not_used(tmp_path, wandb):
    (tmp_path / "wandb").mkdir()
    stored = {"id": "abc", "project": "mine", "settings": {"base_url": "https://elsewhere.example"}, "dir": "/"}
    (tmp_path / "wandb" / "run.json").write_text(json.dumps(stored))
    write(tmp_path, [1], wandb=True)
    (run,) = wandb.runs
    assert (run["id"], run["project"], run["dir"]) == ("abc", "mine", str(tmp_path))
    assert "settings" not in run
