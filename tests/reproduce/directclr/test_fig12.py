"""Fig. 12 at its smoke size, and its claims on accuracies made up for the purpose."""

import json

import pytest

from fullrank.reproduce.directclr.fig12 import FIGURE


@pytest.fixture(scope="module")
def rows(smoke):
    return FIGURE.compute(smoke, data=None, seed=0)


def test_the_sweep_goes_from_few_dimensions_to_all_and_one_seed_resolves_nothing(rows):
    assert list(rows["runs"]) == ["2", "4", "all"]
    claims = FIGURE.claims(rows)
    assert [claim.holds for claim in claims] == [False] * 3
    assert "d0 = 4 beats d0 = 2" in claims[0].statement


def test_a_maximum_between_the_ends_is_seen_and_one_at_an_end_is_none():
    def rows(**accuracies):
        runs = {
            d0.removeprefix("d"): [
                {"accuracy": {"whole": a + k / 10 + k * a / 1e3}, "representation": {"effective_rank": 100 * a + k * a}} for k in range(3)
            ]
            for d0, a in accuracies.items()
        }
        return {"tuned": "22", "runs": runs}

    assert [claim.holds for claim in FIGURE.claims(rows(d4=0.4, d11=0.7, d22=0.6, all=0.5))] == [True, True, True]
    assert [claim.holds for claim in FIGURE.claims(rows(d4=0.4, d11=0.5, d22=0.6, all=0.7))] == [True, False, False]


def test_rows_survive_json_and_are_drawn(rows):
    kept = json.loads(json.dumps(rows, allow_nan=False))
    assert FIGURE.claims(kept) == FIGURE.claims(rows)
    accuracy, rank = FIGURE.plot(kept).axes
    assert accuracy.lines[0].get_xdata().tolist() == [2, 4, 16]
    assert rank.get_ylabel() == "effective rank of r"
