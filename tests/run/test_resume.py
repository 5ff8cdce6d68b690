"""A run that is stopped and resumed equals an uninterrupted run bit for bit."""

import io
import json
import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from rich.console import Console

import fullrank
from fullrank.cli import main
from fullrank.errors import UserError
from fullrank.methods import BackboneConfig, ProjectorConfig
from fullrank.recipes import DataConfig, Recipe, with_objective
from fullrank.run import Run
from fullrank.run.logger import RunLogger
from fullrank.training import OptimizerConfig, ScheduleConfig, lr_factor
from fullrank.views import ViewConfig

QUIET = Console(quiet=True)


def test_a_run_is_bitwise_equal_after_sigterm_and_kill(run, recipe_json, tmp_path, start, stop, assert_same):
    path = tmp_path / "run"
    status, err = stop(start(recipe_json, "--out", path), path, 4, signal.SIGTERM)
    assert status == 143
    last = err.splitlines()[-1]
    assert re.fullmatch(
        rf"fullrank: stopped after step \d+ of 22; continue with: fullrank pretrain --resume {path}", last
    )
    assert 4 <= Run(path).checkpoint().step < 22
    status, _ = stop(start("--resume", path), path, 13, signal.SIGKILL)
    assert status == -signal.SIGKILL
    assert max(row.step for row in Run(path).metrics) > Run(path).checkpoint().step  # steps that are taken again
    fullrank.pretrain(resume=path, console=QUIET)
    assert_same(run.path, path)


@pytest.mark.parametrize(
    ("objective", "method", "optimizer"),
    [
        ("moco", {}, {"name": "adam", "beta2": 0.95, "decay_all": True}),
        ("dino", {"temperature_warmup": 0.8, "freeze": 0.3}, {"clip_norm": 0.5, "last_weight_decay": 0.4}),
        ("simsiam", {}, {"name": "sgd", "constant_predictor": True, "layer_decay": 0.8}),
    ],
)
def test_teachers_queues_prototypes_schedules_and_rates_are_resumed(
    objective, method, optimizer, small, train, tmp_path, power_cut, assert_same
):
    recipe = replace(
        with_objective(small, objective), epochs=1, method=method, optimizer=replace(small.optimizer, **optimizer)
    )
    with power_cut(after=7):
        fullrank.pretrain(recipe, out=tmp_path / "run", console=QUIET)
    assert Run(tmp_path / "run").checkpoint().step == 6
    fullrank.pretrain(resume=tmp_path / "run", console=QUIET)
    assert_same(train(recipe).path, tmp_path / "run")


@pytest.fixture(scope="module")
def on_disk(photos):
    """A recipe of 18 steps on a folder; a worker decodes the images at each step."""
    return Recipe(
        data=DataConfig(source=str(photos), storage="disk", workers=1, mean=(0.5, 0.5, 0.5), std=(0.3, 0.3, 0.3)),
        views=(ViewConfig(size=16),),
        backbone=BackboneConfig(
            name="resnet18", arguments={"channels": [8, 8, 16, 16], "layers": [1, 1, 1, 1]}, stem="small"
        ),
        projector=ProjectorConfig(widths=(16,)),
        optimizer=OptimizerConfig(name="sgd", lr=0.05),
        schedule=ScheduleConfig(warmup=1.0),
        epochs=6,
        batch_size=16,
        checkpoints=5,
        log_every=1,
    )


def test_a_killed_run_from_disk_is_bitwise_equal_for_any_number_of_workers(
    on_disk, train, tmp_path, start, stop, assert_same
):
    whole = train(replace(on_disk, data=replace(on_disk.data, workers=0)), tmp_path / "whole")
    recipe_json = tmp_path / "on_disk.json"
    path = tmp_path / "run"
    recipe_json.write_text((whole.path / "recipe.json").read_text().replace('"workers": 0', '"workers": 1'))
    status, _ = stop(start(recipe_json, "--out", path), path, 9, signal.SIGKILL)
    assert status == -signal.SIGKILL
    fullrank.pretrain(resume=path, console=QUIET)
    assert Run(path).recipe.data.workers == 1
    assert_same(whole.path, path)


@pytest.mark.parametrize("precision", ["64-true"])
def test_dropout_continues_with_the_same_random_numbers(precision, small, train, tmp_path, power_cut, assert_same):
    arguments = small.backbone.arguments | {"drop_rate": 0.2, "drop_path_rate": 0.3}
    backbone, machine = replace(small.backbone, arguments=arguments), replace(small.machine, precision=precision)
    dropping = replace(small, epochs=1, checkpoints=3, backbone=backbone, machine=machine)
    whole = train(dropping, tmp_path / "whole")
    with power_cut(after=6):
        train(dropping, tmp_path / "run")
    assert Run(tmp_path / "run").checkpoint().step == 4
    fullrank.pretrain(resume=tmp_path / "run", console=QUIET)
    assert_same(whole.path, tmp_path / "run")
    layers = {type(layer).__name__ for layer in fullrank.load(whole.path).backbone.modules()}
    assert "DropPath" in layers, "the backbone has no dropout, so that the test shows nothing"


@pytest.mark.parametrize(("signum", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_between_two_steps_with_the_command_to_continue(
    signum, expected, run, recipe_json, tmp_path, monkeypatch, capsys, assert_same
):
    path = tmp_path / "a run"
    after_step = RunLogger.after_step

    def interrupted(self, step, **keywords):
        after_step(self, step, **keywords)
        if step.step == 9:
            signal.raise_signal(signum)

    with monkeypatch.context() as patch:
        patch.setattr(RunLogger, "after_step", interrupted)
        assert main(["pretrain", str(recipe_json), "--out", str(path)]) == expected
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == f"fullrank: stopped after step 9 of 22; continue with: fullrank pretrain --resume '{path}'"
    assert Run(path).checkpoint().step == 9
    assert main(["pretrain", "--resume", str(path)]) == 0
    assert_same(run.path, path)
    assert (path / "report.html").exists()


def test_a_run_that_was_stopped_before_its_first_checkpoint_starts_again(
    run, small, train, tmp_path, power_cut, assert_same
):
    with power_cut(after=3):
        train(small, tmp_path / "run")
    assert Run(tmp_path / "run").checkpoints == []
    fullrank.pretrain(resume=tmp_path / "run", console=QUIET)
    assert_same(run.path, tmp_path / "run")


def test_another_recipe_is_an_error_that_lists_the_differences(copy, small):
    other = replace(small, epochs=3, optimizer=replace(small.optimizer, lr=0.5))
    with pytest.raises(
        UserError, match=r"another recipe \(epochs 2 → 3; optimizer\.lr 0\.005 → 0\.5\); resume without a recipe"
    ):
        fullrank.pretrain(other, resume=copy, console=QUIET)


@pytest.mark.parametrize(("file", "length"), [("model.safetensors", 1000), ("meta.json", 5)])
def test_a_damaged_checkpoint_is_named_and_the_previous_one_can_be_resumed(run, copy, file, length, assert_same):
    damaged = run_step(copy, 22) / file
    damaged.write_bytes(damaged.read_bytes()[:length])
    with pytest.raises(UserError, match=rf"step-00000022/{file} cannot be read .*; remove this folder"):
        fullrank.pretrain(resume=copy, console=QUIET)
    shutil.rmtree(damaged.parent)
    fullrank.pretrain(resume=copy, console=QUIET)
    assert_same(run.path, copy)


def same_weights(one, other):
    one, other = one.checkpoint().weights(), other.checkpoint().weights()
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def resume(path, **keywords):
    """Resume a run and return what it printed, without the progress."""
    output = io.StringIO()
    fullrank.pretrain(resume=path, console=Console(file=output, width=1000), **keywords)
    return output.getvalue()


def test_nothing_is_said_if_nothing_has_changed(copy):
    shutil.rmtree(run_step(copy, 22))
    (line, *_) = resume(copy).splitlines()
    assert line.startswith("digits has no test split")
    assert not re.search(r"lost|missing|instead|rounding|again", resume(copy))


def test_more_epochs_continue_a_finished_run(run, copy, small):
    text = resume(copy, epochs=3)
    assert "now has 3 epochs instead of 2" in text
    longer = Run(copy)
    assert (longer.recipe.epochs, longer.checkpoint().step) == (3, 33)
    rows = {row.step: row for row in longer.metrics.train}
    assert [rows[step] for step in range(1, 23)] == run.metrics.train
    total = 33
    for step in (23, 33):  # the learning rate of a run of three epochs
        assert rows[step].lr == small.optimizer.lr * lr_factor(
            small.schedule, step - 1, steps_per_epoch=11, total=total
        )
    assert "instead" not in resume(copy)
    with pytest.raises(UserError, match="already has 33 steps"):
        fullrank.pretrain(resume=copy, epochs=1, console=QUIET)


def test_fields_that_do_not_decide_the_weights_may_change(run, copy, small):
    shutil.rmtree(run_step(copy, 22))
    free = replace(small, log_every=2, keep_checkpoints=1, data=replace(small.data, workers=0))
    text = resume(copy, recipe=free)
    assert "rounding" not in text
    assert same_weights(run, Run(copy))
    assert [row.step for row in Run(copy).metrics.train][-4:] == [16, 18, 20, 22]
    assert [checkpoint.step for checkpoint in Run(copy).checkpoints] == [22]


def test_another_number_of_threads_or_micro_batch_is_said(copy, small):
    meta = run_step(copy, 22) / "meta.json"
    values = json.loads(meta.read_text())
    values["rounding"] |= {"threads": 64, "torch": "1.0"}
    meta.write_text(json.dumps(values))
    (line,) = (line for line in resume(copy).splitlines() if "rounding" in line)
    assert "threads 64 → " in line
    assert "torch 1.0 → " in line


def test_resume_or_start_starts_continues_and_refuses_another_recipe(run, small, tmp_path, power_cut, assert_same):
    path = tmp_path / "run"
    with power_cut(after=13):
        fullrank.pretrain(small, out=path, resume_or_start=True, console=QUIET)
    assert Run(path).checkpoint().step == 11
    for _ in range(2):
        fullrank.pretrain(small, out=path, resume_or_start=True, console=QUIET)
        assert_same(run.path, path)
    with pytest.raises(UserError, match=r"another recipe \(epochs 2 → 3\)"):
        fullrank.pretrain(replace(small, epochs=3), out=path, resume_or_start=True, console=QUIET)


def test_images_that_have_moved_are_found_again(on_disk, photos, train, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    shutil.copytree(photos, tmp_path / "here" / "photos")
    monkeypatch.chdir(tmp_path / "here")
    recipe = replace(on_disk, data=replace(on_disk.data, source="photos", workers=0), epochs=1)
    run = train(recipe, tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    fullrank.pretrain(resume=run.path, console=QUIET)  # in another working directory
    (tmp_path / "here").rename(tmp_path / "there")
    with pytest.raises(UserError, match="no file or folder"):
        fullrank.pretrain(resume=run.path, console=QUIET)
    fullrank.pretrain(resume=run.path, data="there/photos", epochs=2, console=QUIET)
    assert Run(run.path).recipe.data.source == str(tmp_path / "there" / "photos")
    assert Run(run.path).checkpoint().step == 6


def test_other_images_are_an_error(on_disk, photos, train, tmp_path):
    folder = Path(shutil.copytree(photos, tmp_path / "photos"))
    for storage in ("disk", "memory"):
        data = replace(
            on_disk.data, source=str(folder), workers=0, storage=storage, size=24 if storage == "memory" else 0
        )
        run = train(replace(on_disk, data=data, epochs=1), tmp_path / storage)
        names = Run(run.path).checkpoint().meta()["fingerprint"]
        assert names["count"] == 48
        for change in CHANGES:
            changed = Path(shutil.copytree(folder, tmp_path / "changed"))
            change(changed)
            with pytest.raises(UserError, match="has other images than those"):
                fullrank.pretrain(resume=run.path, data=str(changed), console=QUIET)
            shutil.rmtree(changed)


def new_pixels(folder):
    for path in sorted(folder.rglob("*.png"))[:20]:
        Image.new("RGB", (24, 24)).save(path)


def rename_files(folder):
    for path in sorted(folder.rglob("*.png")):
        path.rename(path.with_name(f"x{path.name}"))


def rename_class(folder):
    (folder / "dog").rename(folder / "wolf")


CHANGES = (new_pixels, rename_files, rename_class)


def run_step(path, step):
    return path / "checkpoints" / f"step-{step:08d}"
