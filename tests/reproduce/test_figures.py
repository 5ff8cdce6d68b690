"""Every figure at its smoke size."""

import json

import pytest

from fullrank.reproduce import FIGURES, load_figure


@pytest.mark.parametrize("name", FIGURES)
def test_rows_survive_json_and_are_plotted(smoke_rows, name):
    figure, rows = load_figure(name), smoke_rows(name)
    loaded = json.loads(json.dumps(rows, allow_nan=False))
    assert loaded == rows
    assert figure.claims(loaded) == figure.claims(rows)
    assert all(axis.has_data() for axis in figure.plot(loaded).axes)
