"""Which invariances hold, for objectives of which the mathematics says so."""

import pytest

from fullrank.conformance import objective_case
from fullrank.conformance.invariances import CHANGES, HOLDS, invariances, measured
from fullrank.objectives import OBJECTIVES, barlow_twins, corinfomax, dino, frossl, moco, simclr, tico, vicreg

ORDERS = {"order of samples", "order of dimensions", "order of views"}
OF_COLUMNS = {"scale", "scale of each dimension", "shift of each dimension"}
OF_ROWS = {"scale", "scale of each row"}


def holding(objective, **numbers):
    return {name for name, change in measured(objective_case(objective, numbers=numbers)).items() if change <= HOLDS}


@pytest.mark.parametrize(
    ("objective", "numbers", "expected"),
    [
        (frossl, {}, ORDERS | OF_COLUMNS),
        (frossl, {"normalize": "matrix"}, ORDERS | {"rotation", "scale", "shift of each dimension"}),
        (barlow_twins, {}, ORDERS | OF_COLUMNS),
        (vicreg, {}, ORDERS | {"shift of each dimension"}),
        (vicreg, {"variance": 0.0, "covariance": 0.0}, ORDERS | {"rotation", "shift of each dimension"}),
        (simclr, {}, ORDERS | {"rotation"} | OF_ROWS),
        (moco, {}, ORDERS | {"rotation"} | OF_ROWS),  # the queue turns with the space
        (tico, {}, ORDERS | {"rotation"} | OF_ROWS),  # … and the running covariance
        (corinfomax, {}, ORDERS | {"rotation"}),
        (dino, {}, ORDERS),
    ],
)
def test_what_holds_is_what_the_mathematics_says(objective, numbers, expected):
    assert holding(objective, **numbers) == expected


def test_each_change_is_seen_by_something():
    """An objective of single entries sees them all."""

    def entries(Z):
        return {"loss": Z[0, 0, 0] + Z[-1, 1, 1].square() + Z[0, -1, -1].pow(3)}

    assert all(change > 1e-3 for change in measured(objective_case(entries)).values())


def test_all_are_only_noted():
    findings = invariances(objective_case(OBJECTIVES["vicreg"]))
    assert [finding.name for finding in findings] == [f"invariant under {name}" for name in CHANGES]
    assert {finding.verdict for finding in findings} == {"noted"}
    assert findings[-1].measured.startswith("does not: value changes by")
