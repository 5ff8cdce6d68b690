"""Mistakes of the user: exit status 2, one line on standard error with received, expected and remedy, and nothing
overwritten."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fullrank as package
from fullrank.run import Run
from fullrank.run.logger import RunLogger


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def tree(path):
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("digit", "'digit' is neither a recipe nor a path that exists; expected a recipe (digits, "),
        ("digit", "; did you mean 'digits'?"),
        ("digits --objective vicregg", "unknown objective 'vicregg'; choose from "),
        ("digits --objective vicregg", "; did you mean 'vicreg'?"),
        ("digits --objective", "--objective has no value; see"),
        (
            "digits --backbone.name resnet81",
            "unknown backbone 'resnet81'; choose a timm model such as resnet18; did you mean 'resnet18'?",
        ),
        (
            "digits --backbone.name resnet18d --backbone.stem small",
            "backbone.stem 'small' needs one of timm's plain ResNets, got backbone 'resnet18d'",
        ),
        ("digits --optimizer.lrr 3", "unrecognized options: --optimizer.lrr, 3; did you mean --optimizer.lr FLOAT"),
        ("digits --lr 3", "did you mean --optimizer.lr?"),
        ("digits --backbone=resnet50", "did you mean --backbone.name?"),
        ("digits --batch 64", "did you mean --batch_size?"),
        ("digits --init imagenet", "expected RUN, RUN@STEP, timm:NAME"),
        ("digits --pretrained imagenet", "did you mean --init MODEL"),
        ("digits --backbone.name vit_tiny_patch16_224", "backbone 'vit_tiny_patch16_224' fails on views of 8 px"),
        ("digits --out=", "--out is empty, expected a value"),
        ("digits --epochs 99999999999999999999", "epochs"),
        ("digits --hyper.covariance 4", "unrecognized options: --hyper.covariance, 4"),
        ("digits again", "unrecognized options: again; see fullrank pretrain digits --help"),
        ("digits --epochs many", "invalid literal for int() with base 10: 'many'; expected --epochs INT"),
        ("digits --epochs", "missing value for argument '--epochs'"),
        ("digits --optimizer.lr fast", "could not convert string to float: 'fast'; expected --optimizer.lr FLOAT"),
        (
            "digits --optimizer.name lamb",
            "invalid choice 'lamb' for argument '--optimizer.name'. Expected one of ('lars', 'sgd', 'adam', ",
        ),
        ("digits --views.0.crop.scale 0.2", "missing value for argument '--views.0.crop.scale'. Expected 2 values"),
        ("digits --backbone.arguments [1]", "[1] is not a JSON object; expected --backbone.arguments JSON"),
        ("digits --backbone.arguments {bad", "expected --backbone.arguments JSON"),
        (
            'digits --backbone.arguments {"channelz":3}',
            "unexpected keyword argument 'channelz'); fix backbone.arguments",
        ),
        (
            "--epochs 3",
            "the first argument must be a recipe or a path, got --epochs; for example: fullrank pretrain digits --epochs …",
        ),
        (
            "no/such/folder",
            "'no/such/folder' is neither a recipe nor a path that exists; expected images in a folder, a Parquet file",
        ),
        ("no/such/folder", "for example: fullrank pretrain path/to/photos"),
        ("./textz", "the nearest existing name is 'texts'"),
        ("digits --objectiv vicreg", "unrecognized options: --objectiv; did you mean --objective?"),
        ("digits --optimizer.lr nan", "optimizer.lr: got nan, expected float from 0 to 1000000; change --optimizer.lr"),
        ("digits --data no/such/folder", "no file or folder 'no/such/folder'"),
        ("digits --data hff:cifar", "unknown source 'hff:' in 'hff:cifar'"),
        ("digits --split trian", "unknown split of digits 'trian'; choose from all"),
        ("empty", "folder 'empty' is empty: contains no images"),
        ("texts", "folder 'texts' contains no images (.avif"),
        ("texts", "give a folder with such files"),
        ("texts/a.txt", "'texts/a.txt' is a file; give a folder of images"),
        (
            "digits --batch_size 5000 --optimizer.lr 0.005 --hyper.invariance 2",
            "there are only 1438 training images; set --batch_size 719, or add images",
        ),
        ("digits --batch_size 1", "batch_size: got 1, expected int from 2"),
        ("digits --views.0.count 1", "the number of views per image is 1, expected at least 2; give --views.0.count 2"),
        ("cifar10-vicreg --views.0.count 3", "objective 'vicreg' takes exactly 2 views, got 3; change --views.0.count"),
        ("digits --machine.accelerator tpu9", "--machine.accelerator tpu9 is not available on this machine"),
        ("digits --machine.devices 0", "machine.devices: got 0, expected int from 1"),
        ("digits --devices 100000", "100000 devices"),
        ("digits --devices 0", "machine.devices: got 0, expected int from 1"),
        ("digits --devices two", "error parsing --devices"),
        ("digits --data.storage streaming", "set the number of images per epoch with --data.num_images"),
        (
            "digits --data.storage streaming --data.num_images 9",
            "'digits' cannot be streamed, only hf:NAME and Parquet",
        ),
        (
            "digits --out texts",
            "texts already contains other files, and only a run can be overwritten; give another --out",
        ),
        ("digits --out texts --overwrite", "texts already contains other files"),
        ("digits --out texts/a.txt", "texts/a.txt is a file, expected a folder or a new path; give another --out"),
        (
            "digits --out texts/a.txt/run",
            "cannot write the run directory texts/a.txt/run (texts/a.txt is a file); give a writable --out",
        ),
        ("--resume", "--resume has no value; see"),
        (
            "--resume nowhere",
            "no run at nowhere: it has no recipe.json; give the folder that `fullrank pretrain` wrote",
        ),
        ("--resume texts --epochs 9", "no run at texts"),
        (
            "--resume texts --optimizer.lr 9",
            "--resume uses the recipe stored in texts: unrecognized options: --optimizer.lr",
        ),
        ("digits --resume-or-start", "--resume-or-start needs --out RUN"),
        (
            "--resume texts digits --out other",
            "--resume continues the run in texts; remove --out, --overwrite, --preview",
        ),
    ],
)
def test_pretrain_reports_mistakes_in_one_line(arguments, message, refused, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("precious")
    assert message in refused("pretrain", *arguments.split())
    assert tree(tmp_path) == {"texts/a.txt": b"precious"}
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("evaluate", "missing from fullrank evaluate: MODEL; see fullrank evaluate --help"),
        (
            "evaluate nowhere",
            "model 'nowhere' is no run directory; expected RUN, RUN@STEP, timm:NAME, timm-untrained:NAME, hf-hub:OWNER/NAME or file:PATH",
        ),
        ("evaluate {run} --probes knnn", "invalid choice 'knnn'"),
        (
            "evaluate nowhere --dimensions foo",
            "--dimensions foo is not a range, expected START:STOP, e.g. :360 or 360:",
        ),
        ("evaluate {run} --accelerator tpu", "'tpu' is not available; choose from auto, cpu"),
        (
            "evaluate {run} --out precious.txt",
            "precious.txt exists already; choose another file, or replace this one with --overwrite",
        ),
        ("spectrum {run} --out a.csv", "--out a.csv ends in '.csv', expected .npz, .json or .png"),
        ("spectrum {run} --out precious.npz", "precious.npz exists already"),
        ("spectrum {run} --split trian", "unknown split of digits 'trian'; choose from all"),
        ("embed {run}", "missing from fullrank embed: --out PATH"),
        ("embed {run} --out precious.npz", "precious.npz exists already"),
        ("export {run} --out a.pt", "--out a.pt ends in '.pt', expected .safetensors or .onnx"),
        ("export {run} --out precious.safetensors", "precious.safetensors exists already"),
        ("report --out a.html", "no run was given"),
        ("report {run} nowhere --out a.html", "nowhere"),
        ("report {run} --out precious.txt", "precious.txt exists already"),
        ("report {run} --out .", ". is a folder, expected a file"),
        ("recipes digit", "unknown recipe 'digit'; choose from "),
    ],
)
def test_the_other_commands_report_mistakes_in_one_line(arguments, message, refused, tmp_path, run):
    files = {name: b"precious" for name in ("precious.npz", "precious.safetensors", "precious.txt")}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    before = tree(run.path)
    assert message in refused(*(word.format(run=run.path) for word in arguments.split()))
    assert tree(tmp_path) == files
    assert tree(run.path) == before


def test_a_model_without_images_needs_a_source(fullrank, refused, run, tmp_path):
    fullrank("export", run.path, "--out", "a.safetensors")
    assert refused("evaluate", "file:a.safetensors").startswith(
        "model 'file:a.safetensors' has no images; give --data SOURCE"
    )


def test_too_few_photos_are_an_error(refused, photos, tmp_path):
    shutil.copytree(photos / "cat", tmp_path / "cats", ignore=lambda folder, names: sorted(names)[10:])
    assert "expected at least 32" in refused("pretrain", "cats")
    shutil.copytree(photos / "cat", tmp_path / "tiny", ignore=lambda folder, names: sorted(names)[3:])
    assert "tiny has 3 images, expected at least 5 to hold out a fifth; give more images" in refused("pretrain", "tiny")


def test_a_run_is_not_overwritten_by_default(refused, copy):
    before = tree(copy)
    line = refused("pretrain", "digits", "--out", copy)
    assert f"{copy} already contains a run" in line
    assert f"continue it with --resume {copy}, replace it with --overwrite, or give another --out" in line
    assert tree(copy) == before


def test_a_run_is_not_overwritten_for_a_recipe_that_cannot_run(refused, copy):
    before = tree(copy)
    for mistake in (
        ("--batch_size", "5000", "--optimizer.lr", "0.005", "--hyper.invariance", "2"),
        ("--backbone.name", "resnet81"),
        ("--data", "nowhere"),
        ("--machine.accelerator", "tpu9"),
    ):
        refused("pretrain", "digits", "--out", copy, "--overwrite", *mistake)
    assert tree(copy) == before


def test_overwriting_removes_all_files_of_the_old_run(fullrank, copy, recipe_json):
    (copy / "evaluation.json").write_text("{}")
    (copy / "mine.txt").write_text("precious")
    status, _, _ = fullrank("pretrain", recipe_json, "--epochs", "1", "--out", copy, "--overwrite")
    assert status == 0
    assert [checkpoint.step for checkpoint in Run(copy).checkpoints] == [3, 6, 8, 11]
    assert not (copy / "evaluation.json").exists()
    assert (copy / "mine.txt").read_text() == "precious"


def test_a_run_in_use_is_not_changed(refused, copy):
    hold = f"import filelock; lock = filelock.FileLock({str(copy / '.lock')!r}); lock.acquire(); print('held', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout.readline() == "held\n"
        before = tree(copy)
        expected = f"run directory {copy} is in use by another process; wait for that process, or give another --out"
        assert refused("pretrain", "--resume", copy) == expected
        assert refused("pretrain", "digits", "--out", copy, "--overwrite") == expected
        assert tree(copy) == before
        holder.communicate("\n")


def nan_at(step):
    """An objective that returns NaN after `step` steps."""
    from torch._subclasses.fake_tensor import FakeTensor

    from fullrank.objectives import frossl

    taken = []

    def broken(self, embeddings):
        is_step = embeddings["Z"].requires_grad and not isinstance(
            embeddings["Z"], FakeTensor
        )  # not the dry run, not held-out images
        taken.extend([1] if is_step else [])
        terms = frossl(embeddings["Z"])
        return terms | {"variance": terms["variance"] * float("nan")} if len(taken) > step else terms

    return broken


def test_a_loss_that_is_not_finite_ends_the_run_and_keeps_the_last_checkpoint(
    fullrank, recipe_json, tmp_path, monkeypatch
):
    from fullrank.methods import JointEmbedding

    monkeypatch.setattr(JointEmbedding, "terms", nan_at(13))
    status, _, err = fullrank("pretrain", recipe_json, "--out", "run")
    assert status == 2
    assert err.splitlines()[-1] == (
        "fullrank: the loss is not finite at step 14: term 'variance' is nan; probably because the steps are too large; start a new run "
        "with a lower --optimizer.lr (now 0.005) or a longer --schedule.warmup (now 0.5 epochs); the checkpoint of step 11 is complete"
    )
    run = Run(Path("run"))
    assert run.checkpoint().step == 11
    assert package.load("run@11").backbone is not None
    assert max(row.step for row in run.metrics.train) == 13
    assert (run.metrics[-1].kind, run.metrics[-1].alarm, run.metrics[-1].step) == ("alarm", "not finite", 14)
    assert all(weight.isfinite().all() for weight in run.checkpoint().weights().values())


def test_a_huge_learning_rate_ends_in_one_line_with_the_remedy(fullrank, recipe_json):
    status, _, err = fullrank(
        "pretrain", recipe_json, "--out", "run", "--optimizer.name", "sgd", "--optimizer.lr", "1e6"
    )
    last = err.splitlines()[-1]
    assert status == 2
    assert "not finite" in last
    assert "a lower --optimizer.lr (now 1e+06)" in last
    assert sum(line.startswith("fullrank: ") for line in err.splitlines()) == 1


@pytest.mark.parametrize(("broken", "every"), [(11, 100), (9, 9)], ids=["at a checkpoint", "at an evaluation"])
def test_weights_that_are_not_finite_are_not_saved(broken, every, fullrank, recipe_json, monkeypatch):
    """A finite loss may have an infinite gradient, which makes the weights infinite before any loss is."""
    after = RunLogger.after_step

    def poisoned(self, step, **keywords):
        if step.step == broken:
            with torch.no_grad():
                self.run.method.backbone.conv1.weight[0, 0, 0, 0] = float("inf")
        after(self, step, **keywords)

    monkeypatch.setattr(RunLogger, "after_step", poisoned)
    status, _, err = fullrank("pretrain", recipe_json, "--out", "run", "--spectrum.every", every)
    assert status == 2
    last = err.splitlines()[-1]
    assert (
        f"weights 'backbone.conv1.weight' are not finite after step {broken}; probably because the steps are too large"
        in last
    )
    assert last.endswith("the checkpoint of step 6 is complete")
    assert [checkpoint.step for checkpoint in Run(Path("run")).checkpoints] == [6]


def full_disk(*arguments, **keywords):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_after_a_full_disk_the_run_resumes_from_the_previous_checkpoint(
    fullrank, recipe_json, run, tmp_path, monkeypatch, assert_same
):
    save_checkpoint = RunLogger.save_checkpoint

    def full_later(self, step):
        with monkeypatch.context() as patch:
            if step == 16:
                patch.setattr(Path, "write_bytes", full_disk)
                patch.setattr(Path, "write_text", full_disk)
            save_checkpoint(self, step)

    with monkeypatch.context() as patch:
        patch.setattr(RunLogger, "save_checkpoint", full_later)
        status, _, err = fullrank("pretrain", recipe_json, "--out", "run")
    assert status == 2
    last = err.splitlines()[-1]
    assert "free some" in last
    assert "--resume" in last
    assert Run(Path("run")).checkpoint().step == 11
    assert fullrank("pretrain", "--resume", "run")[0] == 0
    assert_same(run.path, "run")


def test_a_disk_that_is_full_at_a_row_is_reported_in_one_line(fullrank, recipe_json, run, monkeypatch, assert_same):
    row = RunLogger.log_train
    with monkeypatch.context() as patch:
        patch.setattr(
            RunLogger,
            "log_train",
            lambda self, step, probed: full_disk() if step.step == 9 else row(self, step, probed),
        )
        status, _, err = fullrank("pretrain", recipe_json, "--out", "run")
    assert status == 2
    assert (
        err.splitlines()[-1]
        == "fullrank: no space left for the run run; free some space, then continue with: fullrank pretrain --resume run"
    )
    assert fullrank("pretrain", "--resume", "run")[0] == 0
    assert_same(run.path, "run")


def test_too_many_decode_errors_stop_the_run_before_it_begins(fullrank, photos, tmp_path):
    folder = Path(shutil.copytree(photos, tmp_path / "photos"))
    for path in sorted((folder / "cat").iterdir())[:20]:
        path.write_bytes(path.read_bytes()[:40])
    status, _, err = fullrank("pretrain", "cifar10-small", "--data", folder, "--data.size", "32", "--batch_size", "16")
    assert status == 2
    *_, line = err.splitlines()  # the others say which images are read, and what follows from the flags
    assert "images could not be read, expected at most 10%" in line
    assert "cat/" in line
    assert not (tmp_path / "runs").exists()


def test_a_recipe_file_with_a_mistake_is_named(refused, recipe_json, tmp_path):
    values = json.loads(recipe_json.read_text())
    Path("a.json").write_text(json.dumps(values | {"epoch": 3}))
    assert "epoch" in refused("pretrain", "a.json")
    Path("b.json").write_text(json.dumps(values | {"epochs": "three"}))
    assert "epochs" in refused("pretrain", "b.json")
    Path("c.json").write_text("{")
    assert "c.json cannot be read" in refused("pretrain", "c.json")
