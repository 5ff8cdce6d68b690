"""Fig. 2 at its smoke size, and its claims on spectra made up for the purpose."""

import json

import pytest

from fullrank.reproduce.directclr.fig2 import FIGURE


@pytest.fixture(scope="module")
def rows(smoke):
    return FIGURE.compute(smoke, data=None, seed=0)


def test_a_few_steps_leave_no_dimension_dead_and_none_full(rows):
    zero, subspace = FIGURE.claims(rows)
    assert not zero.holds
    assert zero.measured.startswith("0 of 8")
    assert subspace.holds


def test_dead_dimensions_count_where_every_run_has_some():
    def runs(*dead):
        return {
            "two layers": [
                {"embedding": {"dead": d, "D": 128, "effective_rank": 125.0 - d, "eigenvalues": [1.0, 10.0 ** -(6 * (d > 0))]}}
                for d in dead
            ]
        }

    assert [claim.holds for claim in FIGURE.claims(runs(30, 25))] == [True, True]
    assert [claim.holds for claim in FIGURE.claims(runs(30, 0))] == [False, False]


def test_rows_survive_json_and_are_drawn(rows):
    kept = json.loads(json.dumps(rows, allow_nan=False))
    assert FIGURE.claims(kept) == FIGURE.claims(rows)
    (axis,) = FIGURE.plot(kept).axes
    assert [len(line.get_xdata()) for line in axis.lines] == [8, 16]
