"""`fullrank check`: the table and the exit status."""

import os
import textwrap

import pytest

MINE = """
    from fullrank.errors import UserError

    def correct(Z, *, weight: float = 1.0):
        U = Z / (1 + Z.square().sum(-1, keepdim=True)).sqrt()
        return {"weight": weight * (U - U.mean(0)).square().sum(), "spread": (U.mT @ U / U.shape[1]).square().sum()}

    def detached(Z):
        return {"loss": Z.detach().square().mean()}

    def refuses(Z):
        raise UserError("never")
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A folder to work in, with a module of losses."""
    (tmp_path / "mine_of_check.py").write_text(textwrap.dedent(MINE))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(os.getcwd())
    return tmp_path


@pytest.mark.ddp
def test_a_correct_loss_of_the_working_directory_ends_with_status_0(mine, fullrank):
    status, out, _ = fullrank("check", "mine_of_check:correct", "--processes", "2", "--hyper.weight", "2")
    assert status == 0
    assert "✓ passed weight weight" in out
    assert "✓ passed 2 processes" in out


def test_a_failed_check_ends_with_status_1_and_a_remedy(mine, fullrank):
    status, out, _ = fullrank("check", "mine_of_check:detached")
    assert status == 1
    assert "✗ failed differentiable" in out
    assert "remedy: remove detach" in out


def test_an_objective_that_cannot_be_tested_is_refused(mine, refused, fullrank):
    assert "has no function nothing" in refused("check", "mine_of_check:nothing")
    assert "did you mean 'frossl'" in refused("check", "frosl")
    assert "processes" in refused("check", "frossl", "--processes", "0")
    assert "--hyper.invariance" in refused("check", "frossl", "--hyper.invarianc", "2")
    assert "the first argument must be the objective" in refused("check", "--processes", "2", "frossl")
    status, _, err = fullrank("check", "mine_of_check:refuses")
    assert (status, err.splitlines()[-1]) == (2, "fullrank: never")
