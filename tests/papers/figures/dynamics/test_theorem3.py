import json
import re

import pytest

from fullrank_papers.figures.dynamics.theorem3 import FIGURE


def verdicts(rows, kind):
    return {claim.statement: claim.holds for claim in FIGURE.claims(rows) if claim.kind == kind}


def test_theorem_holds_only_with_its_hypotheses(rows):
    assert list(verdicts(rows, "claim").values()) == [True, True, False, False, False]


def test_every_correction_holds(rows):
    assert all(verdicts(rows, "correction").values())
    assert len(verdicts(rows, "correction")) == 9


@pytest.mark.parametrize(
    ("words", "change"),
    [
        ("^the sign of", lambda rows: rows["planes"]["negative"].update(error=2.0)),
        ("rate 8", lambda rows: rows.update(sphere_rate=4.0)),
        ("h = d", lambda rows: rows["square"].update(length=[0.9])),
        ("next eigenvector", lambda rows: rows["exceptions"]["next"].update(error=1.0)),
        ("several outputs", lambda rows: rows["several"].update(error=1.0)),
        ("stable below", lambda rows: rows["steps"].update(factors=[1.2 - f + 0.8 for f in rows["steps"]["factors"]])),
        ("negative semidefinite", lambda rows: rows["expectation"].update(corrected=0.1)),
    ],
)
def test_each_claim_can_fail(rows, words, change):
    changed = json.loads(json.dumps(rows))
    change(changed)
    (verdict,) = [holds for statement, holds in verdicts(changed, "correction").items() if re.search(words, statement)]
    assert not verdict
