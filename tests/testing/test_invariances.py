"""The invariances of objectives that are known from their formulas."""

import pytest

from fullrank.objectives import OBJECTIVES, barlow_twins, corinfomax, dino, frossl, moco, simclr, tico, vicreg
from fullrank.testing import objective_case
from fullrank.testing.invariances import ROUNDING, TRANSFORMS, check_invariances, relative_changes

ORDERS = {"order of samples", "order of dimensions", "order of views"}
COLUMN_INVARIANCES = {"scale", "scale of each dimension", "shift of each dimension"}
ROW_INVARIANCES = {"scale", "scale of each row"}


def invariances(objective, **hyper):
    return {
        name for name, change in relative_changes(objective_case(objective, hyper=hyper)).items() if change <= ROUNDING
    }


@pytest.mark.parametrize(
    ("objective", "hyper", "expected"),
    [
        (frossl, {}, ORDERS | COLUMN_INVARIANCES),
        (frossl, {"normalize": "matrix"}, ORDERS | {"rotation", "scale", "shift of each dimension"}),
        (barlow_twins, {}, ORDERS | COLUMN_INVARIANCES),
        (vicreg, {}, ORDERS | {"shift of each dimension"}),
        (vicreg, {"variance": 0.0, "covariance": 0.0}, ORDERS | {"rotation", "shift of each dimension"}),
        (simclr, {}, ORDERS | {"rotation"} | ROW_INVARIANCES),
        (moco, {}, ORDERS | {"rotation"} | ROW_INVARIANCES),  # the queue rotates too
        (tico, {}, ORDERS | {"rotation"} | ROW_INVARIANCES),  # and the running covariance
        (corinfomax, {}, ORDERS | {"rotation"}),
        (dino, {}, ORDERS),
    ],
)
def test_invariances_are_those_of_the_formula(objective, hyper, expected):
    assert invariances(objective, **hyper) == expected


def test_an_objective_of_single_entries_has_no_invariance():
    def entries(Z):
        return {"loss": Z[0, 0, 0] + Z[-1, 1, 1].square() + Z[0, -1, -1].pow(3)}

    assert all(change > 1e-3 for change in relative_changes(objective_case(entries)).values())


def test_no_invariance_is_required():
    results = check_invariances(objective_case(OBJECTIVES["vicreg"]))
    assert [result.name for result in results] == [f"invariant under {name}" for name in TRANSFORMS]
    assert {result.status for result in results} == {"info"}
    assert results[-1].measured.startswith("no: value changes by")
