"""Untrusted runs, recipes and exported files: no command and no function runs their code, ends in a traceback, or
writes outside."""

import itertools
import json
import os
import pickle
import subprocess
import sys
from importlib.machinery import PathFinder
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file

import fullrank
from fullrank.errors import UserError
from fullrank.recipes import user_code as functions
from fullrank.run import Run
from small import Payload

QUIET = Console(quiet=True)
names = (f"evil_{i}" for i in itertools.count())


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """The working directory is an untrusted folder."""
    folder = tmp_path / "downloads"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(functions, "_imported", {})
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONSAFEPATH", "1")


@pytest.fixture
def evil(elsewhere):
    """The name of a module in the working directory that leaves the file `ran` when it is imported."""
    name = next(names)
    Path(f"{name}.py").write_text(
        "from pathlib import Path\n"
        f"Path({str(Path('ran').resolve())!r}).touch()\n"
        "def loss(Z, *, weight=1.0):\n    return {'sum': weight * Z.sum()}\n"
        "def build(make_encoder, objective, views):\n    raise SystemExit\n"
        "def transform(x, generator):\n    return x\n"
    )
    yield name
    assert not Path("ran").exists(), "the untrusted module ran"
    assert name not in sys.modules


@pytest.fixture
def edit(copy):
    """`edit(field=value)`: the path of an untrusted run with these fields in recipe.json, by dotted name."""

    def changed(**fields):
        values = json.loads((copy / "recipe.json").read_text())
        for name, value in fields.items():
            *parents, last = name.split(".")
            parent = values
            for key in parents:
                parent = parent[int(key)] if isinstance(parent, list) else parent[key]
            parent[last] = value
        (copy / "recipe.json").write_text(json.dumps(values))
        return copy

    return changed


def python(function, *arguments, **keywords):
    """Call a function of the library; it may refuse in one line."""
    message = ""
    try:
        function(*arguments, **keywords)
    except UserError as error:
        message = str(error)
    assert len(message.splitlines()) <= 1
    return message


# Code that a recipe names

CODE = {
    "objective": "{}:loss",
    "method_builder": "{}:build",
    "custom_transforms": ["{}:transform"],
    "hyper": {"weight": 2.0},
}
READ = {
    "evaluate": lambda attack, run: attack("evaluate", run, "--probes", "knn", "--no-baselines"),
    "export": lambda attack, run: attack("export", run, "--out", "a.safetensors"),
    "report": lambda attack, run: attack("report", run, "--out", "report.html"),
    "Run": lambda attack, run: (Run(run).recipe, Run(run).recipe.fingerprint),
}
TRAIN = {
    "pretrain a recipe": lambda attack, run: attack("pretrain", run / "recipe.json", "--out", "new")[2],
    "resume": lambda attack, run: attack("pretrain", "--resume", run)[2],
    "resume without trust": lambda attack, run: attack("pretrain", "--resume", run, "--trust", "false")[2],
    "train in Python": lambda attack, run: python(fullrank.pretrain, Run(run).recipe, out="new", console=QUIET),
    "resume in Python": lambda attack, run: python(fullrank.pretrain, resume=run, console=QUIET),
}


@pytest.fixture
def coded(evil, edit):
    """A run whose recipe names the functions of the untrusted module."""
    return edit(**json.loads(json.dumps(CODE).replace("{}", evil)))


@pytest.mark.parametrize("read", READ)
def test_reading_a_run_imports_no_code(read, coded, attack):
    READ[read](attack, coded)


@pytest.mark.parametrize("train", TRAIN)
def test_training_an_untrusted_recipe_needs_trust(train, evil, coded, attack):
    message = TRAIN[train](attack, coded)
    assert f"'{evil}:" in message
    assert "--trust" in message
    assert not Path("new").exists()


def test_a_command_line_trusts_the_names_on_it_only(evil, edit, attack):
    Path("mine.py").write_text("def loss(Z, *, weight=1.0):\n    return {'sum': weight * Z.sum()}\n")
    run = edit(custom_transforms=[f"{evil}:transform"])
    status, _, err = attack("pretrain", run / "recipe.json", "--objective", "mine:loss", "--out", "new")
    assert (status, Path("new").exists()) == (2, False)
    assert f"'{evil}:transform' is code" in err
    assert "imports mine:loss from ./mine.py" in err
    sys.modules.pop("mine")


# Modules in the working directory that have the name of another


@pytest.mark.parametrize("module", ["json", "torch", "fullrank"])
def test_a_trusted_import_shadows_no_module(module, elsewhere):
    Path(f"{module}.py").write_text("raise SystemExit('shadowed')\n")
    Path("mine_alone.py").write_text("def loss(Z):\n    return {}\n")
    functions.import_function("mine_alone:loss")
    found = PathFinder.find_spec(module, sys.path)
    assert found.origin != str(Path(f"{module}.py").resolve())


SHADOWS = "json torch numpy pickle struct socket signal multiprocessing timm site threading"


def test_a_folder_full_of_modules_shadows_none(elsewhere, photos):
    for module in SHADOWS.split():
        Path(f"{module}.py").write_text("from pathlib import Path\nPath('ran').touch()\n")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    script = "import sys; from fullrank.cli import main; sys.exit(main())"
    words = ["pretrain", str(photos), "--preview", "--data.workers", "2"]
    assert subprocess.run([sys.executable, "-P", "-c", script, *words], env=environment, check=False).returncode == 0
    assert not Path("ran").exists()


# Backbones that load files


@pytest.fixture
def pickled():
    """The path of a pickle that leaves the file `ran`."""
    path = Path("evil.pth").resolve()
    torch.save({"state_dict": Payload(Path("ran").resolve())}, path)
    yield str(path)
    assert not Path("ran").exists(), "the pickle ran"


BACKBONES = [
    {"arguments": {"checkpoint_path": "PICKLE"}},
    {"arguments": {"pretrained": True, "pretrained_cfg": {"file": "PICKLE"}}},
    {"arguments": {"pretrained_cfg": {"url": "file://PICKLE"}}},
    {"arguments": {"pretrained_cfg_overlay": {"file": "PICKLE"}}},
    {"arguments": {"act_layer": "os:system"}},
    {"arguments": {"model_name": "local-dir:."}},
    {"name": "hf-hub:evil/model"},
    {"name": "local-dir:PICKLE"},
    {"name": "../../etc/passwd"},
]


@pytest.mark.parametrize("backbone", BACKBONES, ids=str)
def test_a_backbone_loads_no_file(backbone, pickled, edit, run):
    values = json.loads(json.dumps(backbone).replace("PICKLE", pickled))
    untrusted = edit(**{f"backbone.{name}": value for name, value in values.items()})
    assert "backbone" in python(fullrank.load, untrusted)
    stored = json.loads((run.path / "recipe.json").read_text())["backbone"] | values
    preprocess = json.dumps({"channels": 1, "size": 8, "mean": [0.5], "std": [0.5]})
    metadata = {"name": stored["name"], "arguments": json.dumps(stored["arguments"]), "stem": stored["stem"]}
    metadata |= {"last_residual": "true", "classes": "[]"}
    weights = load_file(run.checkpoint().path / "model.safetensors")
    save_file(weights, "evil.safetensors", metadata | {"preprocess": preprocess})
    assert python(fullrank.load, "file:evil.safetensors")


# Names and sources


@pytest.mark.parametrize("name", ["../../x", "/tmp/abs", "..", "a\0b", "a\x1b[2Jb", None])
def test_the_name_of_a_recipe_leaves_no_folder(name, edit, attack):
    run = edit(name=name)
    before = set(Path("..").rglob("*"))
    status, _, err = attack("pretrain", run / "recipe.json")
    assert (status, "\x1b" in err) == (2, False)
    assert set(Path("..").rglob("*")) == before


@pytest.mark.parametrize("source", ["/etc/passwd", "parquet:/etc/passwd", "folder:/dev", "/dev/zero"])
def test_the_source_of_a_recipe_is_only_read(source, edit, attack):
    run = edit(**{"data.source": source})
    status, *_ = attack("pretrain", run / "recipe.json", "--out", "new")
    assert status == 2
    assert not Path("new").exists()
    fullrank.load(run)


# Pickles in the files of a run


FILES = ("state.pt", "model.safetensors", "meta.json", "spectrum.npz", "recipe.json", "metrics.jsonl")
PICKLES = {f"{name}, pickle": lambda path, payload: path.write_bytes(pickle.dumps(payload)) for name in FILES} | {
    "state.pt, torch": lambda path, payload: torch.save({"optimizer": payload, "probe": {}}, path),
    "model.safetensors, torch": lambda path, payload: torch.save(payload, path),
    "spectrum.npz, zip": lambda path, payload: np.savez(path, steps=np.array([payload], dtype=object), samples=[1]),
}


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("file", PICKLES)
def test_no_file_of_a_run_is_unpickled(file, copy, attack):
    name = file.partition(",")[0]
    path = copy / name if (copy / name).exists() else Run(copy).checkpoint().path / name
    PICKLES[file](path, Payload(Path("ran").resolve()))
    attack("pretrain", "--resume", copy)
    attack("report", copy, "--out", "report.html")
    python(fullrank.load, copy)
    python(fullrank.load, f"file:{path}")
    assert not Path("ran").exists()
