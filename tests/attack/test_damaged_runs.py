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
FILES = ("recipe.json", "environment.json", "metrics.jsonl", "spectrum.npz", META, WEIGHTS, STATE)


@pytest.fixture(scope="module")
def victim(small, tmp_path_factory):
    """A finished run of four steps."""
    path = tmp_path_factory.mktemp("victim") / "run"
    fullrank.pretrain(replace(small, batch_size=512, checkpoints=2), out=path, console=QUIET)
    return path


def flip(path, content):
    middle = len(content) // 2
    path.write_bytes(content[:middle] + bytes([content[middle] ^ 0x20]) + content[middle + 1 :])


DAMAGES = {
    "cut": lambda path, content: path.write_bytes(content[: len(content) // 2]),
    "flip": flip,
    "removed": lambda path, content: path.unlink(),
    "a folder": lambda path, content: (path.unlink(), path.mkdir()),
    "a link to itself": lambda path, content: (path.unlink(), path.symlink_to(path.name)),
    "not utf-8": lambda path, content: path.write_bytes(b"\xff\xfe\x80" + content),
    "deep json": lambda path, content: path.write_bytes(b"[" * 100_000),
    "an empty object": lambda path, content: path.write_bytes(b"{}"),
}


def refuse_or_do(function, *arguments, **keywords):
    """Call a function, which may refuse; return whether it did not."""
    with suppress(UserError):
        function(*arguments, **keywords)
        return True
    return False


@pytest.mark.parametrize("damage", DAMAGES)
def test_reading_a_damaged_run_is_done_or_refused_in_one_line(victim, tmp_path, damage):
    for number, file in enumerate(FILES):
        path = Path(shutil.copytree(victim, tmp_path / str(number)))
        DAMAGES[damage](path / file, (path / file).read_bytes())
        run = Run(path)
        for name in ("recipe", "metrics", "spectra", "environment"):
            refuse_or_do(getattr, run, name)
        refuse_or_do(fullrank.load, path)
        refuse_or_do(write_report, [path], path / "report.html")


@pytest.mark.parametrize(
    ("file", "damage"),
    [(META, "deep json"), (WEIGHTS, "flip"), (STATE, "flip"), ("metrics.jsonl", "flip"), ("environment.json", "cut")],
)
def test_a_damaged_run_is_resumed_with_the_same_weights_or_refused(victim, tmp_path, file, damage):
    path = Path(shutil.copytree(victim, tmp_path / "run"))
    shutil.rmtree(path / LATEST) if not file.startswith(LATEST) else None
    DAMAGES[damage](path / file, (path / file).read_bytes())
    if refuse_or_do(fullrank.pretrain, resume=path, console=QUIET):
        one, other = (run.checkpoint().weights() for run in (Run(path), Run(victim)))
        assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("field", ["step", "recipe", "epochs", "rounding", "fingerprint", "checksums"])
def test_a_checkpoint_with_wrong_metadata_ends_in_no_traceback(victim, tmp_path, field):
    path = Path(shutil.copytree(victim, tmp_path / "run"))
    meta = json.loads((path / META).read_text())
    (path / META).write_text(json.dumps(meta | {field: "x\x1b[31m"}))
    refuse_or_do(fullrank.pretrain, resume=path, console=QUIET)
