"""The studies: flags come from signatures, and counts are right."""

import json
import sys
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from fullrank import load
from fullrank.errors import UserError
from fullrank.evaluation.features import Network
from fullrank.evaluation.protocol import SupervisedProtocol
from fullrank.sweep import Cell, EvaluationPlan, run_cell
from fullrank.sweep.cell import split
from fullrank_papers import studies
from fullrank_papers.figures.frossl.sizes import TINY
from fullrank_papers.studies import alarm, photos, references, selection, spectra


def test_a_study_takes_its_arguments_as_flags_and_writes_what_it_returns(monkeypatch, tmp_path):
    monkeypatch.setattr(studies, "RESULTS", tmp_path)
    monkeypatch.setattr(spectra, "FIGURE", tmp_path / "spectra.svg")
    monkeypatch.setattr(spectra, "OBJECTIVES", {name: spectra.OBJECTIVES[name] for name in ("frossl", "simclr")})
    monkeypatch.setattr(spectra, "FAMILIES", {str(k): ("frossl", "simclr") for k in range(4)})
    monkeypatch.setattr(sys, "argv", ["spectra", "--N", "16", "--D", "4", "--steps", "5", "--seeds", "0"])
    studies.run(spectra.measure, "spectra")
    found = json.loads((tmp_path / "spectra.json").read_text())
    assert set(found["objectives"]) == {"frossl", "simclr"}
    assert found["environment"]["settings"] == {"N": 16, "D": 4, "steps": 5, "learning_rate": 0.02, "seeds": [0]}
    assert (tmp_path / "spectra.svg").exists()


def run(objective, linear, **measures):
    measures = {f"backbone: {key}": value for key, value in measures.items()}
    return {"objective": objective, "accuracy": {"linear": linear}, "measures": measures}


def test_clear_pairs_are_counted_within_an_objective_with_the_sign_of_each_measure():
    runs = {
        "a": run("simclr", 0.40, RankMe=10.0, alignment=5.0),
        "b": run("simclr", 0.45, RankMe=12.0, alignment=6.0),
        "c": run("simclr", 0.46, RankMe=12.0, alignment=4.0),  # not clear against b
        "d": run("byol", 0.90, RankMe=1.0, alignment=9.0),  # another objective
        "e": run("tico", 0.1, RankMe=3.0),
        "f": run("tico", 0.2, RankMe=3.0),  # a tie counts half
    }
    counts = selection.count_clear_pairs(runs)
    assert counts["backbone: RankMe"] == {"right": 2.5, "pairs": 3}
    assert counts["backbone: alignment"] == {"right": 1.0, "pairs": 2}


def test_the_images_of_a_run_are_those_of_its_subset_seed_and_validation():
    data = replace(TINY.data, subset=100, subset_seed=3, validation=0.2)
    expected, found = split(data, 0), selection.read_images(data, 0)
    for ours, images in zip(found, (expected.train, expected.test), strict=True):
        assert torch.equal(ours.labels, torch.as_tensor(images.labels))
    other, _ = selection.read_images(replace(data, subset_seed=0), 0)
    assert not torch.equal(other.pixels, found[0].pixels)


@pytest.fixture
def short(monkeypatch):
    """Healthy runs of one epoch instead of twenty, of one objective."""
    healthy = alarm.healthy
    monkeypatch.setattr(alarm, "EPOCHS", 1)
    monkeypatch.setattr(alarm, "OBJECTIVES", {"vicreg": None})
    return healthy


@pytest.mark.slow
def test_a_run_that_failed_for_another_reason_is_not_counted(short, tmp_path):
    recipe = short("vicreg", 0)
    with pytest.raises(UserError, match="nowhere"):
        alarm.train(tmp_path / "run", replace(recipe, data=replace(recipe.data, source=str(tmp_path / "nowhere"))))
    assert not (tmp_path / "run" / "few-shot.json").exists()


def test_the_alarm_of_a_run_that_became_nan_is_counted(short, tmp_path):
    _, changes = alarm.INDUCED_FAILURES["NaN"]
    alarm.train(tmp_path / "healthy", short("vicreg", 0))
    alarm.train(tmp_path / "nan", changes["vicreg"](short("vicreg", 0)))
    rows = [
        {"kind": kind} | alarm.judge(tmp_path / folder, tmp_path / "healthy", is_healthy=kind == "healthy")
        for kind, folder in (("healthy", "healthy"), ("NaN", "nan"))
    ]
    table = {
        row["kind"]: row
        for row in alarm.count(rows, alarm.CHANGES["failures of the kinds on which the thresholds were chosen"])
    }
    assert table["healthy"]["degraded"] == 0
    assert (table["NaN"]["degraded"], table["NaN"]["detected"], table["NaN"]["right_cause"]) == (1, 1, 1)


def test_photos_without_labels_are_a_folder_and_a_table(monkeypatch, tmp_path):
    monkeypatch.setattr(photos, "UNLABELLED", 30)
    monkeypatch.setattr(photos, "LABELLED", 20)
    monkeypatch.setattr(photos, "TEST", 10)
    rng, digits = np.random.default_rng(0), tmp_path / "data"
    for part, name in product(("train", "test"), ("a", "b")):
        (digits / part / name).mkdir(parents=True)
        for k in range(30):
            pixels = rng.integers(256, size=(8, 8), dtype=np.uint8)
            Image.fromarray(pixels).save(digits / part / name / f"{k}.png")
    photos.write_photos(str(digits), 0, tmp_path)
    assert len(list((tmp_path / "photos").iterdir())) == 30
    lines = (tmp_path / "labels.csv").read_text().splitlines()
    assert (lines[0], len(lines)) == ("path,label,split", 31)


def test_the_references_of_the_comparison_are_scored_like_its_runs(tmp_path):
    recipe = replace(TINY, data=replace(TINY.data, subset=300, subset_seed=3), epochs=1)
    row = run_cell(Cell("run", recipe, {}, EvaluationPlan()), tmp_path, console=Console(quiet=True))
    model, task = load(tmp_path / "run"), references.open_task("digits", 3, 300)
    found = references.score(Network("run", model.backbone, model.preprocess), [task], 3)
    assert found["scores"] == {found["data"]: dict(row.scores[row.data])}
    rows = list(references.score_references([task], 3, SupervisedProtocol(epochs=8)))
    assert [row["method"] for row in rows] == ["raw pixels", "untrained", "supervised"]
    pixels, untrained, supervised = (row["scores"][row["data"]]["linear"] for row in rows)
    assert pixels > 0.85
    assert supervised > untrained > 0.3
