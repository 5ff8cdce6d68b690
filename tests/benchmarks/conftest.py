"""The benchmarks are scripts, which import each other by their bare names."""

import sys
from pathlib import Path

import pytest
import torch


@pytest.fixture(autouse=True)
def scripts(monkeypatch):
    folder = Path(__file__).parents[2] / "benchmarks"
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setitem(sys.modules, "lightly", None)  # as if it was not installed
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    for name in {path.stem for path in folder.glob("*.py")} & sys.modules.keys():
        del sys.modules[name]  # such as `losses`, which may be the name of a user's module in another test
