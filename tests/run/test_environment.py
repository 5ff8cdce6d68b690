import getpass
import json
import os
import shutil
import socket
import subprocess
import sys
from dataclasses import replace
from datetime import datetime
from importlib.metadata import version

import pytest

from fullrank.recipes import RECIPES
from fullrank.run.environment import commit, describe_environment


def test_the_environment_has_versions_command_and_seed_and_neither_user_nor_host(monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    command = ["/home/someone/venv/bin/fullrank", "pretrain", "/home/someone/my photos", "--out=/home/someone/run"]
    monkeypatch.setattr(sys, "argv", command)
    found = describe_environment(replace(RECIPES["digits"], seed=7))
    assert (found["torch"], found["fullrank"], found["seed"]) == (version("torch"), version("fullrank"), 7)
    assert found["command"] == "fullrank pretrain '~/my photos' --out=~/run"
    assert found["hardware"]["cores"] == os.cpu_count()
    assert datetime.fromisoformat(found["started"]).utcoffset().total_seconds() == 0
    text = json.dumps(found)
    assert json.loads(text) == found
    for secret in ("someone", socket.gethostname(), getpass.getuser()):
        if len(secret) > 4:  # a short name, e.g. 'root' or 'vm', may be part of any word
            assert secret not in text


def git(folder, *arguments):
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_commit_is_marked_if_files_changed_and_none_without_a_checkout(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    file = tmp_path / "environment.py"
    file.write_text("# as committed\n")
    assert commit(file) is None
    git(tmp_path, "init", "-q")
    assert commit(file) is None  # not tracked in this checkout
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    head = git(tmp_path, "rev-parse", "HEAD")
    assert commit(file) == head[:12]
    file.write_text("# changed\n")
    assert commit(file) == head[:12] + "+changes"
