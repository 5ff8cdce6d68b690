"""The rows of the figures at their smoke size."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fullrank_papers.figures import load_figure
from fullrank_papers.figures.directclr.study import SIZES
from fullrank_papers.figures.result import round_numbers


@pytest.fixture(scope="session")
def smoke(tmp_path_factory):
    """Return the smoke size of DirectCLR's projector study; its figures share one folder of runs."""
    return replace(SIZES["smoke"], runs=str(tmp_path_factory.mktemp("study")))


@pytest.fixture(scope="module")
def rows(smoke, request):
    """Return the rows of the figure that a test module is named after. They survive JSON, and every axis of their plot
    has data."""
    path = Path(request.path)
    figure = load_figure(f"{path.parent.name}/{path.stem.removeprefix('test_')}")
    rows = round_numbers(figure.compute(smoke if figure.sizes is SIZES else figure.sizes["smoke"], data=None, seed=0))
    assert json.loads(json.dumps(rows, allow_nan=False)) == rows
    assert all(axis.has_data() for axis in figure.plot(rows).axes)
    return rows
