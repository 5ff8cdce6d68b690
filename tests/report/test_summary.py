import json
from dataclasses import replace

import pytest
from PIL import Image

from fullrank.errors import UserError
from fullrank.report import read_run_summary

OPTIONAL = {"environment.json": "environment", "spectrum.npz": "spectra"}
OPTIONAL |= {"evaluation.json": "evaluations", "views.png": "views"}


def test_reads_all_files_of_a_run(make_run):
    path = make_run("first", T=7, D_b=20, D=30, lines=50, alarms=2)
    run = read_run_summary(path)
    assert (run.label, run.recipe["objective"], run.unreadable, run.file_notes) == ("first", "frossl", 2, ())
    assert (len(run.train), len(run.spectrum), len(run.alarms)) == (50, 7, 2)
    assert run.evaluations[0].left_out == ("SVM: too slow",)
    assert run.views == (path / "views.png").read_bytes()
    assert run.spectra.eigenvalues["projector"].shape == (7, 30)


@pytest.mark.parametrize("content", [b"PK half a file", b"[1, 2]"])
def test_damaged_derived_files_are_notes(make_run, content):
    path = make_run(lines=9, T=3)
    for name in OPTIONAL:
        (path / name).write_bytes(content)
    run = read_run_summary(path)
    assert [note.partition(":")[0] for note in run.file_notes] == [f"{name} cannot be read" for name in OPTIONAL]
    assert not any(getattr(run, field) for field in OPTIONAL.values())
    assert run.train


def test_an_empty_log_and_an_incomplete_line_are_notes(make_run):
    path = make_run(lines=10)
    lines = (path / "metrics.jsonl").read_text()
    (path / "metrics.jsonl").write_text(lines[:-20])
    run = read_run_summary(path)
    assert len(run.train) + len(run.spectrum) == lines.count("\n") - 1
    assert f"line {lines.count(chr(10))} is incomplete" in run.file_notes[0]
    (path / "metrics.jsonl").write_text("")
    assert read_run_summary(path).file_notes[0].startswith("metrics.jsonl is empty")


@pytest.mark.parametrize("damage", ['{"step": 3, "kind":', '{"kind": "train"}'])
def test_a_damaged_line_is_an_error_with_file_and_line(make_run, damage):
    path = make_run(lines=10)
    lines = (path / "metrics.jsonl").read_text().split("\n")
    lines[4] = damage
    (path / "metrics.jsonl").write_text("\n".join(lines))
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 5"):
        read_run_summary(path)


def test_a_folder_without_a_recipe_is_no_run_and_a_damaged_recipe_an_error(make_run, tmp_path):
    with pytest.raises(UserError, match=r"no recipe\.json"):
        read_run_summary(tmp_path)
    path = make_run()
    (path / "recipe.json").write_text('{\n"name": "x",\n"objective" "frossl"}')
    with pytest.raises(UserError, match=r"recipe\.json"):
        read_run_summary(path)


@pytest.mark.parametrize("format", ["EPS", "JPEG"])
def test_a_picture_in_another_format_is_not_opened(make_run, format):
    path = make_run("other", T=2)
    Image.new("RGB", (8, 8)).save(path / "views.png", format)
    run = read_run_summary(path)
    assert run.views is None
    assert "views.png cannot be read" in run.file_notes[0]


def test_a_damaged_file_of_neighbours_is_a_note_and_its_pictures_are_no_addresses(make_run):
    path = make_run(T=2)
    hostile = {"source": "x", "searched": 2, "rows": [[{"name": "a", "picture": "https://example.org/a.png"}]]}
    for content in ({"rows": 3}, hostile):
        (path / "neighbours.json").write_text(json.dumps(content))
        run = read_run_summary(path)
        assert run.neighbours is None
        assert "neighbours.json cannot be read" in run.file_notes[0]


def test_evaluations_on_the_data_of_the_training_come_first_then_those_with_the_most_images(make_summary, evaluation):
    large, own = (evaluation(data=data) for data in ("photos2[test]", "photos[test]"))
    throwaway = replace(large, data="b", test_images=6)
    run = make_summary(recipe={"data": {"source": "photos"}}, evaluations=(own, large, throwaway))
    assert [each.data for each in run.evaluations_by_relevance()] == ["photos[test]", "photos2[test]", "b"]
