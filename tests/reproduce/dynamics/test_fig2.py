import json

import pytest
import torch

from fullrank.reproduce.dynamics.fig2 import FIGURE, exponent, rms


@pytest.fixture(scope="module")
def rows():
    return FIGURE.compute(FIGURE.sizes["smoke"], data=None, seed=0)


def test_relu_does_not_approach_and_sigmoid_does_not_grow_at_the_start_and_the_rest_holds(rows):
    failed = [claim.statement for claim in FIGURE.claims(json.loads(json.dumps(rows))) if not claim.holds]
    assert failed == [
        "ReLU: the difference goes to zero as well, but more slowly",
        "sigmoid: the difference grows with the width at the start",
    ]


def test_networks_of_sigmoid_units_in_the_place_of_tanh_refute_the_claims_on_tanh(rows):
    swapped = {**rows, "widths": [{**row, "tanh": row["sigmoid"], "relu": row["tanh"]} for row in rows["widths"]]}
    held = [claim.holds for claim in FIGURE.claims(swapped)]
    assert (held[0], held[1]) == (False, True)
    assert not any(held[5:7])


def test_the_root_mean_square_is_over_starts_and_samples():
    U = torch.arange(24, dtype=torch.float64).reshape(2, 3, 2, 2)
    for k in range(3):
        naive = sum(U[s, k, i, j] ** 2 for s in range(2) for i in range(2) for j in range(2)) / 4
        assert rms(U)[k] == pytest.approx(naive.sqrt())


def test_the_exponent_of_a_power_law_is_found():
    rows = {"widths": [{"width": h, "tanh": {"end": 3 * h**-1.25}} for h in (10, 20, 70)]}
    assert exponent(rows, "tanh", "end") == pytest.approx(-1.25)


def test_it_is_drawn_with_both_rows_for_each_activation(rows):
    assert [axes.get_title(loc="left") or axes.get_title() for axes in FIGURE.plot(rows).axes[:3]] == ["sigmoid", "ReLU", "tanh"]
