import io
import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from fullrank.cli.pretrain import finish_run
from fullrank.run import Run

NARROW = '{"channels": [8, 8, 8, 8], "layers": [1, 1, 1, 1]}'
TINY = (
    "--epochs",
    "1",
    "--projector.widths",
    "16",
    "8",
    "--backbone.arguments",
    NARROW,
    "--views.0.size",
    "16",
    "--data.workers",
    "0",
)


@pytest.fixture
def recipe(fullrank, tmp_path, monkeypatch):
    """`recipe("digits", …)`: the recipe of a command line, the keywords of `pretrain`, and the printed lines; nothing
    is trained."""
    from fullrank.cli import pretrain
    from fullrank.run import pretrain as pretraining

    monkeypatch.chdir(tmp_path)
    seen = []
    monkeypatch.setattr(
        pretraining, "pretrain", lambda recipe, **keywords: seen.append((recipe, keywords)) or Run(tmp_path)
    )
    monkeypatch.setattr(pretrain, "finish_run", lambda path, console: None)

    def parse(*arguments):
        status, _, err = fullrank("pretrain", *arguments)
        assert status == 0, err
        recipe, keywords = seen.pop()
        return recipe, keywords, err

    return parse


def test_without_arguments_the_help_is_printed(fullrank):
    status, out, err = fullrank("pretrain")
    assert (status, err) == (0, "")
    assert "fullrank pretrain digits  " in out


def test_the_help_of_a_recipe_lists_the_hyperparameters_of_its_objective(fullrank):
    status, out, _ = fullrank("pretrain", "digits", "--objective", "vicreg", "--help")
    assert status == 0
    assert "--hyper.covariance FLOAT" in out
    assert "--views.0.crop.scale FLOAT FLOAT" in out
    assert "--hyper.log" not in out


def test_typed_flags_reach_the_recipe(recipe):
    arguments = '{"channels": [8, 8, 8, 8]}'
    got, keywords, _ = recipe(
        *(
            "digits",
            "--views.0.crop.scale",
            "0.2",
            "1.0",
            "--optimizer.lr",
            "0.01",
            "--epochs",
            "3",
            "--hyper.invariance",
            "1.4",
        ),
        *(
            "--hyper.no-log",
            "--backbone.arguments",
            arguments,
            "--projector.widths",
            "64",
            "32",
            "16",
            "--optimizer.name",
            "lars",
        ),
        *("--data", "hf:elsewhere", "--split", "train", "--seed", "5", "--out", "runs/mine", "--overwrite"),
    )
    assert got.views[0].crop.scale == (0.2, 1.0)
    assert (got.optimizer.name, got.optimizer.lr, got.epochs, got.seed) == ("lars", 0.01, 3, 5)
    assert got.hyper == {"invariance": 1.4, "variance": 1.0, "log": False, "center": True, "normalize": "columns"}
    assert got.backbone.arguments == {"channels": [8, 8, 8, 8]}
    assert got.projector.widths == (64, 32, 16)
    assert (got.data.source, got.data.reading.train, got.data.channels) == ("hf:elsewhere", "train", 1)
    assert keywords["out"] == Path("runs/mine")
    assert keywords["overwrite"] is True


def test_without_flags_the_recipe_is_unchanged(recipe):
    from fullrank.recipes import RECIPES

    for name in (
        "digits",
        "cifar10-small",
        "cifar10",
        "cifar10-swav-multicrop",
        "stl10-moco-fork",
        "imagenet-directclr",
    ):
        got, keywords, _ = recipe(name)
        assert got == RECIPES[name]
        assert (keywords["out"], keywords["overwrite"], keywords["wandb"]) == (None, False, False)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--wandb"], True),
        (["--wandb", "--wandb_project", "mine"], {"project": "mine"}),
        (["--wandb-name=first", "--wandb_project", "mine"], {"project": "mine", "name": "first"}),
    ],
)
def test_the_project_and_the_name_at_wandb_are_options_of_the_run(recipe, flags, expected):
    from fullrank.recipes import RECIPES

    got, keywords, _ = recipe("digits", *flags)
    assert got == RECIPES["digits"]
    assert keywords["wandb"] == expected


def test_another_objective_has_other_hyperparameters(recipe):
    got, *_ = recipe("digits", "--objective", "vicreg", "--hyper.covariance", "4")
    assert (got.objective, got.hyper) == ("vicreg", {"invariance": 25.0, "variance": 25.0, "covariance": 4.0})
    got, *_ = recipe("cifar10-small", "--objective=simclr")  # the recipe's invariance 2 is a hyperparameter of FroSSL
    assert (got.objective, got.hyper) == ("simclr", {"temperature": 0.2})


def test_another_objective_takes_its_published_recipe_and_says_so(recipe):
    from fullrank.recipes import RECIPES

    got, _, err = recipe("cifar10", "--objective", "barlow_twins")
    assert got == RECIPES["cifar10-barlow_twins"]
    assert len(err.splitlines()) == 1
    assert "cifar10-barlow_twins" in err
    got, _, err = recipe(
        "stl10-byol", "--objective", "frossl", "--epochs", "20", "--optimizer.lr", "0.7", "--hyper.invariance", "2"
    )
    assert (got.name, got.epochs, got.schedule.warmup, got.optimizer.lr, got.hyper["invariance"]) == (
        "stl10",
        20,
        4.0,
        0.7,
        2.0,
    )
    got, _, err = recipe("cifar10-frossl-fork", "--objective", "frossl")
    assert (got, err) == (RECIPES["cifar10-frossl-fork"], "")


def test_an_objective_without_a_published_recipe_says_what_it_takes_from_the_data_set(recipe):
    from fullrank.recipes import RECIPES, with_objective

    got, _, err = recipe("cifar10", "--objective", "tico")
    assert got == with_objective(RECIPES["cifar10"], "tico")
    assert len(err.splitlines()) == 1
    for word in ("tico", "cifar10", "optimizer", "projector", "views", "frossl"):
        assert word in err
    _, _, err = recipe("digits", "--objective", "wmse")
    assert "projector" not in err  # it is not that of the recipe


def test_flags_add_groups_of_views_to_any_recipe(recipe):
    got, *_ = recipe("digits", "--views.1.size", "6", "--views.1.count=4")
    assert [(view.count, view.size) for view in got.views] == [(2, 8), (4, 6)]
    assert got.views[1].affine == got.views[0].affine
    got, *_ = recipe("cifar10", "--views.0.count", "1", "--views.1.solarize.probability", "0.2")
    assert [(view.count, view.size, view.solarize.probability) for view in got.views] == [(1, 32, 0.0), (1, 32, 0.2)]
    got, *_ = recipe("cifar10", "--objective", "byol", "--views.2.size", "18", "--views.2.count", "6")
    assert [(view.count, view.size) for view in got.views] == [(1, 32), (1, 32), (6, 18)]


def test_a_group_of_views_that_is_left_out_is_an_error(fullrank):
    status, _, err = fullrank("pretrain", "digits", "--views.2.size", "6")
    assert status == 2
    assert "add views.1 first" in err
    assert len(err.splitlines()) == 1


def test_a_general_recipe_takes_groups_of_views_too(recipe, photos):
    got, *_ = recipe(photos, "--views.1.size", "16", "--views.1.count", "2")
    assert [(view.count, view.size) for view in got.views] == [(2, 32), (2, 16)]


def test_the_json_of_a_recipe_is_a_recipe(recipe, fullrank, tmp_path):
    _, out, _ = fullrank("recipes", "stl10-frossl-fork")
    (tmp_path / "mine.json").write_text(json.dumps(json.loads(out) | {"epochs": 7}))
    got, *_ = recipe("mine.json", "--batch_size", "64")
    assert (got.name, got.epochs, got.batch_size, got.hyper["invariance"]) == ("stl10-frossl-fork", 7, 64, 1.4)


def test_a_folder_of_photos_gets_an_explained_general_recipe(recipe, photos):
    got, _, err = recipe(photos, "--epochs", "1")
    assert (got.name, got.data.source, got.data.channels, got.epochs, got.batch_size) == (
        "photos",
        str(photos),
        3,
        1,
        16,
    )
    choices, *rows = err.splitlines()
    assert choices.startswith("A general recipe")
    assert "48 images, 3 channels" in rows[0]
    for flag in ("--views.0.size", "--backbone.name", "--backbone.stem", "--batch_size", "--epochs", "--optimizer.lr"):
        assert any(flag in row for row in rows)


def test_the_recipe_for_photos_follows_the_flags_and_is_what_is_printed(recipe, photos):
    got, _, err = recipe(
        photos, "--epochs", "40", "--batch-size=8", "--views.0.size", "96", "--backbone.name", "convnext_atto"
    )
    assert (got.epochs, got.schedule.warmup, got.batch_size, got.views[0].size) == (40, 2.0, 8, 96)
    assert got.optimizer.lr == pytest.approx(2e-3 / 32**0.5)
    assert (got.backbone.name, got.backbone.arguments, got.backbone.stem) == ("convnext_atto", {}, "standard")
    assert got.views[0].blur.probability == 0.5
    for value in ("40 epochs", "batch size 8", "96 px", "convnext_atto", "0.00035", "over 2 "):
        assert value in err
    for default in ("800 epochs", "batch size 16", "32 px", "resnet18"):
        assert default not in err.replace("24×24 to 32", "")


def test_a_flag_wins_over_what_follows_from_another_flag(recipe, photos):
    for name in (photos, "cifar10-small"):
        got, _, err = recipe(
            *(
                name,
                "--epochs",
                "4",
                "--batch_size",
                "16",
                "--views.0.size",
                "96",
                "--backbone.name",
                "resnet18",
                "--optimizer.name",
                "sgd",
            ),
            *("--schedule.warmup", "3", "--optimizer.lr", "0.7", "--optimizer.weight_decay", "0.5"),
            *("--backbone.stem", "small", "--backbone.arguments", '{"layers": [1, 1, 1, 1]}'),
        )
        assert (got.schedule.warmup, got.optimizer.lr, got.optimizer.weight_decay) == (3.0, 0.7, 0.5)
        assert (got.backbone.stem, got.backbone.arguments) == ("small", {"layers": [1, 1, 1, 1]})
        assert "follows from the flags" not in err


def test_what_follows_for_a_named_recipe_is_said_in_one_line(recipe):
    got, _, err = recipe("cifar10", "--epochs", "20", "--batch_size", "64", "--hyper.invariance", "0.25")
    assert (got.schedule.warmup, got.optimizer.lr) == (4.0, 0.075)
    (line,) = err.splitlines()
    assert "optimizer.lr 0.3 → 0.075" in line
    assert "schedule.warmup 10.0 → 4.0" in line


@pytest.mark.parametrize(
    ("arguments", "weight"),
    [
        ("cifar10 --batch_size 64", "0.25"),
        ("cifar10 --projector.widths 512 256", "4"),
        ("cifar10 --views.0.count 5", "0.25"),
        ("cifar10-frossl-fork --batch_size 512 --hyper.variance 2", "2"),
        ("cifar10 --epochs 3 --optimizer.lr 0.1", None),
        ("cifar10 --batch_size 64 --hyper.invariance 0.3", None),
        ("cifar10 --batch_size 64 --objective vicreg", None),
    ],
)
def test_a_change_that_moves_frossls_balance_is_said(recipe, arguments, weight):
    _, _, err = recipe(*arguments.split())
    said = [line for line in err.splitlines() if "FroSSL's balance" in line]
    assert [f"--hyper.invariance {weight} keeps" in line for line in said] == ([True] if weight else [])


def test_the_balance_of_the_recipe_for_photos_is_kept_too(recipe, photos):
    assert "FroSSL's balance" not in recipe(photos, "--epochs", "4")[2]
    assert "--hyper.invariance 0.0625 keeps" in recipe(photos, "--views.0.count", "5")[2]


def test_the_name_of_a_backbone_gives_that_network(recipe):
    for name, stem in (
        ("resnet18", "small"),
        ("resnet50", "small"),
        ("resnet18d", "standard"),
        ("test_vit", "standard"),
    ):
        got, *_ = recipe("cifar10-small", f"--backbone.name={name}")
        assert (got.backbone.name, got.backbone.arguments, got.backbone.stem) == (name, {}, stem)


def test_the_last_of_repeated_flags_counts(recipe):
    got, *_ = recipe(
        "digits",
        *("--epochs", "9", "--epochs", "5"),
        "--objective",
        "simclr",
        "--objective=vicreg",
        "--data=hf:a",
        "--data=hf:b",
    )
    assert (got.epochs, got.schedule.warmup, got.objective, got.data.source) == (5, 1.0, "vicreg", "hf:b")


def test_the_split_of_a_folder_is_chosen_before_its_images_are_counted(recipe, photos, tmp_path, refused):
    for split in ("train", "validation"):
        shutil.copytree(photos, tmp_path / "splits" / split)
    for path in (tmp_path / "splits" / "validation").rglob("*.jpg"):
        path.unlink()
    *_, err = recipe(tmp_path / "splits", "--split", "validation")
    assert "32 images" in err  # of 40, of which a fifth is held out
    *_, err = recipe(tmp_path / "splits")
    assert "60 images" in err
    assert "did you mean 'validation'?" in refused("pretrain", tmp_path / "splits", "--split", "validatoin")


def test_a_folder_of_photos_is_trained_on(fullrank, photos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = Path(shutil.copytree(photos, "photos"))
    for file in ("a.jpg", "b.png"):
        (folder / "cat" / file).write_bytes(b"no image")
    status, out, err = fullrank("pretrain", folder, *TINY, "--data.max_error_fraction", "0.2")
    assert (status, out) == (0, ""), err
    run = Run(Path("runs/photos"))
    assert "photos has no test split" in err
    assert (
        "images stay on disk and are decoded when needed: 50 of 24×24 to 32×24 px (--data.storage memory loads them)"
        in err
    )
    assert "run: runs/photos\nreport: runs/photos/report.html\nnext: fullrank evaluate runs/photos\n" in err
    assert run.checkpoint().step == 3
    decode_errors = [json.loads(line) for line in (run.path / "decode_errors.jsonl").read_text().splitlines()]
    assert sorted(row["name"] for row in decode_errors) == ["cat/a.jpg", "cat/b.png"]
    assert all(row["reason"] for row in decode_errors)
    assert "2 images could not be read; see runs/photos/decode_errors.jsonl" in err


def test_the_next_command_can_be_pasted(copy, tmp_path):
    path = copy.rename(tmp_path / "my photos")
    output = io.StringIO()
    finish_run(path, Console(file=output, width=40))
    assert output.getvalue().endswith(f"next: fullrank evaluate '{path}'\n")


def test_the_cost_of_a_run_is_printed_before_its_first_step(fullrank, recipe_json, tmp_path):
    *_, err = fullrank("pretrain", recipe_json, "--epochs", "1", "--out", tmp_path / "run")
    before, *_ = err.partition("step 1/")
    for word in ("parameters", "16 features", "embeddings of 24 dimensions", "11 steps", "memory", "disk"):
        assert word in before


def test_a_run_without_out_has_a_new_directory(recipe, fullrank, tmp_path):
    (tmp_path / "runs").mkdir()
    assert recipe("digits")[1]["out"] is None  # `create_run_directory` finds the next free one


def test_a_preview_is_written_to_out(fullrank, tmp_path, refused):
    status, _, err = fullrank("pretrain", "digits", "--preview", "--out", tmp_path / "look.png")
    assert status == 0
    assert err.endswith(f"views: {tmp_path / 'look.png'}\n")
    assert (tmp_path / "look.png").read_bytes().startswith(b"\x89PNG")
    assert "exists already" in refused("pretrain", "digits", "--preview", "--out", tmp_path / "look.png")


def test_brackets_in_a_path_are_printed(fullrank, recipe_json, tmp_path):
    path = tmp_path / "[bold]run :smile:" / ("long " * 20).strip()
    status, _, err = fullrank("pretrain", recipe_json, "--epochs", "1", "--out", path)
    assert status == 0
    assert f"run: {path}\n" in err


def test_without_a_terminal_progress_is_plain_lines(fullrank, recipe_json, tmp_path):
    _, _, err = fullrank("pretrain", recipe_json, "--out", tmp_path / "run")
    steps = [line for line in err.splitlines() if line.startswith("step ")]
    assert 11 <= len(steps) <= 22
    assert steps[-1].startswith("step 22/22 · epoch 2.0/2 · ")
    assert " = variance " in steps[-1]
    assert " + invariance " in steps[-1]
    assert "effective rank" in steps[-1]
    assert any(line.startswith("about ") and "loading batches takes" in line for line in err.splitlines())


def test_a_wrong_path_is_refused_on_the_command_line(fullrank, tmp_path):
    status, _, err = fullrank("pretrain", "digits", "--labelled", tmp_path / "nowhere", "--out", tmp_path / "run")
    assert status == 2
    assert "nowhere" in err
