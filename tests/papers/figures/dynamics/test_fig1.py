import numpy as np
import torch

from fullrank_papers.figures.dynamics.fig1 import FIGURE, VARIANCE, half_moons
from fullrank_papers.theory.contrastive_pairs import eigenbasis, pair_matrix


def test_only_the_equal_fixed_points_are_refuted(rows):
    (refuted,) = [claim.statement for claim in FIGURE.claims(rows) if not claim.holds]
    assert "Proposition 1" in refuted


def test_constrained_training_converges_and_unconstrained_training_accelerates(rows):
    for run in rows["runs"]:
        assert abs(run["orthonormal"]["loss"][-1] - run["orthonormal"]["loss"][-2]) < 1e-3
        assert run["free"]["loss"][-1] < 1.5 * run["free"]["loss"][-2]


def test_swapped_runs_refute_the_claims(rows):
    swapped = {
        **rows,
        "runs": [{**run, "free": run["orthonormal"], "orthonormal": run["free"]} for run in rows["runs"]],
    }
    verdicts = [claim.holds for claim in FIGURE.claims(swapped)]
    assert verdicts[0] is verdicts[2] is verdicts[4] is verdicts[5] is False


def test_positives_have_the_stated_variance_and_negatives_are_independent():
    X, X_pos, X_neg = half_moons(4000, seed=3)
    np.testing.assert_allclose(torch.cov((X_pos - X).mT), VARIANCE * np.eye(2), atol=0.01)
    cross = torch.corrcoef(torch.cat([X, X_neg], 1).mT)[:2, 2:]
    assert cross.abs().max() < 0.05
    assert eigenbasis(pair_matrix(X, X_pos, X_neg, average=True))[0].max() < 0
