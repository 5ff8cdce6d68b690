"""A run that is stopped and resumed equals an uninterrupted run bit for bit."""

import re
import shutil
import signal
from contextlib import contextmanager
from dataclasses import replace

import pytest
from rich.console import Console

import fullrank
from fullrank.cli import main
from fullrank.errors import UserError
from fullrank.methods import BackboneConfig, ProjectorConfig
from fullrank.monitoring.run_logger import RunLogger
from fullrank.recipes import DataConfig, Recipe, with_objective
from fullrank.run import Run
from fullrank.training import OptimizerConfig, ScheduleConfig
from fullrank.views import ViewConfig

QUIET = Console(quiet=True)


class PowerCut(BaseException):
    """Raised to end the run like a killed process."""


@contextmanager
def power_cut(monkeypatch, *, after):
    """End the run inside the context between two steps, with its log written and no checkpoint."""
    after_step = RunLogger.after_step

    def cut(self, step, **keywords):
        after_step(self, step, **keywords)
        if step.step == after:
            raise PowerCut

    with monkeypatch.context() as patch:
        patch.setattr(RunLogger, "after_step", cut)
        with pytest.raises(PowerCut):
            yield


def test_a_run_is_bitwise_equal_after_sigterm_and_kill(run, recipe_json, tmp_path, start, stop, assert_same):
    path = tmp_path / "run"
    status, err = stop(start(recipe_json, "--out", path), path, 4, signal.SIGTERM)
    assert status == 143
    last = err.splitlines()[-1]
    assert re.fullmatch(rf"fullrank: stopped after step \d+ of 22; continue with: fullrank pretrain --resume {path}", last)
    assert 4 <= Run(path).checkpoint().step < 22
    status, _ = stop(start("--resume", path), path, 13, signal.SIGKILL)
    assert status == -signal.SIGKILL
    assert max(row.step for row in Run(path).metrics) > Run(path).checkpoint().step  # steps that are taken again
    fullrank.pretrain(resume=path, console=QUIET)
    assert_same(run.path, path)


@pytest.mark.parametrize("objective", ["moco", "dino"])
def test_teachers_queues_prototypes_and_centres_are_resumed(objective, small, train, tmp_path, monkeypatch, assert_same):
    recipe = replace(with_objective(small, objective), epochs=1)
    with power_cut(monkeypatch, after=7):
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
        backbone=BackboneConfig(name="resnet18", arguments={"channels": [8, 8, 16, 16], "layers": [1, 1, 1, 1]}, stem="small"),
        projector=ProjectorConfig(widths=(16,)),
        optimizer=OptimizerConfig(name="sgd", lr=0.05),
        schedule=ScheduleConfig(warmup=1.0),
        epochs=6,
        batch_size=16,
        checkpoints=5,
        log_every=1,
    )


def test_a_killed_run_from_disk_is_bitwise_equal_for_any_number_of_workers(on_disk, train, tmp_path, start, stop, assert_same):
    whole = train(replace(on_disk, data=replace(on_disk.data, workers=0)), tmp_path / "whole")
    recipe_json = tmp_path / "on_disk.json"
    path = tmp_path / "run"
    recipe_json.write_text((whole.path / "recipe.json").read_text().replace('"workers": 0', '"workers": 1'))
    status, _ = stop(start(recipe_json, "--out", path), path, 9, signal.SIGKILL)
    assert status == -signal.SIGKILL
    fullrank.pretrain(resume=path, console=QUIET)
    assert Run(path).recipe.data.workers == 1
    assert_same(whole.path, path)


@pytest.mark.parametrize("precision", ["auto", "64-true"])
def test_dropout_continues_with_the_same_random_numbers(precision, small, train, tmp_path, monkeypatch, assert_same):
    arguments = small.backbone.arguments | {"drop_rate": 0.2, "drop_path_rate": 0.3}
    backbone, machine = replace(small.backbone, arguments=arguments), replace(small.machine, precision=precision)
    dropping = replace(small, epochs=1, checkpoints=3, backbone=backbone, machine=machine)
    whole = train(dropping, tmp_path / "whole")
    with power_cut(monkeypatch, after=6):
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


def test_a_run_that_was_stopped_before_its_first_checkpoint_starts_again(run, small, train, tmp_path, monkeypatch, assert_same):
    with power_cut(monkeypatch, after=3):
        train(small, tmp_path / "run")
    assert Run(tmp_path / "run").checkpoints == []
    fullrank.pretrain(resume=tmp_path / "run", console=QUIET)
    assert_same(run.path, tmp_path / "run")


def test_resuming_a_finished_run_changes_nothing(run, copy, assert_same):
    fullrank.pretrain(resume=copy, console=QUIET)
    assert_same(run.path, copy)


def test_an_incomplete_last_row_is_dropped(run, copy, assert_same):
    shutil.rmtree(run_step(copy, 22))
    with (copy / "metrics.jsonl").open("a") as log:
        log.write('{"step": 23, "ki')
    fullrank.pretrain(resume=copy, console=QUIET)
    assert_same(run.path, copy)


def test_the_durations_of_all_parts_are_added(copy):
    before = Run(copy).path.joinpath("environment.json").read_text()
    shutil.rmtree(run_step(copy, 22))
    fullrank.pretrain(resume=copy, console=QUIET)
    seconds = [float(re.search(r'"duration_seconds": ([\d.]+)', text)[1]) for text in (before, (copy / "environment.json").read_text())]
    assert seconds[1] > seconds[0]


def test_resume_accepts_the_recipe_of_the_run(run, copy, small):
    assert fullrank.pretrain(small, resume=copy, console=QUIET).path == copy


def test_a_run_continues_on_the_devices_of_the_given_recipe(run, copy, small, assert_same):
    path = copy / "recipe.json"
    path.write_text(path.read_text().replace('"devices": 1', '"devices": 2'))
    shutil.rmtree(run_step(copy, 22))
    fullrank.pretrain(small, resume=copy, console=QUIET)  # which asks for one
    assert_same(run.path, copy)


def test_another_recipe_is_an_error_that_lists_the_differences(copy, small):
    other = replace(small, epochs=3, optimizer=replace(small.optimizer, lr=0.5))
    with pytest.raises(UserError, match=r"another recipe \(epochs 2 → 3; optimizer\.lr 0\.005 → 0\.5\); resume without a recipe"):
        fullrank.pretrain(other, resume=copy, console=QUIET)


def test_an_edited_recipe_is_an_error(copy):
    path = copy / "recipe.json"
    path.write_text(path.read_text().replace('"epochs": 2', '"epochs": 3'))
    with pytest.raises(UserError, match=r"step-00000022 belongs to another recipe than .*recipe\.json; restore that file"):
        fullrank.pretrain(resume=copy, console=QUIET)


def test_missing_images_are_an_error(on_disk, photos, train, tmp_path):
    shutil.copytree(photos, tmp_path / "photos")
    data = replace(on_disk.data, source=str(tmp_path / "photos"), workers=0)
    run = train(replace(on_disk, data=data, epochs=1), tmp_path / "run")
    for path in (tmp_path / "photos" / "cat").iterdir():
        path.unlink()
    with pytest.raises(UserError, match=r"trained on 48 images, but .*photos now has 24; "):
        fullrank.pretrain(resume=run.path, console=QUIET)


@pytest.mark.parametrize(("file", "length"), [("model.safetensors", 1000), ("state.pt", 1000), ("meta.json", 5)])
def test_a_damaged_checkpoint_is_named_and_the_previous_one_can_be_resumed(run, copy, file, length, assert_same):
    damaged = run_step(copy, 22) / file
    damaged.write_bytes(damaged.read_bytes()[:length])
    with pytest.raises(UserError, match=rf"step-00000022/{file} cannot be read .* remove this folder"):
        fullrank.pretrain(resume=copy, console=QUIET)
    shutil.rmtree(damaged.parent)
    fullrank.pretrain(resume=copy, console=QUIET)
    assert_same(run.path, copy)


def test_a_damaged_log_is_an_error_with_its_line_and_is_not_changed(copy):
    path = copy / "metrics.jsonl"
    lines = path.read_text().splitlines()
    lines[6] = lines[6][:20]
    path.write_text(text := "\n".join(lines) + "\n")
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 7: .* fix or remove the line"):
        fullrank.pretrain(resume=copy, console=QUIET)
    assert path.read_text() == text


def run_step(path, step):
    return path / "checkpoints" / f"step-{step:08d}"
