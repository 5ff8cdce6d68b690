"""Fig. 11 at its smoke size: depth and collapse."""

import pytest

from fullrank_papers.figures.directclr.fig11 import FIGURE


def test_deeper_networks_collapse_more(rows):
    one_layer, linear, relu, product = FIGURE.claims(rows)
    assert one_layer.holds
    assert linear.holds
    assert relu.holds
    assert product.holds
    assert [claim.kind for claim in (one_layer, linear, relu, product)] == ["claim", "claim", "claim", "correction"]


def test_all_depths_start_from_one_product(rows):
    first = rows["product"][0]["start"]
    for spectra in rows["product"]:
        assert spectra["start"] == pytest.approx(first)
