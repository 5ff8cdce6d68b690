"""`fullrank pretrain`: what the words of a command line become, what is refused, and what a run prints."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from fullrank.cli import pretrain as command
from fullrank.images import Images
from fullrank.methods import BackboneConfig
from fullrank.recipes import RECIPES, Recipe, resolve, with_objective
from fullrank.run import Run


@pytest.fixture
def parsed(fullrank, tmp_path, monkeypatch):
    """`parsed("digits", …)`: the recipe of a command line, and the keywords of `pretrain`; nothing is trained."""
    monkeypatch.chdir(tmp_path)
    seen = []
    monkeypatch.setattr(command, "finish", lambda run, notify: None)
    monkeypatch.setattr(command, "pretrain", lambda recipe, **keywords: seen.append((recipe, keywords)))

    def parse(*arguments):
        status, _, err = fullrank("pretrain", *arguments)
        assert status == 0, err
        recipe, keywords = seen.pop()
        own = Recipe.__dataclass_fields__.keys() - {"init", "data"} | {"split", "labelled", "devices"}
        fields = {name: value for name, value in keywords.items() if name.split(".")[0] in own or "." in name}
        fields = {name: value for name, value in fields.items() if value is not None}
        return (recipe if keywords["resume"] else resolve(recipe, fields)), keywords

    return parse


def test_without_arguments_the_short_help_is_printed(fullrank):
    assert fullrank("pretrain") == fullrank("pretrain", "--help")
    status, out, err = fullrank("pretrain")
    assert (status, err) == (0, "")
    assert "fullrank pretrain digits  " in out
    assert "spectral_contrastive" in out


def test_the_long_help_has_the_flags_of_the_objective_and_the_values_of_the_recipe(fullrank, photos):
    status, out, _ = fullrank("pretrain", "digits", "--objective", "vicreg", "--help")
    assert status == 0
    for flag in ("--hyper.covariance FLOAT", "--views.0.crop.scale FLOAT FLOAT", "--data.label-column", "--resume"):
        assert flag in out
    assert "--hyper.log" not in out
    assert "(default: photos)" not in fullrank("pretrain", photos, "--help")[1]


def test_typed_flags_reach_the_recipe(parsed):
    network = '{"channels": [8, 8, 8, 8]}'
    line = "digits --views.0.crop.scale 0.2 1.0 --optimizer.lr 0.01 --epochs 9 --epochs 3 --hyper.invariance 1.4"
    line += " --hyper.no-log --projector.widths 64 32 16 --optimizer.name lars --keep-checkpoints -1 --views.2.count 6"
    line += " --views.1.size=6 --data hf:elsewhere --split train --seed 5 --out runs/mine --overwrite"
    got, keywords = parsed(*line.split(), "--data.follow-links", "--backbone.arguments", network)
    assert got.views[0].crop.scale == (0.2, 1.0)
    assert [(view.count, view.size) for view in got.views] == [(2, 8), (1, 6), (6, 8)]
    assert (got.optimizer.name, got.optimizer.lr, got.epochs, got.seed) == ("lars", 0.01, 3, 5)
    assert (got.hyper["invariance"], got.hyper["log"], got.keep_checkpoints) == (1.4, False, -1)
    assert (got.backbone.arguments, got.projector.widths) == ({"channels": [8, 8, 8, 8]}, (64, 32, 16))
    assert (got.data.reading.train, got.data.reading.follow_links) == ("train", True)
    assert (keywords["data"], keywords["out"], keywords["overwrite"]) == ("hf:elsewhere", Path("runs/mine"), True)


@pytest.mark.parametrize("name", ["digits", "cifar10", "stl10-moco-fork", "imagenet-directclr", "imagenet-dino-vit"])
def test_without_flags_the_recipe_is_unchanged(parsed, name):
    got, keywords = parsed(name)
    assert got == RECIPES[name]
    assert [keywords[name] for name in ("out", "overwrite", "wandb", "resume")] == [None, False, False, False]


def test_the_issue_s_line_and_another_objective(parsed):
    line = "digits --objective vicreg --batch-size 128 --hyper.covariance 4 --views.0.size 64 --backbone.name resnet50"
    got, _ = parsed(*line.split(), "--epochs", "3")
    expected = with_objective(RECIPES["digits"], "vicreg")
    assert (got.objective, got.hyper["covariance"], got.epochs) == ("vicreg", 4.0, 3)
    assert (got.backbone, got.projector) == (BackboneConfig(name="resnet50", stem="small"), expected.projector)
    got, _ = parsed("cifar10", "--objective=byol", "--method.momentum", "0.9", "1.0")
    assert got == replace(RECIPES["cifar10-byol"], method={"predictor": 4096, "momentum": (0.9, 1.0)})


def test_a_flag_with_the_value_of_the_recipe_is_given_too(parsed):
    got, _ = parsed("cifar10", "--batch-size", "512", "--optimizer.lr", "0.3", "--hyper.invariance", "1")
    assert (got.optimizer.lr, got.hyper["invariance"]) == (0.3, 1.0)


def test_the_word_balanced_gives_the_balanced_weight_of_the_final_batch(parsed):
    got, _ = parsed("stl10-frossl-fork", "--hyper.invariance", "balanced", "--batch-size", "64")
    assert got.hyper["invariance"] == 4 * 64 / 1024
    got, _ = parsed("stl10-frossl-fork", "--hyper.variance=balanced", "--hyper.no-log")
    assert got.hyper["variance"] == 255 / 1024**2


def test_a_file_and_a_folder_are_recipes_too(parsed, fullrank, photos, tmp_path):
    _, out, _ = fullrank("recipes", "stl10-frossl-fork")
    (tmp_path / "mine.json").write_text(json.dumps(json.loads(out) | {"epochs": 7}))
    got, _ = parsed("mine.json", "--batch_size", "64", "--hyper.invariance", "1.4")
    assert (got.name, got.epochs, got.batch_size, got.hyper["invariance"]) == ("stl10-frossl-fork", 7, 64, 1.4)
    for words in ([photos], ["photos", "--data", photos]):
        got, _ = parsed(*words, "--epochs", "1", "--views.0.size", "64", "--views.1.size", "16")
        assert (got.data.source, got.epochs, [view.size for view in got.views]) == (str(photos), 1, [64, 16])


def test_the_project_and_the_name_at_wandb_are_options_of_the_run(parsed):
    assert parsed("digits", "--wandb")[1]["wandb"] is True
    named = parsed("digits", "--wandb-name=a", "--wandb_project", "b")
    assert named[1]["wandb"] == {"project": "b", "name": "a"}


def test_a_run_is_resumed_with_its_recipe_and_free_fields(parsed, run):
    got, keywords = parsed("--resume", run.path)
    assert (got, keywords["resume"], keywords.get("epochs")) == (run.recipe, run.path, None)
    got, keywords = parsed("--resume", run.path, "--epochs", "9", "--data", "hf:there", "--devices", "2")
    assert (got, keywords["epochs"], keywords["data"], keywords["devices"]) == (run.recipe, 9, "hf:there", 2)
    _, keywords = parsed("--resume", run.path, "--log_every", "7", "--data.workers", "3")
    assert (keywords["log_every"], keywords["data.workers"]) == (7, 3)
    assert parsed("digits", "--epochs", "9", "--resume", run.path)[0] == "digits"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("digit", "did you mean 'digits'?"),
        ("digits --objectiv vicreg", "did you mean --objective"),
        ("digits --backbone.name resnet81", "did you mean 'resnet18'?"),
        ("digits --backbone.name resnet18d --backbone.stem small", "needs one of timm's plain ResNets"),
        ("digits --backbone.name vit_tiny_patch16_224", "fails on views of 8 px"),
        ("digits --init imagenet", "RUN@STEP, timm:NAME"),
        ("digits --hyper.covariance 4", "unrecognized options: --hyper.covariance"),
        ("digits again", "unrecognized options: again"),
        ("digits --epochs many", "--epochs is 'many', expected a whole number"),
        ("digits --hours 8h", "--hours is '8h', expected a number of hours such as 8"),
        ("digits --epoch 3", "unrecognized options: --epoch, 3; did you mean --epochs?; see"),
        ("digits --backbone.arguments [1]", "[1] is not a JSON object"),
        ("--epochs 3", "the first argument must be a recipe or a path"),
        ("no/such/folder", "neither a recipe nor a path that exists"),
        ("digits --data no/such/folder", "no file or folder 'no/such/folder'"),
        ("texts", "contains no images"),
        ("digits --batch_size 5000 --optimizer.lr 0.005", "set --batch-size 719"),
        ("digits --machine.accelerator tpu9", "tpu9"),
        ("digits --out texts", "texts"),
        ("digits --resume-or-start", "--out RUN"),
        ("--resume nowhere", "no run at nowhere"),
    ],
)
def test_a_mistake_is_one_line_and_changes_nothing(arguments, message, fullrank, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("precious")
    status, out, err = fullrank("pretrain", *arguments.split())
    *_, last = err.splitlines()
    assert (status, out, last.startswith("fullrank: ")) == (2, "", True)
    assert message in last
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a.txt", "texts"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--epoch 3", "; see fullrank pretrain 'my photos' --help"),
        ("--hours 1 --epochs 3", "--hours chooses the epochs"),
        ("--backbone.name resnet81", "did you mean 'resnet18'?"),
        ("--labelled table.csv", "--labelled table.csv, for which --data flags do not count: table.csv has no image"),
    ],
)
def test_a_mistake_in_a_flag_is_found_before_the_folder_is_opened(flags, message, fullrank, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my photos").mkdir()
    (tmp_path / "table.csv").write_text("name,breed\n1,cat\n")
    status, _, err = fullrank("pretrain", "my photos", *flags.split())
    assert (status, err.count("\n"), message in err) == (2, 1, True), err


def test_a_switch_is_set_by_false_and_true_as_in_a_sweep(parsed):
    got, _ = parsed("digits", "--hyper.log", "false", "--data.follow-links=TRUE", "--optimizer.lr=-0")
    assert (got.hyper["log"], got.data.reading.follow_links, got.optimizer.lr) == (False, True, 0.0)


def test_a_run_is_not_overwritten_by_mistake(refused, copy):
    before = {path: path.stat().st_mtime_ns for path in copy.rglob("*") if path.is_file()}
    assert "--overwrite" in refused("pretrain", "digits", "--out", copy)
    refused("pretrain", "digits", "--out", copy, "--overwrite", "--backbone.name", "resnet81")
    assert before == {path: path.stat().st_mtime_ns for path in copy.rglob("*") if path.is_file()}


def test_a_folder_of_photos_is_trained_on(fullrank, photos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = Path(shutil.copytree(photos, "photos"))
    (folder / "cat" / "a.jpg").write_bytes(b"no image")
    tiny = "--epochs 1 --projector.widths 16 8 --views.0.size 16 --data.workers 0 --data.max_error_fraction 0.2"
    network = '{"channels": [8, 8, 8, 8], "layers": [1, 1, 1, 1]}'
    status, out, err = fullrank("pretrain", folder, *tiny.split(), "--backbone.arguments", network)
    assert (status, out) == (0, ""), err
    assert err.index("a general recipe for ") < err.index("step 3/3")
    banner = err[: err.index("step 1/")].splitlines()
    assert (len(banner) <= 8, "parameters" in "".join(banner), "1 epoch (" in "".join(banner)) == (True,) * 3, banner
    assert err.endswith("run: runs/photos\nreport: runs/photos/report.html\nnext: fullrank evaluate runs/photos\n")
    assert Run(Path("runs/photos")).checkpoint().step == 3


def test_the_next_command_can_be_pasted(copy, tmp_path):
    lines = []
    command.finish(Run(copy.rename(tmp_path / "my photos")), lines.append)
    assert lines[0].endswith(f"next: fullrank evaluate '{tmp_path / 'my photos'}'")


def test_a_preview_is_written_to_out(fullrank, tmp_path):
    status, _, err = fullrank("pretrain", "digits", "--preview", "--out", tmp_path / "look.png")
    assert (status, err.splitlines()[-1]) == (0, f"views: {tmp_path / 'look.png'}")
    assert "length: 1,438 images" in err  # what the run would be, too
    assert (tmp_path / "look.png").read_bytes().startswith(b"\x89PNG")


def test_a_preview_decodes_few_images_and_is_that_of_images_in_memory(fullrank, tmp_path, monkeypatch):
    opened, of_images = set(), Images.open
    monkeypatch.setattr(Images, "open", lambda images, k: (opened.add(images.name(k)), of_images(images, k))[1])
    for name, storage in (("few", "auto"), ("all", "memory")):
        words = ("--preview", "--data.storage", storage, "--out", tmp_path / f"{name}.png")
        assert fullrank("pretrain", "digits", *words)[0] == 0
        assert (len(opened) < 600) == (name == "few")
    assert (tmp_path / "few.png").read_bytes() == (tmp_path / "all.png").read_bytes()


def test_a_preview_names_the_files_that_cannot_be_read(fullrank, photos, tmp_path):
    folder = Path(shutil.copytree(photos, tmp_path / "photos"))
    (folder / "cat" / "a.jpg").write_bytes(b"no image")
    words = "--preview --data.workers 0 --data.max_error_fraction 0.2 --data.storage disk --out"
    status, _, err = fullrank("pretrain", folder, *words.split(), tmp_path / "look.png")
    assert (status, "cannot be read: cat/a.jpg" in err, (tmp_path / "look.png").exists()) == (0, True, True), err
