"""`hours`: the epochs that fit into a time."""

from dataclasses import replace

import pytest
from rich.console import Console

from fullrank.cli import main
from fullrank.errors import UserError
from fullrank.run import Run
from fullrank.run import pretrain as pretraining
from fullrank.run.time_budget import REST, epochs_within

QUIET = Console(quiet=True)


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    monkeypatch.setattr(time_budget, "STEPS", 2)


@pytest.mark.parametrize(("hours", "seconds", "steps"), [(1.0, 0.7, 33), (12.0, 0.05, 1000), (0.5, 3.0, 7)])
def test_the_epochs_fit_and_one_more_would_not(hours, seconds, steps):
    epochs = epochs_within(hours, seconds, steps)
    assert epochs * steps * seconds * REST <= hours * 3600 < (epochs + 1) * steps * seconds * REST


def test_a_measured_run_equals_a_run_of_the_chosen_epochs(small, tmp_path, monkeypatch, assert_same):
    """The measurement trains a copy: neither weights nor random numbers nor the evaluations of the run depend on it."""
    recipe = replace(
        small,
        batch_size=512,
        backbone=replace(small.backbone, arguments={"channels": [8, 8, 8, 8], "layers": [1, 1, 1, 1]}),
    )
    measured = pretraining.measure_step
    found = []

    def measure(*arguments):
        found.append(measured(*arguments))
        return 4.0

    monkeypatch.setattr(pretraining, "measure_step", measure)
    by_hours = pretrain(recipe, hours=2 * 4.0 * REST / 3600 + 1e-4, out=tmp_path / "hours", console=QUIET)
    assert by_hours.recipe.epochs == 1 != recipe.epochs
    assert 0 < found[0] < 4.0
    assert_same(by_hours.path, pretrain(recipe, epochs=1, out=tmp_path / "epochs", console=QUIET).path)
    again = pretrain(recipe, hours=100.0, out=tmp_path / "hours", resume_or_start=True, console=QUIET)
    assert (again.recipe.epochs, len(found)) == (1, 1)


def test_a_run_that_continues_pretraining_has_its_short_warmup_for_the_chosen_epochs_too(
    run, small, tmp_path, monkeypatch
):
    monkeypatch.setattr(pretraining, "measure_step", lambda recipe, *_: 4.0)
    steps = 4
    recipe = replace(small, epochs=1000, batch_size=256, schedule=replace(small.schedule, warmup=10.0))
    chosen = pretrain(
        recipe, init=run.path, hours=2.5 * steps * 4.0 * REST / 3600, out=tmp_path / "run", console=QUIET
    ).recipe
    assert 1 < chosen.epochs < 10
    assert chosen.schedule.warmup == chosen.epochs / 40


def test_hours_and_epochs_exclude_each_other(run, small, tmp_path, capsys):
    for arguments in ({"epochs": 3}, {"resume": run.path}):
        with pytest.raises(UserError, match="cannot be combined"):
            pretrain(None if "resume" in arguments else small, hours=1.0, **arguments)
    for hours in (0.0, -1.0, float("nan"), 1e9):
        with pytest.raises(UserError, match="expected a number above 0"):
            pretrain(small, hours=hours, out=tmp_path / "run", console=QUIET)
    assert not (tmp_path / "run").exists()
    assert main(["pretrain", "digits", "--hours", "1", "--epochs", "3"]) == 2
    assert "cannot be combined with --epochs" in capsys.readouterr().err


def test_the_command_line_prints_the_epochs(tmp_path, capsys):
    flags = ["--backbone.name", "test_resnet", "--batch_size", "512", "--hours", "1e-5", "--projector.widths", "16"]
    assert main(["pretrain", "digits", "--out", str(tmp_path / "run"), *flags]) == 0
    assert "--hours 1e-05: --epochs 1, of 2 steps" in capsys.readouterr().err
    assert Run(tmp_path / "run").recipe.epochs == 1
