"""A run that is stopped and resumed equals an uninterrupted run bit for bit."""

import io
import json
import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from rich.console import Console

import fullrank
from fullrank.cli import main
from fullrank.errors import UserError
from fullrank.methods import BackboneConfig, ProjectorConfig
from fullrank.recipes import DataConfig, Recipe, to_dict, with_fields, with_objective
from fullrank.run import Run
from fullrank.run.logger import RunLogger
from fullrank.run.resume import restore_stream
from fullrank.training import OptimizerConfig, ScheduleConfig, lr_factor, save_checkpoint
from fullrank.views import ViewConfig

QUIET = Console(quiet=True)
NETWORK = {"channels": [8, 8, 16, 16], "layers": [1, 1, 1, 1]}


def resume(path, **keywords):
    """Resume a run and return what it printed, without the progress."""
    output = io.StringIO()
    fullrank.pretrain(resume=path, console=Console(file=output, width=1000), **keywords)
    return output.getvalue()


def test_where_a_stream_goes_on(tmp_path, monkeypatch, untyped):
    stream = {"datasets": "4.0.0", "files": 2}
    meta = {"stream": stream, "pass_ends": [[30], [40, 45]]}
    checkpoint = save_checkpoint(tmp_path, 10, weights={}, state={}, meta=meta)
    recipe, data = Recipe(batch_size=10), SimpleNamespace(stream=stream, pass_ends=[])
    monkeypatch.setattr("fullrank.run.resume.world_size", lambda: 2)
    for rank, ends, again in ((0, [30], 20), (1, [40, 45], 5)):
        monkeypatch.setattr("fullrank.run.resume.rank", lambda rank=rank: rank)
        (line,) = restore_stream(checkpoint, recipe, data)
        assert data.pass_ends == ends
        assert f"first reads {again} images" in line
    monkeypatch.setattr("fullrank.run.resume.world_size", lambda: 1)
    data.stream = stream | {"files": 3}
    changed, _ = restore_stream(checkpoint, recipe, data)
    assert changed == "the stream has another order: files 2 → 3"
    assert data.pass_ends == [100, 100, 100]  # the fourth pass begins after the 100 images so far
    damaged = save_checkpoint(tmp_path, 20, weights={}, state={}, meta=meta | {"pass_ends": None})
    with pytest.raises(UserError, match=r"pass_ends: got None, .*remove this folder to use the previous checkpoint"):
        restore_stream(damaged, recipe, data)


def run_step(path, step):
    return path / "checkpoints" / f"step-{step:08d}"


def same_weights(one, other):
    one, other = one.checkpoint().weights(), other.checkpoint().weights()
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


CHANGES = {
    "moco": {"optimizer.name": "adam", "optimizer.beta2": 0.95, "optimizer.decay_all": True},
    "dino": {
        **{"optimizer.clip_norm": 0.5, "optimizer.last_weight_decay": 0.4},
        "method": {"temperature_warmup": 0.8, "freeze": 0.3},
    },
    "simsiam": {
        **{"optimizer.name": "sgd", "optimizer.constant_predictor": True, "optimizer.layer_decay": 0.8},
        **{"backbone.arguments": NETWORK | {"drop_rate": 0.2, "drop_path_rate": 0.3}, "machine.precision": "64-true"},
    },
}


@pytest.mark.parametrize("objective", CHANGES)
def test_the_state_of_every_part_is_resumed(objective, small, train, tmp_path, power_cut, assert_same):
    recipe = with_fields(with_objective(small, objective), CHANGES[objective] | {"epochs": 1, "batch_size": 256})
    with power_cut(after=3):
        train(recipe, tmp_path / "run")
    assert Run(tmp_path / "run").checkpoint().step == 2
    resume(tmp_path / "run")
    assert_same(train(recipe).path, tmp_path / "run")


@pytest.fixture(scope="module")
def on_disk(photos):
    """A recipe of 9 steps on a folder, whose images are decoded at each step."""
    return Recipe(
        data=DataConfig(source=str(photos), storage="disk", workers=0, mean=(0.5, 0.5, 0.5), std=(0.3, 0.3, 0.3)),
        views=(ViewConfig(size=16),),
        backbone=BackboneConfig(arguments=NETWORK, stem="small"),
        projector=ProjectorConfig(widths=(16,)),
        optimizer=OptimizerConfig(name="sgd", lr=0.05),
        schedule=ScheduleConfig(warmup=1.0),
        epochs=3,
        batch_size=16,
        checkpoints=3,
        log_every=1,
    )


def test_a_run_from_disk_is_bitwise_equal_for_any_number_of_workers(on_disk, train, tmp_path, power_cut, assert_same):
    with power_cut(after=5):
        train(replace(on_disk, data=replace(on_disk.data, workers=1)), tmp_path / "run")
    resume(tmp_path / "run")
    assert Run(tmp_path / "run").recipe.data.workers == 1
    assert_same(train(on_disk).path, tmp_path / "run")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_folder_that_vanishes_is_one_line_and_the_run_goes_on_when_it_is_back(
    workers, on_disk, photos, train, tmp_path, monkeypatch, capsys, assert_same
):
    folder, away, path = Path(shutil.copytree(photos, tmp_path / "photos")), tmp_path / "away", tmp_path / "run"
    recipe = replace(on_disk, data=replace(on_disk.data, source=str(folder), workers=workers))
    (tmp_path / "recipe.json").write_text(json.dumps(to_dict(recipe)))
    after_step = RunLogger.after_step

    def vanish(self, step):
        after_step(self, step)
        if step.step == 5:
            folder.rename(away)

    with monkeypatch.context() as patch:
        patch.setattr(RunLogger, "after_step", vanish)
        assert main(["pretrain", str(tmp_path / "recipe.json"), "--out", str(path)]) == 2
    out, err = capsys.readouterr()
    *_, line = err.splitlines()
    assert re.fullmatch(r"fullrank: 100 consecutive images of \S+/photos\S* cannot be read, .*--resume", line)
    assert "Traceback" not in out + err
    assert Run(path).checkpoint().step in (3, 6), "a worker may have read the next batches before"
    assert main(["pretrain", "--resume", str(path)]) == 2, "the folder is still away"
    away.rename(folder)
    assert main(["pretrain", "--resume", str(path)]) == 0
    assert_same(train(recipe).path, path)


def test_a_signal_stops_between_two_steps(run, recipe_json, tmp_path, monkeypatch, capsys, assert_same):
    """The last line is the command to continue."""
    path, after_step = tmp_path / "a run", RunLogger.after_step

    def interrupted(self, step):
        after_step(self, step)
        if step.step == 9:
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(RunLogger, "after_step", interrupted)
        assert main(["pretrain", str(recipe_json), "--out", str(path)]) == 128 + signal.SIGTERM
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == f"fullrank: stopped after step 9 of 22; continue with: fullrank pretrain --resume '{path}'"
    assert Run(path).checkpoint().step == 9
    assert main(["pretrain", "--resume", str(path)]) == 0
    assert_same(run.path, path)
    assert (path / "report.html").exists()


def test_another_recipe_is_an_error_that_lists_the_differences(copy, small):
    other = replace(small, epochs=3, optimizer=replace(small.optimizer, lr=0.5))
    with pytest.raises(UserError, match=r"another recipe \(epochs 2 → 3; optimizer\.lr 0\.005 → 0\.5\); resume"):
        fullrank.pretrain(other, resume=copy, console=QUIET)


def test_a_damaged_checkpoint_is_named_and_the_previous_one_can_be_resumed(run, copy, assert_same):
    damaged = run_step(copy, 22) / "model.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:1000])
    with pytest.raises(UserError, match=r"step-00000022/model\.safetensors cannot be read .*; remove this folder"):
        resume(copy)
    shutil.rmtree(damaged.parent)
    text = resume(copy)
    assert_same(run.path, copy)
    assert text.startswith("digits has no test split")
    assert not re.search(r"lost|missing|instead|rounding|again", text), "nothing else has changed"


def test_more_epochs_continue_a_finished_run(run, copy, small):
    text = resume(copy, epochs=3)
    assert "now has 3 epochs instead of 2" in text
    longer = Run(copy)
    assert (longer.recipe.epochs, longer.checkpoint().step) == (3, 33)
    rows = {row.step: row for row in longer.metrics.train}
    assert [rows[step] for step in range(1, 23)] == run.metrics.train
    for step in (23, 33):  # the learning rate of a run of three epochs
        factor = lr_factor(small.schedule, step - 1, steps_per_epoch=11, total=33)
        assert rows[step].lr == small.optimizer.lr * factor
    assert "instead" not in resume(copy)
    with pytest.raises(UserError, match="already has 33 steps"):
        resume(copy, epochs=1)


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
    with power_cut(after=3):  # before the first checkpoint: the run starts again
        fullrank.pretrain(small, out=path, resume=True, console=QUIET)
    assert Run(path).checkpoints == []
    with power_cut(after=13):
        fullrank.pretrain(small, out=path, resume=True, console=QUIET)
    assert Run(path).checkpoint().step == 11
    fullrank.pretrain(small, out=path, resume=True, console=QUIET)
    assert_same(run.path, path)
    with pytest.raises(UserError, match=r"another recipe \(epochs 2 → 3\)"):
        fullrank.pretrain(replace(small, epochs=3), out=path, resume=True, console=QUIET)


def test_images_that_have_moved_are_found_again(on_disk, photos, train, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    shutil.copytree(photos, tmp_path / "here" / "photos")
    monkeypatch.chdir(tmp_path / "here")
    run = train(replace(on_disk, data=replace(on_disk.data, source="photos"), epochs=1), tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    resume(run.path)  # in another working directory
    (tmp_path / "here").rename(tmp_path / "there")
    with pytest.raises(UserError, match="no file or folder"):
        resume(run.path)
    resume(run.path, data="there/photos", epochs=2)
    assert Run(run.path).recipe.data.source == str(tmp_path / "there" / "photos")
    assert Run(run.path).checkpoint().step == 6


def new_pixels(folder):
    for path in sorted(folder.rglob("*.png"))[:20]:
        Image.new("RGB", (24, 24)).save(path)


def rename_class(folder):
    (folder / "dog").rename(folder / "wolf")


@pytest.mark.parametrize(("storage", "size", "change"), [("disk", 0, rename_class), ("memory", 24, new_pixels)])
def test_other_images_are_an_error(storage, size, change, on_disk, photos, train, tmp_path):
    run = train(replace(on_disk, data=replace(on_disk.data, storage=storage, size=size), epochs=1))
    assert run.checkpoint().meta()["fingerprint"]["count"] == 48
    changed = Path(shutil.copytree(photos, tmp_path / "changed"))
    change(changed)
    with pytest.raises(UserError, match="has other images than those"):
        resume(run.path, data=str(changed))
