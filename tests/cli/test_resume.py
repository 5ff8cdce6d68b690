"""The flags of `fullrank pretrain --resume RUN`, without training."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fullrank.run import Run


@pytest.fixture
def resumed(fullrank, monkeypatch):
    """`resumed(RUN, …)`: the recipe and the keywords with which a run is resumed."""
    from fullrank.cli import pretrain
    from fullrank.run import pretrain as pretraining

    seen = []
    monkeypatch.setattr(
        pretraining, "pretrain", lambda recipe, **keywords: seen.append((recipe, keywords)) or Run(keywords["resume"])
    )
    monkeypatch.setattr(pretrain, "finish_run", lambda path, console: None)

    def parse(path, *arguments):
        status, _, err = fullrank("pretrain", "--resume", path, *arguments)
        assert status == 0, err
        return seen.pop()

    return parse


def test_without_flags_the_stored_recipe_is_used(resumed, run):
    recipe, keywords = resumed(run.path)
    assert recipe is None
    assert {name: keywords[name] for name in ("data", "epochs", "devices", "wandb")} == {
        "data": None,
        "epochs": None,
        "devices": None,
        "wandb": False,
    }


def test_epochs_data_and_devices_may_change(resumed, run):
    recipe, keywords = resumed(run.path, "--epochs", "9", "--data", "hf:there", "--devices", "2", "--wandb")
    assert recipe is None
    assert (keywords["epochs"], keywords["data"], keywords["devices"], keywords["wandb"]) == (9, "hf:there", 2, True)


def test_flags_that_do_not_decide_the_weights_change_the_stored_recipe(resumed, run):
    recipe, _ = resumed(
        run.path, "--log_every", "7", "--keep_checkpoints", "1", "--data.workers", "3", "--machine.micro_batch", "32"
    )
    stored = run.recipe
    data, machine = replace(stored.data, workers=3), replace(stored.machine, micro_batch=32)
    assert recipe == replace(stored, log_every=7, keep_checkpoints=1, data=data, machine=machine)


def test_a_recipe_with_epochs_asks_for_that_number(resumed, recipe_json, run):
    recipe, keywords = resumed(run.path, recipe_json, "--epochs", "5")
    assert (recipe.epochs, keywords["epochs"]) == (5, 5)
    assert resumed(run.path, recipe_json)[1]["epochs"] is None


def test_other_flags_are_refused(refused, run):
    line = refused("pretrain", "--resume", run.path, "--optimizer.lr", "3")
    assert f"--resume uses the recipe stored in {run.path}" in line


def test_the_help_lists_the_flags(fullrank, run):
    status, out, _ = fullrank("pretrain", "--resume", run.path, "--help")
    assert status == 0
    for flag in ("--epochs", "--data", "--machine.micro", "--log", "--devices"):
        assert flag in out


def test_resume_or_start_continues_the_run_in_out(fullrank, recipe_json, copy):
    log = (copy / "metrics.jsonl").read_bytes()
    status, _, err = fullrank("pretrain", recipe_json, "--out", copy, "--resume-or-start")
    assert status == 0, err
    assert (copy / "metrics.jsonl").read_bytes() == log
    recipe = json.loads(Path(recipe_json).read_text())
    Path(recipe_json).write_text(json.dumps(recipe | {"seed": 9}))
    status, _, err = fullrank("pretrain", recipe_json, "--out", copy, "--resume-or-start")
    assert status == 2
    assert "another recipe (seed 0 → 9)" in err
