"""A run that is stopped and resumed equals an uninterrupted run bit for bit."""

import io
import json
import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

import fullrank
from fullrank.cli import main
from fullrank.errors import UserError
from fullrank.methods import BackboneConfig, ProjectorConfig
from fullrank.recipes import DataConfig, Recipe, SpectrumConfig, build_method, with_objective
from fullrank.run import Run
from fullrank.run.data import open_data
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
        (
            "dino",
            {"temperature_warmup": 0.8, "freeze": 0.3},
            {"clip_norm": 0.5, "last_weight_decay": 0.4, "frozen": ("conv1",)},
        ),
        ("swav", {"queue": 300, "queue_start": 0.3, "freeze": 0.2}, {}),
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


@pytest.mark.parametrize("precision", ["auto", "64-true"])
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
    after = (copy / "environment.json").read_text()
    for name in ("duration_seconds", "cpu_seconds"):
        seconds = [float(re.search(rf'"{name}": ([\d.]+)', text)[1]) for text in (before, after)]
        assert seconds[1] > seconds[0]


def test_the_cpu_seconds_of_a_run_of_an_older_version_stay_unknown(copy):
    path = copy / "environment.json"
    environment = json.loads(path.read_text())
    del environment["cpu_seconds"]
    path.write_text(json.dumps(environment))
    for _ in range(2):
        shutil.rmtree(run_step(copy, 22))
        fullrank.pretrain(resume=copy, console=QUIET)
        after = json.loads(path.read_text())
        assert after["duration_seconds"] > environment["duration_seconds"]
        assert after["cpu_seconds"] == 0


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
    with pytest.raises(
        UserError, match=r"another recipe \(epochs 2 → 3; optimizer\.lr 0\.005 → 0\.5\); resume without a recipe"
    ):
        fullrank.pretrain(other, resume=copy, console=QUIET)


def test_an_edited_recipe_is_an_error(copy):
    path = copy / "recipe.json"
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 3'))
    with pytest.raises(
        UserError, match=r"step-00000022 belongs to another recipe than .*recipe\.json; restore that file"
    ):
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
    with pytest.raises(UserError, match=rf"step-00000022/{file} cannot be read .*; remove this folder"):
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


@pytest.mark.parametrize("file", ["model.safetensors", "state.pt"])
def test_a_flipped_byte_in_a_checkpoint_is_found(copy, file):
    path = run_step(copy, 22) / file
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)
    with pytest.raises(UserError, match=rf"{file} cannot be read .*checksum.*previous checkpoint"):
        fullrank.pretrain(resume=copy, console=QUIET)
    if file == "model.safetensors":
        with pytest.raises(UserError, match="checksum"):
            fullrank.load(copy)


@pytest.mark.parametrize("damage", ["missing", "empty", "damaged"])
def test_only_recipe_and_checkpoint_are_needed(run, copy, damage, assert_same):
    shutil.rmtree(run_step(copy, 22))
    for name in (
        "environment.json",
        "metrics.jsonl",
        "spectrum.npz",
        "views.png",
        "tensorboard",
        "decode_errors.jsonl",
    ):
        path = copy / name
        if name == "tensorboard":
            shutil.rmtree(path)
        elif damage == "missing" or name == "views.png":
            path.unlink(missing_ok=True)
        else:
            path.write_text("{" if damage == "damaged" and name != "metrics.jsonl" else "")
    text = resume(copy)
    for name in ("environment.json", "metrics.jsonl", "spectrum.npz"):
        assert re.search(rf"{name} (is|was) .*(missing|empty|damaged)", text), text
    assert "steps 1 to 16 is lost" in text
    assert (copy / "views.png").exists()
    assert same_weights(run, Run(copy))
    assert [row.step for row in Run(copy).metrics.train] == list(range(17, 23))
    assert Run(copy).environment["seed"] == 0
    if damage != "missing":
        assert (copy / "spectrum.npz.damaged").exists()


def test_a_log_without_rows_is_an_error_where_it_is_read(copy):
    (copy / "metrics.jsonl").write_text("")
    with pytest.raises(UserError, match=r"metrics\.jsonl has no rows, but the run has a checkpoint of step 22"):
        _ = Run(copy).metrics


def test_a_log_or_spectra_that_end_early_are_said(copy):
    path = copy / "metrics.jsonl"
    path.write_text("".join(line for line in path.read_text().splitlines(True) if json.loads(line)["step"] <= 9))
    with np.load(copy / "spectrum.npz") as file:
        np.savez(copy / "spectrum.npz", **{name: file[name][:4] for name in file.files})
    text = resume(copy)
    assert "metrics.jsonl ends at step 9: the log of the steps 10 to 22 is lost" in text
    assert "spectrum.npz lacks 6 of the 10 spectra up to step 22" in text


def test_a_run_that_has_lost_its_checkpoints_is_not_overwritten(copy):
    log = (copy / "metrics.jsonl").read_text()
    shutil.rmtree(copy / "checkpoints")
    with pytest.raises(UserError, match=r"no checkpoint, but its log reaches step 22 .* due at step 6"):
        fullrank.pretrain(resume=copy, console=QUIET)
    assert (copy / "metrics.jsonl").read_text() == log


def test_more_epochs_continue_a_finished_run(run, copy, small):
    text = resume(copy, epochs=3)
    assert "now has 3 epochs instead of 2" in text
    assert "equals neither" in text
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


def test_more_epochs_keep_the_images_of_the_spectra(run, copy, small):
    automatic = replace(small, spectrum=SpectrumConfig(every=11))
    resume(copy, recipe=automatic, epochs=3)
    counts = {row.step: row.backbone.samples for row in Run(copy).metrics.spectrum}
    assert set(counts.values()) == {100}, "the evaluations before had 100 images"
    assert max(counts) == 33
    _, data = open_data(replace(automatic, epochs=3), build_method(automatic), notify=lambda line: None)
    assert data.plan.samples != 100, "a new run of three epochs would have other evaluations"


def test_a_run_that_was_killed_after_more_epochs_were_given_continues_with_them(copy, power_cut):
    with power_cut(after=24):
        fullrank.pretrain(resume=copy, epochs=3, console=QUIET)
    assert Run(copy).checkpoint().step == 22
    assert "now has 3 epochs instead of 2" in resume(copy)
    assert Run(copy).checkpoint().step == 33


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
    with pytest.raises(UserError, match=r"another recipe \(epochs 2 → 3\).*--epochs 3"):
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


def test_other_images_are_an_error_that_names_the_difference(on_disk, photos, train, tmp_path):
    folder = Path(shutil.copytree(photos, tmp_path / "photos"))
    for storage in ("disk", "memory"):
        data = replace(
            on_disk.data, source=str(folder), workers=0, storage=storage, size=24 if storage == "memory" else 0
        )
        run = train(replace(on_disk, data=data, epochs=1), tmp_path / storage)
        names = Run(run.path).checkpoint().meta()["fingerprint"]
        assert names["count"] == 48
        for change, message in CHANGES.items():
            changed = Path(shutil.copytree(folder, tmp_path / "changed"))
            change(changed)
            with pytest.raises(UserError, match=message):
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


CHANGES = {
    new_pixels: r"\d+ of 48( compared)? images have other (pixels|content) \(first: (cat|dog)/\d+\.png\)",
    rename_files: "files were renamed",
    rename_class: "classes renamed dog → wolf",
}


def run_step(path, step):
    return path / "checkpoints" / f"step-{step:08d}"
