"""Tests of the result that a process writes for its parent."""

import signal
import sys

import pytest

from fullrank.errors import Interrupted, UserError
from fullrank.recipes import RECIPES, to_dict
from fullrank.run import pretrain as pretraining
from fullrank.run.launch import process
from fullrank.run.launch.process import ProcessFiles, ProcessResult, ProcessSpec


@pytest.fixture
def work(monkeypatch, tmp_path):
    """`work(train_on_rank)`: the exit status and the result of a process that runs this function."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(process, "stop_with_parent", lambda folder: None)
    monkeypatch.setattr(sys, "argv", sys.argv)
    files = ProcessFiles(tmp_path)
    recipe = to_dict(RECIPES["digits"])
    argv = ["fullrank", "pretrain"]
    spec = ProcessSpec(
        recipe=recipe,
        out="a run",
        resume=False,
        overwrite=True,
        hours=2.0,
        trust=["my_module:f"],
        wandb=False,
        quiet=True,
        argv=argv,
    )
    before = signal.getsignal(signal.SIGINT)

    def end(train_on_rank):
        monkeypatch.setattr(pretraining, "train_on_rank", train_on_rank)
        files.write_spec(spec)
        status = process.main(tmp_path)
        return status, files.read_results(2)[1]

    yield end
    signal.signal(signal.SIGINT, before)


def test_a_process_trains_as_the_spec_says(work, tmp_path):
    seen = []

    def train_on_rank(recipe, path, **keywords):
        seen.append((recipe, str(path), keywords.pop("console").quiet, keywords.pop("on_path"), keywords, sys.argv))

    assert work(train_on_rank) == (0, ProcessResult("succeeded"))
    ((recipe, path, quiet, on_path, keywords, argv),) = seen
    assert (recipe, path, quiet, argv) == (RECIPES["digits"], "a run", True, ["fullrank", "pretrain"])
    assert keywords == {"resume": False, "overwrite": True, "hours": 2.0, "trust": ["my_module:f"], "wandb": False}
    on_path(tmp_path / "run")
    assert ProcessFiles(tmp_path).read_run_path() == tmp_path / "run"


@pytest.mark.parametrize(
    ("error", "status", "result"),
    [
        (UserError("fix it"), 2, ProcessResult("user error", "fix it")),
        (Interrupted(15, "stopped after step 3"), 0, ProcessResult("interrupted", "stopped after step 3", 15)),
    ],
)
def test_a_user_error_or_an_interruption_is_reported_by_its_message(error, status, result, work):
    def train_on_rank(*arguments, **keywords):
        raise error

    assert work(train_on_rank) == (status, result)


@pytest.mark.parametrize("error", [ZeroDivisionError("division by zero"), SystemExit(3)])
def test_any_other_exception_is_reported_with_its_traceback(error, work):
    def train_on_rank(*arguments, **keywords):
        raise error

    status, result = work(train_on_rank)
    assert (status, result.status) == (1, "failed")
    assert result.message.startswith("Traceback")
    assert result.message.splitlines()[-1] == f"{type(error).__name__}: {error}"
