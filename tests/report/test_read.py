import json
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from fullrank.errors import UserError
from fullrank.report import read_run

OPTIONAL = ("environment.json", "metrics.jsonl", "spectrum.npz", "evaluation.json", "views.png")


def test_reads_all_that_a_run_wrote(make_run):
    path = make_run("first", T=7, D_b=20, D=30, lines=50, warnings=2)
    record = read_run(path)
    assert record.label == "first"
    assert record.recipe["objective"] == "frossl"
    assert (len(record.train), len(record.spectrum_rows), len(record.warnings)) == (50, 7, 2)
    assert record.decode_errors == 2
    assert record.notes == ()
    assert record.views == (path / "views.png").read_bytes()
    with np.load(path / "spectrum.npz") as file:
        assert_allclose(record.spectra.eigenvalues["backbone"], file["backbone"])
        assert_allclose(record.spectra.eigenvalues["projector"], file["projector"])
        assert_allclose(record.spectra.steps, file["steps"])


@pytest.mark.parametrize("name", OPTIONAL)
def test_names_what_is_missing_and_keeps_the_rest(make_run, name):
    whole, partial = read_run(make_run("whole")), read_run(make_run("partial", without=(name,)))
    assert len(partial.notes) == 1
    assert partial.notes[0].startswith(f"{name} is missing")
    empty = {
        "environment.json": {"environment": {}},
        "metrics.jsonl": {"train": (), "spectrum_rows": (), "warnings": ()},
        "spectrum.npz": {"spectra": None},
        "evaluation.json": {"evaluation": None},
        "views.png": {"views": None},
    }[name]
    expected = replace(whole, label="partial", notes=partial.notes, **empty)
    for field in ("recipe", "environment", "train", "spectrum_rows", "warnings", "views", "skipped"):
        assert getattr(partial, field) == getattr(expected, field)
    assert (partial.spectra is None) == (expected.spectra is None)
    assert (partial.evaluation is None) == (expected.evaluation is None)


@pytest.mark.parametrize(
    ("name", "content"), [("spectrum.npz", b"PK half a file"), ("spectrum.npz", b""), ("views.png", b"\x89PNG half a file")]
)
def test_names_a_binary_file_that_cannot_be_read(make_run, name, content):
    path = make_run()
    (path / name).write_bytes(content)
    assert [note for note in read_run(path).notes if note.startswith(f"{name} cannot be read")]


def test_a_run_without_a_projector_has_the_spectrum_of_its_backbone(make_run):
    path = make_run()
    np.savez(path / "spectrum.npz", steps=np.arange(3), backbone=np.ones((3, 5), np.float32))
    spectra = read_run(path).spectra
    assert list(spectra.eigenvalues) == ["backbone"]
    assert spectra.samples.tolist() == [0, 0, 0]


def test_other_arrays_are_no_networks(make_run):
    path = make_run(T=3)
    with np.load(path / "spectrum.npz") as file:
        np.savez(path / "spectrum.npz", **dict(file), **{"backbone-about-origin": np.ones((3, 5)), "note": np.array(1)})
    assert list(read_run(path).spectra.eigenvalues) == ["backbone", "projector"]


@pytest.mark.parametrize("short", ["steps", "samples", "backbone"])
def test_as_many_spectra_as_steps_are_expected(make_run, short):
    path = make_run(T=3)
    with np.load(path / "spectrum.npz") as file:
        np.savez(path / "spectrum.npz", **(dict(file) | {short: file[short][:2]}))
    record = read_run(path)
    assert record.spectra is None
    assert record.notes == ("spectrum.npz holds another number of spectra than of steps: the spectrum cannot be drawn.",)


def test_a_directory_without_a_recipe_is_no_run(tmp_path):
    with pytest.raises(UserError, match=r"is not a run directory: it holds no recipe\.json"):
        read_run(tmp_path)


def test_a_last_line_cut_off_is_left_out_and_said(make_run):
    path = make_run("whole", lines=10)
    text = (path / "metrics.jsonl").read_text()
    n = text.count("\n")
    (path / "metrics.jsonl").write_text(text[:-20])
    record = read_run(path)
    assert len(record.train) + len(record.spectrum_rows) == n - 1
    assert f"line {n}" in record.notes[0]
    assert "cut off" in record.notes[0]


@pytest.mark.parametrize("damage", ['{"step": 3, "kind":', "[1, 2]", '{"kind": "train"}', '{"step": 3}'])
def test_a_damaged_line_within_is_an_error_with_file_and_line(make_run, damage):
    path = make_run(lines=10)
    lines = (path / "metrics.jsonl").read_text().split("\n")
    lines[4] = damage
    (path / "metrics.jsonl").write_text("\n".join(lines))
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 5: .*repair or remove"):
        read_run(path)


def test_a_damaged_recipe_is_an_error_with_its_line(make_run):
    path = make_run()
    (path / "recipe.json").write_text('{\n"name": "x",\n"objective" "frossl"}')
    with pytest.raises(UserError, match=r"recipe\.json, line 3: expected JSON"):
        read_run(path)


def test_a_step_that_a_resumed_run_logged_again_counts_once(make_run):
    path = make_run()
    rows = [
        {"step": step, "kind": "train", "loss": loss} for step, loss in [(10, 1.0), (20, 2.0), (30, 3.0), (20, 2.5), (30, 3.5), (40, 4.0)]
    ]
    (path / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert read_run(path).series("train", "loss") == ([10, 20, 30, 40], [1.0, 2.5, 3.5, 4.0])


def test_what_is_not_finite_becomes_a_gap_and_what_is_absent_no_point(make_record):
    train = (
        {"step": 1, "loss": float("nan")},
        {"step": 2, "loss": None},
        {"step": 3},
        {"step": 4, "loss": 0.5},
        {"step": 5, "loss": -float("inf")},
        {"step": 6, "loss": "nan"},
    )
    assert make_record(train=train).series("train", "loss") == ([1, 2, 4, 5, 6], [None, None, 0.5, None, None])
