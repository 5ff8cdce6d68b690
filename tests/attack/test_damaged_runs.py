"""Damaged run directories: each file damaged in several ways, then read from Python, by the report, by `load`, and by
resuming. Each attempt must succeed or raise one `UserError`, and no damage may reach the weights."""

import json
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

import fullrank
from fullrank.errors import UserError
from fullrank.report import write_report
from fullrank.run import Run

QUIET = Console(quiet=True)
LATEST = "checkpoints/step-00000004"
WEIGHTS, STATE, META = (f"{LATEST}/{name}" for name in ("model.safetensors", "state.pt", "meta.json"))
FILES = (
    "recipe.json",
    "environment.json",
    "metrics.jsonl",
    "spectrum.npz",
    "decode_errors.jsonl",
    META,
    WEIGHTS,
    STATE,
)


@pytest.fixture(scope="module")
def victim(small, tmp_path_factory):
    """A finished run of four steps."""
    path = tmp_path_factory.mktemp("victim") / "run"
    fullrank.pretrain(replace(small, batch_size=512, checkpoints=2), out=path, console=QUIET)
    (path / "decode_errors.jsonl").write_text('{"name": "a.jpg", "reason": "the file is empty"}\n')
    return path


def flip(path, content):
    middle = len(content) // 2
    path.write_bytes(content[:middle] + bytes([content[middle] ^ 0x20]) + content[middle + 1 :])


def loop(path, content):
    path.unlink()
    path.symlink_to(path.name)


def folder(path, content):
    path.unlink()
    path.mkdir()


DAMAGES = {
    "cut": lambda path, content: path.write_bytes(content[: len(content) // 2]),
    "flip": flip,
    "empty": lambda path, content: path.write_bytes(b""),
    "removed": lambda path, content: path.unlink(),
    "a folder": folder,
    "a link to itself": loop,
    "not utf-8": lambda path, content: path.write_bytes(b"\xff\xfe\x80" + content),
    "deep json": lambda path, content: path.write_bytes(b"[" * 100_000),
    "a list": lambda path, content: path.write_bytes(b"[1, 2]"),
    "an empty object": lambda path, content: path.write_bytes(b"{}"),
}
READERS = {
    "Python": lambda path: (Run(path).recipe, Run(path).metrics, Run(path).spectra, Run(path).environment),
    "load": fullrank.load,
    "report": lambda path: write_report([path], path / "report.html"),
}


def refuse_or_do(function, *arguments, **keywords):
    """Call a function, which may refuse; return whether it did not."""
    with suppress(UserError):
        function(*arguments, **keywords)
        return True
    return False


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("file", FILES)
def test_reading_a_damaged_run_is_done_or_refused_in_one_line(victim, tmp_path, file, damage):
    path = Path(shutil.copytree(victim, tmp_path / "run"))
    DAMAGES[damage](path / file, (path / file).read_bytes())
    for read in READERS.values():
        refuse_or_do(read, path)


@pytest.mark.parametrize(
    ("file", "damage"),
    [(META, "a list"), (WEIGHTS, "flip"), (STATE, "flip"), ("metrics.jsonl", "flip"), ("environment.json", "cut")],
)
def test_a_damaged_run_is_resumed_with_the_same_weights_or_refused(victim, tmp_path, file, damage):
    path = Path(shutil.copytree(victim, tmp_path / "run"))
    shutil.rmtree(path / "checkpoints" / "step-00000004") if file[:11] != "checkpoints" else None
    DAMAGES[damage](path / file, (path / file).read_bytes())
    if refuse_or_do(fullrank.pretrain, resume=path, console=QUIET):
        one, other = (run.checkpoint().weights() for run in (Run(path), Run(victim)))
        assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("field", ["step", "recipe", "epochs", "images", "rounding", "fingerprint", "checksums"])
@pytest.mark.parametrize("value", [None, "x\x1b[31m"], ids=str)
def test_a_checkpoint_with_wrong_metadata_is_refused(victim, tmp_path, field, value):
    path = Path(shutil.copytree(victim, tmp_path / "run"))
    meta = json.loads((path / META).read_text())
    (path / META).write_text(json.dumps(meta | {field: value}))
    refuse_or_do(fullrank.pretrain, resume=path, console=QUIET)
