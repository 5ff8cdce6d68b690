"""Damaged run directories: each file damaged in many ways, then read from Python, by the report, by `load`, and by
resuming.

Each attempt must succeed or raise one `UserError`. Reading changes nothing. A resumed run may rewrite what it derives,
but no damage may reach its weights, and a file that it cannot read stays under its name or under NAME.damaged.
"""

import io
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

import fullrank
from fullrank.errors import UserError
from fullrank.methods import BackboneConfig, ProjectorConfig
from fullrank.recipes import RECIPES, SpectrumConfig
from fullrank.report import write_report
from fullrank.run import Run

LATEST = "checkpoints/step-00000004"
WEIGHTS, STATE, META = (f"{LATEST}/{name}" for name in ("model.safetensors", "state.pt", "meta.json"))
TEXT = ("recipe.json", "environment.json", "metrics.jsonl", "evaluation.json", "decode_errors.jsonl", META)
FILES = (*TEXT, "spectrum.npz", "views.png", WEIGHTS, STATE)


@pytest.fixture(scope="module")
def victim(tmp_path_factory):
    """A finished run of four steps with all of its files."""
    recipe = replace(
        RECIPES["digits"],
        epochs=2,
        batch_size=512,
        backbone=BackboneConfig(
            name="resnet18", arguments={"channels": [8, 8, 8, 8], "layers": [1, 1, 1, 1]}, stem="small"
        ),
        projector=ProjectorConfig(widths=(8,)),
        checkpoints=2,
        log_every=1,
        spectrum=SpectrumConfig(samples=20, every=2, train_batch_every=2),
    )
    path = tmp_path_factory.mktemp("victim") / "run"
    fullrank.pretrain(recipe, out=path, console=Console(quiet=True))
    from fullrank.cli import main

    assert main(["evaluate", str(path), "--probes", "knn", "--no-baselines"]) == 0
    (path / "decode_errors.jsonl").write_text('{"name": "a.jpg", "reason": "the file is empty"}\n')
    shutil.rmtree(path / "tensorboard")
    return path


# Damages of any file: name → function (path, bytes) that damages the file.
def _flip(path, content, share):
    position = min(int(share * len(content)), len(content) - 1)
    path.write_bytes(content[:position] + bytes([content[position] ^ 0x20]) + content[position + 1 :])


def _loop(path, content):
    path.unlink()
    path.symlink_to(path.name)


def _folder(path, content):
    path.unlink()
    path.mkdir()
    (path / "precious.txt").write_text("precious")


BYTE_DAMAGES = {
    **{
        f"cut at {k}/9": lambda path, content, k=k: path.write_bytes(content[: len(content) * k // 9])
        for k in range(1, 9)
    },
    **{f"flip at {k}/9": lambda path, content, k=k: _flip(path, content, k / 9) for k in range(10)},
    "cut by one": lambda path, content: path.write_bytes(content[:-1]),
    "cut by two": lambda path, content: path.write_bytes(content[:-2]),
    "empty": lambda path, content: path.write_bytes(b""),
    "removed": lambda path, content: path.unlink(),
    "a folder": _folder,
    "a link to itself": _loop,
    "zeros": lambda path, content: path.write_bytes(bytes(len(content))),
    "a zero block": lambda path, content: path.write_bytes(
        content[: len(content) // 3] + bytes(64) + content[len(content) // 3 + 64 :]
    ),
    "not utf-8": lambda path, content: path.write_bytes(b"\xff\xfe\x80" + content),
    "byte order mark": lambda path, content: path.write_bytes(b"\xef\xbb\xbf" + content),
    "doubled": lambda path, content: path.write_bytes(content + content),
    "reversed": lambda path, content: path.write_bytes(content[::-1]),
    "another file": lambda path, content: path.write_bytes(b"PK\x03\x04" + os.urandom(300)),
    "deep json": lambda path, content: path.write_bytes(b"[" * 100_000),
    "a number": lambda path, content: path.write_bytes(b"7"),
    "null": lambda path, content: path.write_bytes(b"null\n"),
    "a list": lambda path, content: path.write_bytes(b"[1, 2]"),
    "an empty object": lambda path, content: path.write_bytes(b"{}"),
    "a huge number": lambda path, content: path.write_bytes(b'{"step": 1e999, "epochs": ' + b"9" * 5000 + b"}"),
}

WRONG = {
    "null": None,
    "text": "x\x1b[31m",
    "negative": -1,
    "list": [[]],
    "object": {"a": 1},
    "huge": 10**30,
    "fraction": 0.5,
    "true": True,
}

# Fields by file; in a .jsonl file, the field of one row.
FIELDS = {
    "environment.json": ("torch", "seed", "duration_seconds", "spectrum_share", "hardware", "started"),
    "metrics.jsonl": ("kind", "step", "loss", "terms", "lr", "leading_eigenvalues"),
    "evaluation.json": (None,),
    "decode_errors.jsonl": ("name", "reason"),
    META: ("step", "recipe", "epochs", "log_every", "images", "rounding", "fingerprint", "checksums"),
}
ARRAY_DAMAGES = {
    "missing": lambda arrays, name: arrays.pop(name),
    "text": lambda arrays, name: arrays.update({name: np.array(["x"] * len(arrays[name]))}),
    "objects": lambda arrays, name: arrays.update({name: np.array([{}] * len(arrays[name]), dtype=object)}),
    "complex": lambda arrays, name: arrays.update({name: arrays[name].astype(complex)}),
    "a scalar": lambda arrays, name: arrays.update({name: np.float64(3)}),
    "one axis more": lambda arrays, name: arrays.update({name: arrays[name][..., None]}),
    "shorter": lambda arrays, name: arrays.update({name: arrays[name][:-1]}),
    "other width": lambda arrays, name: arrays.update({name: np.ones((len(arrays[name]), 3), np.float32)}),
    "not finite": lambda arrays, name: arrays.update({name: np.full(arrays[name].shape, np.nan)}),
    "no rows": lambda arrays, name: arrays.update({name: arrays[name][:0]}),
}


def wrong_field(path, field, value):
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    row = json.loads(lines[0])
    if field is None:  # a list of objects
        key = next(iter(row))
        row[key] = value
    else:
        row[field] = value
    lines[0] = json.dumps(row)
    path.write_text("\n".join(lines) + "\n")


def wrong_array(path, name, damage):
    with np.load(path) as file:
        arrays = dict(file)
    ARRAY_DAMAGES[damage](arrays, name)
    np.savez(path, **arrays)


def read_from_python(path, out):
    run = Run(path)
    evaluation = "evaluations" if hasattr(Run, "evaluations") else "evaluation"
    for read in (
        *(
            lambda name=name: getattr(run, name)
            for name in ("recipe", "metrics", "spectra", "environment", "checkpoints", evaluation)
        ),
        lambda: run.metrics.to_dicts(),
        lambda: run.checkpoint().meta(),
        lambda: run.checkpoint().weights(),
        lambda: run.checkpoint().state(),
    ):
        attempt(read)


def read_by_report(path, out):
    attempt(lambda: write_report([path], out / "report.html"))


def read_by_load(path, out):
    model = attempt(lambda: fullrank.load(path))
    if model is not None:
        assert all(value.isfinite().all() for value in model.backbone.state_dict().values())


READERS = {"python": read_from_python, "report": read_by_report, "load": read_by_load}


def attempt(action):
    """Return the result of an action, or None after a UserError of one line."""
    try:
        return action()
    except UserError as error:
        message = str(error)
    assert len(message.splitlines()) == 1, message
    assert len(message) < 1500, message
    return None


def copied(victim, folder):
    return Path(shutil.copytree(victim, folder / "run"))


def snapshot(path):
    """Relative path → content, or target of a link, of each file."""
    files = (file for file in path.rglob("*") if file.is_symlink() or file.is_file())
    contents = {
        str(file.relative_to(path)): os.readlink(file) if file.is_symlink() else file.read_bytes() for file in files
    }
    return {name: content for name, content in contents.items() if name != ".lock"}


def read(victim, tmp_path, damage, reader):
    path = copied(victim, tmp_path)
    damage(path)
    before = snapshot(path)
    READERS[reader](path, tmp_path)
    assert snapshot(path) == before, "reading changed the run"


def resume(victim, tmp_path, damage, target):
    path = copied(victim, tmp_path)
    damage(path)
    before, output = snapshot(path), io.StringIO()
    run = attempt(lambda: fullrank.pretrain(resume=path, console=Console(file=output)))
    after = snapshot(path)
    assert "Traceback" not in output.getvalue()
    for name in (WEIGHTS, STATE, META, "evaluation.json"):
        assert after.get(name) == before.get(name), f"resuming a finished run changed {name}"
    if run is None:
        assert after == before, "a refused run was changed"
        return
    weights = Run(path).checkpoint().weights()
    original = Run(victim).checkpoint().weights()
    assert weights.keys() == original.keys()
    assert all(torch.equal(weights[name], original[name]) for name in weights)
    assert is_kept(target, before, after), f"{target} is lost"


def is_kept(target, before, after):
    """Whether a damaged file was left, renamed, or rewritten with all of its complete rows."""
    if f"{target}/precious.txt" in before:
        return b"precious" in after.values()
    content = before.get(target, b"")
    if content in (after.get(target, b""), after.get(f"{target}.damaged", b"")):
        return True
    if target == "environment.json":  # rewritten with the new duration
        return set(json.loads(content) or ()) <= set(json.loads(after[target]))
    return set(content.split(b"\n")[:-1]) <= set(after[target].split(b"\n"))


BYTES = [(file, damage) for file in FILES for damage in BYTE_DAMAGES]
READ_BYTES = [
    (file, damage, reader)
    for file, damage in BYTES
    for reader in READERS
    if reader == "python" or (reader == "report") != (file in (WEIGHTS, STATE, META))
    if reader != "load" or file in (WEIGHTS, META)
    if reader != "report" or file != "recipe.json" or damage[:4] != "flip"
]


@pytest.mark.parametrize(("file", "damage", "reader"), READ_BYTES)
def test_reading_a_file_with_damaged_bytes(victim, tmp_path, file, damage, reader):
    read(victim, tmp_path, lambda path: BYTE_DAMAGES[damage](path / file, (path / file).read_bytes()), reader)


@pytest.mark.parametrize(("file", "field"), [(file, field) for file, fields in FIELDS.items() for field in fields])
@pytest.mark.parametrize("value", WRONG)
def test_reading_a_field_of_the_wrong_type(victim, tmp_path, file, field, value):
    read(
        victim,
        tmp_path,
        lambda path: wrong_field(path / file, field, WRONG[value]),
        "python" if file == META else "report",
    )


@pytest.mark.parametrize("name", ["steps", "samples", "backbone", "projector"])
@pytest.mark.parametrize("damage", ARRAY_DAMAGES)
def test_reading_a_wrong_array(victim, tmp_path, name, damage):
    read(victim, tmp_path, lambda path: wrong_array(path / "spectrum.npz", name, damage), "report")


RESUMED = [
    *[
        (file, damage)
        for file in FILES
        for damage in ("cut at 4/9", "empty", "removed", "a folder", "zeros", "null", "an empty object")
    ],
    *[(file, f"flip at {k}/9") for file in (WEIGHTS, STATE, META) for k in (0, 3, 7)],
]


@pytest.mark.parametrize(("file", "damage"), RESUMED)
def test_resuming_a_run_with_damaged_bytes(victim, tmp_path, file, damage):
    resume(victim, tmp_path, lambda path: BYTE_DAMAGES[damage](path / file, (path / file).read_bytes()), file)


@pytest.mark.parametrize("field", FIELDS[META])
@pytest.mark.parametrize("value", ["null", "text", "object"])
def test_resuming_a_checkpoint_with_wrong_metadata(victim, tmp_path, field, value):
    resume(victim, tmp_path, lambda path: wrong_field(path / META, field, WRONG[value]), META)
