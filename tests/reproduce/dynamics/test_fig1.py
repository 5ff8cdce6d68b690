import json

import numpy as np
import pytest
import torch

from fullrank.dynamics.contrastive_pairs import eigenbasis, pair_matrix
from fullrank.reproduce.dynamics.fig1 import FIGURE, VARIANCE, moons


@pytest.fixture(scope="module")
def rows():
    return FIGURE.compute(FIGURE.sizes["smoke"], data=None, seed=0)


def test_all_hold_but_the_identical_fixed_points_of_free_outputs(rows):
    held = {claim.statement: claim.holds for claim in FIGURE.claims(json.loads(json.dumps(rows)))}
    assert [statement for statement, holds in held.items() if not holds] == [
        "without a constraint all outputs tend to one and the same fixed point (Proposition 1)"
    ]


def test_constrained_training_rests_and_free_training_speeds_up(rows):
    for run in rows["runs"]:
        assert abs(run["orthonormal"]["loss"][-1] - run["orthonormal"]["loss"][-2]) < 1e-3
        assert run["free"]["loss"][-1] < 1.5 * run["free"]["loss"][-2]


def test_training_that_does_not_collapse_or_diverge_refutes_the_claims(rows):
    swapped = {**rows, "runs": [{**run, "free": run["orthonormal"], "orthonormal": run["free"]} for run in rows["runs"]]}
    verdicts = [claim.holds for claim in FIGURE.claims(swapped)]
    assert verdicts[0] is verdicts[2] is verdicts[4] is verdicts[5] is False


def test_moons_have_positives_of_the_stated_variance_and_negatives_of_their_own():
    X, X_pos, X_neg = moons(4000, seed=3)
    np.testing.assert_allclose(torch.cov((X_pos - X).mT), VARIANCE * np.eye(2), atol=0.01)
    cross = torch.corrcoef(torch.cat([X, X_neg], 1).mT)[:2, 2:]
    assert cross.abs().max() < 0.05
    assert eigenbasis(pair_matrix(X, X_pos, X_neg, average=True))[0].max() < 0


def test_it_is_drawn_in_three_panels(rows):
    assert len(FIGURE.plot(rows).axes) == 3
