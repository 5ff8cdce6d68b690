"""Stepwise learning at the smoke size: the verdict on each claim, on the digits."""

from fullrank_papers.figures.stepwise.steps import FIGURE


def test_all_claims_hold(rows):
    claims = FIGURE.claims(rows)
    assert [claim.holds for claim in claims] == [True] * 6
    assert [claim.kind for claim in claims] == ["claim from memory"] * 5 + ["correction"]


def test_wrong_step_time_refutes_the_claim(rows):
    late = {**rows, "kernel": {**rows["kernel"], "measured": [1.05 * t for t in rows["kernel"]["measured"]]}}
    assert [claim.holds for claim in FIGURE.claims(late)][:2] == [True, False]


def test_wrong_order_refutes_the_claim(rows):
    linear = {**rows["linear"], "measured by mode": rows["linear"]["measured by mode"][::-1]}
    assert not FIGURE.claims({**rows, "linear": linear})[2].holds
