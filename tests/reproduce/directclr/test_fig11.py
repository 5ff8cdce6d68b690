"""Fig. 11 at its smoke size: depth and collapse."""

import json

import pytest

from fullrank.reproduce.directclr.fig11 import FIGURE


@pytest.fixture(scope="module")
def rows():
    return FIGURE.compute(FIGURE.sizes["smoke"], data=None, seed=0)


def test_deeper_networks_collapse_more(rows):
    one_layer, linear, relu, product = FIGURE.claims(rows)
    assert one_layer.holds
    assert linear.holds
    assert relu.holds
    assert product.holds
    assert [claim.corrected for claim in (one_layer, linear, relu, product)] == [False, False, False, True]


def test_all_depths_start_from_one_product(rows):
    first = rows["product"][0]["start"]
    for spectra in rows["product"]:
        assert spectra["start"] == pytest.approx(first)


def test_rows_survive_json_and_plot(rows):
    loaded = json.loads(json.dumps(rows, allow_nan=False))
    assert FIGURE.claims(loaded) == FIGURE.claims(rows)
    assert len(FIGURE.plot(loaded).axes) == 3
