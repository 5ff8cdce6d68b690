"""Files and folders that the user may not read or write: one line, no traceback, and nothing is changed.

All commands run in one process of a user who has neither a name nor a home; a user other than root stays that user.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

import fullrank
from fullrank.methods import BackboneConfig, ProjectorConfig
from fullrank.recipes import RECIPES, SpectrumConfig

LATEST = "run/checkpoints/step-00000004"
RUN_COMMANDS = {
    "report": ("report", "run", "--out", "free/report.html"),
    "report into the run": ("report", "run", "--out", "run/report.html"),
    "evaluate": ("evaluate", "run", "--probes", "knn", "--no-baselines", "--out", "free/scores.json"),
    "evaluate into the run": ("evaluate", "run", "--probes", "knn", "--no-baselines"),
    "spectrum": ("spectrum", "run"),
    "embed": ("embed", "run", "--out", "free/x.parquet"),
    "export": ("export", "run", "--out", "free/x.safetensors"),
    "resume": ("pretrain", "--resume", "run"),
    "out": ("pretrain", "digits", "--out", "run"),
    "overwrite": ("pretrain", "recipe.json", "--out", "run", "--overwrite"),
    "resume or start": ("pretrain", "recipe.json", "--out", "run", "--resume-or-start"),
}
WARM_UP = {name: arguments for name, arguments in RUN_COMMANDS.items() if name != "out"}
UNREADABLE, UNWRITABLE = 0o000, 0o555
CASES = [
    *[("run", UNREADABLE, command) for command in RUN_COMMANDS],
    *[("run/recipe.json", UNREADABLE, command) for command in ("report", "evaluate", "resume", "resume or start")],
    *[("run/metrics.jsonl", UNREADABLE, command) for command in ("report", "resume")],
    *[("run/environment.json", UNREADABLE, "report")],
    *[("run/spectrum.npz", UNREADABLE, command) for command in ("report", "spectrum")],
    *[("run/checkpoints", UNREADABLE, command) for command in ("evaluate", "resume")],
    *[(f"{LATEST}/model.safetensors", UNREADABLE, command) for command in ("embed", "resume")],
    *[(f"{LATEST}/{name}", UNREADABLE, "resume") for name in ("state.pt", "meta.json")],
    *[
        ("run", UNWRITABLE, command)
        for command in ("evaluate into the run", "report into the run", "resume", "overwrite")
    ],
    *[("free", UNWRITABLE, command) for command in ("embed", "report")],
]
MAY_SUCCEED = {("run/metrics.jsonl", "report"), ("run/environment.json", "report")} | {
    ("run/spectrum.npz", command) for command in ("report", "spectrum")
}


@pytest.fixture(scope="module")
def results():
    """Case → (folder, its files before, exit status, standard error)."""
    recipe = replace(
        RECIPES["digits"],
        epochs=2,
        batch_size=512,
        backbone=BackboneConfig(
            name="resnet18", arguments={"channels": [8, 8, 8, 8], "layers": [1, 1, 1, 1]}, stem="small"
        ),
        projector=ProjectorConfig(widths=(8,)),
        checkpoints=2,
        spectrum=SpectrumConfig(samples=20, every=2),
    )
    root = Path(tempfile.mkdtemp())  # pytest's own folders are closed to other users
    root.chmod(0o755)
    fullrank.pretrain(recipe, out=root / "run", console=Console(quiet=True))
    for name in WARM_UP:
        shutil.copytree(root / "run", root / f"warm up {name}" / "run")
        (root / f"warm up {name}" / "free").mkdir()
        shutil.copy(root / "run" / "recipe.json", root / f"warm up {name}" / "recipe.json")
    folders, before = [], []
    for number, (target, mode, _) in enumerate(CASES):
        folder = root / f"case-{number}"
        shutil.copytree(root / "run", folder / "run")
        shutil.copy(root / "run" / "recipe.json", folder / "recipe.json")
        (folder / "free").mkdir()
        before.append(snapshot(folder))
        give_away(folder)
        (folder / target).chmod(mode)
        if os.geteuid() == 0:
            os.chown(folder / target, 0, 0)
        folders.append(folder)
    tasks = {
        "warm up": [
            {"folder": str(root / f"warm up {name}"), "arguments": arguments} for name, arguments in WARM_UP.items()
        ],
        "cases": [
            {"folder": str(folder), "arguments": RUN_COMMANDS[name]}
            for folder, (*_, name) in zip(folders, CASES, strict=True)
        ],
    }
    script = Path(__file__).with_name("unprivileged.py")
    output = subprocess.run(
        [sys.executable, script], input=json.dumps(tasks), stdout=subprocess.PIPE, text=True, check=True, timeout=900
    )
    found = json.loads(output.stdout)
    for folder, (target, *_) in zip(folders, CASES, strict=True):
        (folder / target).chmod(0o755)
    yield {case: (*rest, *result) for case, *rest, result in zip(CASES, folders, before, found, strict=True)}
    shutil.rmtree(root)


def give_away(path):
    if os.geteuid() == 0:
        for entry in (path, *path.rglob("*")):
            os.chown(entry, 54321, 54321)


def snapshot(folder):
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file() and file.name != ".lock"
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]} {case[1]:o} {case[2]}")
def test_permission(results, case):
    target, _, command = case
    folder, before, status, err = results[case]
    assert "Traceback" not in err, err
    if (target, command) in MAY_SUCCEED:
        assert status in (0, 2)
        return
    assert status == 2, err
    assert err.splitlines()[-1].startswith("fullrank: "), err
    assert snapshot(folder) == before
