"""Table 1 with Figs. 7 and 9 at its smoke size, and its claims on spectra made up for the purpose."""

import json

import pytest

from fullrank.reproduce.directclr.table1 import FIGURE, PAPER


@pytest.fixture(scope="module")
def rows(smoke):
    return FIGURE.compute(smoke, data=None, seed=0)


def test_one_seed_resolves_no_order(rows):
    claims = FIGURE.claims(rows)
    assert [claim.holds for claim in claims] == [False] * 8
    assert sum("n = 1: not resolved" in claim.measured for claim in claims) == 7


def test_collapse_is_seen_where_it_is():
    def run(name, seed):
        dead = 40 if name == "none" else 0
        spectrum = {"dead": dead, "D": 128, "effective_rank": 80 - dead + seed / 10 + len(name) / 100}
        return {"accuracy": {"whole": PAPER[name] / 100 + seed / 50}, "representation": spectrum}

    rows = {name: [run(name, seed) for seed in range(3)] for name in PAPER}
    assert all(claim.holds for claim in FIGURE.claims(rows))
    assert FIGURE.claims(rows)[4].measured == "40 of 128, 40 of 128, 40 of 128"


def test_rows_survive_json_and_are_drawn(rows):
    kept = json.loads(json.dumps(rows, allow_nan=False))
    assert FIGURE.claims(kept) == FIGURE.claims(rows)
    accuracies, spectra = FIGURE.plot(kept).axes
    assert len(accuracies.get_yticks()) == len(spectra.lines) == 4
