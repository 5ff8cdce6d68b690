import json

import numpy as np
import pytest
from numpy.testing import assert_allclose
from PIL import Image

from fullrank.errors import UserError
from fullrank.report import read_run_summary
from fullrank.report.run_summary import series
from fullrank.run.rows import row_to_json

OPTIONAL = {
    "environment.json": "environment",
    "spectrum.npz": "spectra",
    "evaluation.json": "evaluations",
    "views.png": "views",
}


def test_reads_all_files_of_a_run(make_run):
    path = make_run("first", T=7, D_b=20, D=30, lines=50, alarms=2)
    run = read_run_summary(path)
    assert run.label == "first"
    assert run.recipe["objective"] == "frossl"
    assert (len(run.train), len(run.spectrum), len(run.alarms)) == (50, 7, 2)
    assert run.evaluations[0].left_out == ("SVM: too slow",)
    assert run.decode_errors == 2
    assert run.file_notes == ()
    assert run.views == (path / "views.png").read_bytes()
    with np.load(path / "spectrum.npz") as file:
        assert_allclose(run.spectra.eigenvalues["backbone"], file["backbone"])
        assert_allclose(run.spectra.eigenvalues["projector"], file["projector"])
        assert_allclose(run.spectra.steps, file["steps"])


@pytest.mark.parametrize("name", [*OPTIONAL, "metrics.jsonl"])
def test_a_missing_file_is_a_note(make_run, name):
    whole, partial = read_run_summary(make_run("whole")), read_run_summary(make_run("partial", without=(name,)))
    (note,) = partial.file_notes
    assert note.startswith(f"{name} is missing")
    lost = ("train", "spectrum", "alarms") if name == "metrics.jsonl" else (OPTIONAL[name],)
    assert not any(getattr(partial, field) for field in lost)
    for field in {"recipe", "environment", "train", "spectrum", "alarms", "views", "decode_errors"}.difference(lost):
        assert getattr(partial, field) == getattr(whole, field)


@pytest.mark.parametrize("content", [b"", b"PK half a file", b"\x89PNG half a file", b'{"half":', b"[1, 2]"])
@pytest.mark.parametrize("name", OPTIONAL)
def test_a_damaged_derived_file_is_a_note(make_run, name, content):
    path = make_run()
    (path / name).write_bytes(content)
    run = read_run_summary(path)
    (note,) = run.file_notes
    assert note.startswith(f"{name} cannot be read")
    assert not getattr(run, OPTIONAL[name])
    assert run.train


def test_an_empty_log_is_a_note(make_run):
    path = make_run()
    (path / "metrics.jsonl").write_text("")
    assert any(note.startswith("metrics.jsonl is empty") for note in read_run_summary(path).file_notes)


def keep_rows(path, keep):
    lines = (path / "metrics.jsonl").read_text().splitlines()
    (path / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines if keep(json.loads(line)["step"])))


def test_a_log_that_was_emptied_before_the_run_was_resumed_is_a_note(make_run):
    path = make_run()
    keep_rows(path, lambda step: step > 1000)
    (note,) = read_run_summary(path).file_notes
    assert "no metrics before step 1" in note


def test_a_log_that_ends_before_the_last_checkpoint_is_a_note(make_run):
    path = make_run()
    keep_rows(path, lambda step: step < 1000)
    assert read_run_summary(path).file_notes == ()
    checkpoint = path / "checkpoints" / "step-00004000"
    checkpoint.mkdir(parents=True)
    for name in ("model.safetensors", "meta.json"):
        (checkpoint / name).write_text("{}")
    run = read_run_summary(path)
    assert run.last_checkpoint == 4000
    assert any("checkpoint of step 4000" in note for note in run.file_notes)


def test_a_stopped_run_needs_no_row_at_its_last_step(make_run):
    path = make_run()
    recipe = json.loads((path / "recipe.json").read_text())
    (path / "recipe.json").write_text(json.dumps(recipe | {"log_every": 10}))
    last = read_run_summary(path).train[-1].step
    checkpoint = path / "checkpoints" / f"step-{last + 1:08}"
    checkpoint.mkdir(parents=True)
    for name in ("model.safetensors", "meta.json"):
        (checkpoint / name).write_text("{}")
    assert read_run_summary(path).last_checkpoint == last + 1
    assert not any("were lost" in note for note in read_run_summary(path).file_notes)


@pytest.mark.parametrize("log", ["whole", "empty"])
def test_spectra_that_were_lost_are_a_note(make_run, log):
    path = make_run(T=5)
    with np.load(path / "spectrum.npz") as file:
        np.savez(path / "spectrum.npz", **{name: values[2:] for name, values in file.items()})
    if log == "empty":
        (path / "metrics.jsonl").write_text("")
    notes = " ".join(read_run_summary(path).file_notes)
    assert ("lacks 2 of 5 spectra (steps 0 to 1000)" if log == "whole" else "no spectra before step 2000") in notes


def test_other_arrays_are_not_spectra(make_run):
    path = make_run(T=3)
    with np.load(path / "spectrum.npz") as file:
        np.savez(path / "spectrum.npz", **dict(file), **{"backbone-uncentred": np.ones((3, 5)), "note": np.array(1)})
    assert list(read_run_summary(path).spectra.eigenvalues) == ["backbone", "projector"]


@pytest.mark.parametrize("short", ["steps", "samples", "backbone"])
def test_spectra_and_steps_of_different_number_are_a_note(make_run, short):
    path = make_run(T=3)
    with np.load(path / "spectrum.npz") as file:
        np.savez(path / "spectrum.npz", **(dict(file) | {short: file[short][:2]}))
    run = read_run_summary(path)
    assert run.spectra is None
    assert run.file_notes[0].startswith("spectrum.npz")


def test_a_directory_without_a_recipe_is_not_a_run(tmp_path):
    with pytest.raises(UserError, match=r"no recipe\.json"):
        read_run_summary(tmp_path)


def test_an_incomplete_last_line_is_skipped_with_a_note(make_run):
    path = make_run("whole", lines=10)
    text = (path / "metrics.jsonl").read_text()
    n = text.count("\n")
    (path / "metrics.jsonl").write_text(text[:-20])
    run = read_run_summary(path)
    assert len(run.train) + len(run.spectrum) == n - 1
    assert f"line {n}" in run.file_notes[0]
    assert "incomplete" in run.file_notes[0]


@pytest.mark.parametrize("damage", ['{"step": 3, "kind":', "[1, 2]", '{"kind": "train"}', '{"step": 3}'])
def test_a_damaged_line_is_an_error_with_file_and_line(make_run, damage):
    path = make_run(lines=10)
    lines = (path / "metrics.jsonl").read_text().split("\n")
    lines[4] = damage
    (path / "metrics.jsonl").write_text("\n".join(lines))
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 5"):
        read_run_summary(path)


def test_a_damaged_recipe_is_an_error(make_run):
    path = make_run()
    (path / "recipe.json").write_text('{\n"name": "x",\n"objective" "frossl"}')
    with pytest.raises(UserError, match=r"recipe\.json cannot be read .*line 3"):
        read_run_summary(path)


def test_a_step_that_was_logged_twice_counts_once(make_run, train_row):
    path = make_run()
    rows = [train_row(step, loss) for step, loss in [(10, 1.0), (20, 2.0), (30, 3.0), (20, 2.5), (30, 3.5), (40, 4.0)]]
    (path / "metrics.jsonl").write_text("\n".join(json.dumps(row_to_json(row)) for row in rows))
    assert series(read_run_summary(path).train, lambda row: row.loss) == ([10, 20, 30, 40], [1.0, 2.5, 3.5, 4.0])


def test_numbers_that_are_not_finite_are_gaps_and_absent_numbers_have_no_point(make_run, train_row):
    values = (float("nan"), None, 0.5, -float("inf"))
    path = make_run()
    rows = [train_row(step, effective_rank=value) for step, value in enumerate(values)]
    (path / "metrics.jsonl").write_text("\n".join(json.dumps(row_to_json(row)) for row in rows))
    assert series(read_run_summary(path).train, lambda row: row.effective_rank) == ([0, 2, 3], [None, 0.5, None])


@pytest.mark.parametrize(
    "change", [{"cause": "other"}, {"metric": "loss"}, {"alarm": "not finite"}, {"details": {"terms": 3}}]
)
def test_an_alarm_that_cannot_be_described_is_an_error(make_run, change):
    path = make_run("damaged", alarms=1)
    *rows, alarm = (path / "metrics.jsonl").read_text().splitlines()
    alarm = next(row for row in map(json.loads, [*rows, alarm]) if row["kind"] == "alarm")
    (path / "metrics.jsonl").write_text(
        json.dumps(alarm | {"cause": "missing term", "metric": "batch_variance", "details": {}} | change)
    )
    with pytest.raises(UserError, match=rf"the alarm of step {alarm['step']} is damaged"):
        read_run_summary(path)


@pytest.mark.parametrize("format", ["EPS", "JPEG"])
def test_a_picture_in_another_format_is_not_opened(make_run, format):
    path = make_run("other", T=2)
    Image.new("RGB", (8, 8)).save(path / "views.png", format)
    run = read_run_summary(path)
    assert run.views is None
    assert "views.png cannot be read" in run.file_notes[0]


def test_a_picture_with_too_many_pixels_is_a_note(make_run, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    assert read_run_summary(make_run("huge")).views is None
