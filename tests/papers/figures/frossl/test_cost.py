"""The cost of the entropies: what is timed, and the verdicts on hand-made times."""

import pytest
import torch

from fullrank.objectives import frossl, total
from fullrank_papers.figures.frossl.cost import FIGURE, gradient


def with_times(corinfomax, ivne):
    row = {"N": [64, 128], "D": [64, 128], "seconds": {"frossl": [1e-3, 2e-3], "corinfomax": corinfomax, "ivne": ivne}}
    return {"device": "cpu", "threads": 1, "rounds": 1, "N": row, "D": row}


def test_smoke_rows(rows):
    size = FIGURE.sizes["smoke"]
    assert rows["N"]["N"] == list(size.samples)
    assert rows["D"]["D"] == list(size.dimensions)
    assert all(seconds > 0 for axis in "ND" for times in rows[axis]["seconds"].values() for seconds in times)


def test_verdicts_need_a_ratio_above_one_that_grows():
    def verdicts(rows):
        return [claim.holds for claim in FIGURE.claims(rows)]

    assert verdicts(with_times([2e-3, 16e-3], [2e-3, 16e-3])) == [True, True]
    assert verdicts(with_times([0.5e-3, 16e-3], [4e-3, 6e-3])) == [False, False]


def test_the_timed_gradient_is_that_of_the_loss():
    Z = torch.randn(2, 16, 4, generator=torch.Generator().manual_seed(0))
    step = 1e-3 * gradient(frossl, Z)
    change = (total(frossl(Z + step)) - total(frossl(Z - step))).item()
    assert change == pytest.approx(2e3 * step.square().sum().item(), rel=1e-2)
