"""Scores of a linear probe during training, on labels from another place than the images of the run."""

import io
from dataclasses import replace

import pytest
from PIL import Image
from rich.console import Console

import fullrank
from fullrank.errors import UserError
from fullrank.images import open_images
from fullrank.run import Run

QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def labelled(tmp_path_factory):
    """Twelve digits of each of five classes, in class folders; four of each are test images."""
    digits, folder = open_images("digits")["all"], tmp_path_factory.mktemp("labelled")
    for label in range(5):
        for k, i in enumerate((digits.labels == label).nonzero()[0][:12]):
            place = folder / ("test" if k < 4 else "train") / str(label)
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray((digits.open(int(i)) * 1).squeeze()).save(place / f"{i}.png")
    return folder


@pytest.fixture(scope="module")
def scored(small, labelled, tmp_path_factory):
    return fullrank.pretrain(small, labelled=labelled, out=tmp_path_factory.mktemp("scored") / "run", console=QUIET)


def test_the_probe_is_scored_before_the_first_step_and_after_each_tenth(scored):
    rows = scored.metrics.online
    assert [row.step for row in rows] == [0, *(round(22 * tenth / 10) for tenth in range(1, 11))]
    assert {(row.probe, row.images) for row in rows} == {("linear", 20)}


def test_the_labels_change_neither_weights_nor_probe_nor_the_other_rows(run, scored, assert_same_but_scores):
    assert_same_but_scores(run, scored)


def test_a_resumed_run_repeats_and_loses_no_score(scored, labelled, tmp_path, power_cut):
    moved = labelled.rename(labelled.with_name("moved"))
    try:
        with power_cut(after=12):
            recipe = replace(scored.recipe, checkpoints=2)
            fullrank.pretrain(recipe, labelled=moved, out=tmp_path / "run", console=QUIET)
    finally:
        moved.rename(labelled)
    run = Run(tmp_path / "run")
    with pytest.raises(UserError, match="moved"):
        fullrank.pretrain(resume=run.path, console=QUIET)
    fullrank.pretrain(resume=run.path, labelled=labelled, console=QUIET)
    assert Run(run.path).metrics.online == scored.metrics.online


def test_epochs_choose_the_marks(small, labelled, tmp_path):
    output = io.StringIO()
    recipe = replace(small, epochs=1, batch_size=512, probe=replace(small.probe, epochs=(1.0,)))
    run = fullrank.pretrain(recipe, labelled=labelled, out=tmp_path / "run", console=Console(file=output, width=400))
    assert [row.epoch for row in run.metrics.online] == [0.0, 1.0]
    assert "epoch 1: a linear probe classifies" in output.getvalue()


def test_a_source_without_labels_is_refused_before_training(small, labelled, tmp_path):
    with pytest.raises(UserError, match=r"--labelled .* nothing can be scored: .* have no labels"):
        fullrank.pretrain(small, labelled=labelled / "train" / "0", out=tmp_path / "run", console=QUIET)
    assert not (tmp_path / "run").exists()
