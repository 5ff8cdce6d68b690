"""The benchmarks are scripts, which import each other by their bare names."""

import sys
from pathlib import Path

import pytest
import torch


@pytest.fixture(autouse=True)
def scripts(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    monkeypatch.setitem(sys.modules, "lightly", None)  # as if it was not installed
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
