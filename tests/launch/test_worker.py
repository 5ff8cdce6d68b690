"""How one of several processes tells its parent how it ended."""

import signal
import sys

import pytest

from fullrank import pretraining
from fullrank.errors import Interrupted, UserError
from fullrank.launch import worker
from fullrank.launch.messages import Mailbox, Outcome, Task
from fullrank.recipes import RECIPES, to_dict


@pytest.fixture
def work(monkeypatch, tmp_path):
    """`work(train_on_rank)`: the exit status of a process that takes part so, and what it reported."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(worker, "end_with_parent", lambda: None)
    monkeypatch.setattr(sys, "argv", sys.argv)
    office = Mailbox(tmp_path)
    task = Task(to_dict(RECIPES["digits"]), "a run", resume=False, overwrite=True, wandb=False, quiet=True, argv=["fullrank", "pretrain"])
    before = signal.getsignal(signal.SIGINT)

    def end(train_on_rank):
        monkeypatch.setattr(pretraining, "train_on_rank", train_on_rank)
        office.give(task)
        status = worker.main(tmp_path)
        return status, office.outcomes(2)[1]

    yield end
    signal.signal(signal.SIGINT, before)


def test_the_task_is_carried_out_as_it_was_given(work, tmp_path):
    seen = []

    def train_on_rank(recipe, path, **keywords):
        seen.append((recipe, str(path), keywords.pop("console").quiet, keywords.pop("announce"), keywords, sys.argv))

    assert work(train_on_rank) == (0, Outcome("done"))
    ((recipe, path, quiet, announce, keywords, argv),) = seen
    assert (recipe, path, quiet, argv) == (RECIPES["digits"], "a run", True, ["fullrank", "pretrain"])
    assert keywords == {"resume": False, "overwrite": True, "wandb": False}
    announce(tmp_path / "run")
    assert Mailbox(tmp_path).run() == tmp_path / "run"


@pytest.mark.parametrize(
    ("error", "status", "outcome"),
    [
        (UserError("mend it"), 2, Outcome("refused", "mend it")),
        (Interrupted(15, "stopped after step 3"), 0, Outcome("stopped", "stopped after step 3", 15)),
    ],
)
def test_what_is_no_bug_is_told_in_its_own_words(error, status, outcome, work):
    def train_on_rank(*arguments, **keywords):
        raise error

    assert work(train_on_rank) == (status, outcome)


@pytest.mark.parametrize("error", [ZeroDivisionError("division by zero"), SystemExit(3)])
def test_a_bug_is_told_with_its_traceback(error, work):
    def train_on_rank(*arguments, **keywords):
        raise error

    status, outcome = work(train_on_rank)
    assert (status, outcome.kind) == (1, "failed")
    assert outcome.message.startswith("Traceback")
    assert outcome.message.splitlines()[-1] == f"{type(error).__name__}: {error}"
