"""The rows of every figure at its smoke size, computed once."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from fullrank.reproduce import load_figure
from fullrank.reproduce.directclr.study import SIZES
from fullrank.reproduce.result import round_numbers


@pytest.fixture(scope="session")
def smoke(tmp_path_factory):
    """Return the smoke size of DirectCLR's projector study; its figures share one folder of runs."""
    return replace(SIZES["smoke"], runs=str(tmp_path_factory.mktemp("study")))


@pytest.fixture(scope="session")
def smoke_rows(smoke):
    """Return a function from the name of a figure to its rows."""

    @cache
    def compute(name):
        figure = load_figure(name)
        size = smoke if figure.sizes is SIZES else figure.sizes["smoke"]
        return round_numbers(figure.compute(size, data=None, seed=0))

    return compute


@pytest.fixture(scope="module")
def rows(smoke_rows, request):
    """Return the rows of the figure that a test module is named after."""
    path = Path(request.path)
    return smoke_rows(f"{path.parent.name}/{path.stem.removeprefix('test_')}")
