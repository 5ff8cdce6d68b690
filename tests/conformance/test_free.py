"""What each objective makes of free embeddings that start in four dimensions."""

import broken_losses
import pytest
import torch

from fullrank.conformance import free, objective_case
from fullrank.conformance.free import findings
from fullrank.objectives import OBJECTIVES, byol, frossl, simsiam

NUMBERS = {"directclr": {"d0": 24}, "directclr_paper": {"d0": 24}}
ALIGN_ALONE = {"simsiam", "byol"}
"""No term spreads the embeddings: what does is the predictor, which free embeddings have not."""

SIZE = {"N": 96, "steps": 200, "learning_rate": 0.03}


@pytest.mark.parametrize("name", sorted(set(OBJECTIVES) - ALIGN_ALONE))
def test_an_objective_that_spreads_raises_the_effective_rank(name):
    found = free(objective_case(OBJECTIVES[name], numbers=NUMBERS.get(name)), **SIZE)
    assert found.after.effective_rank() > 1.4 * found.before.effective_rank()


@pytest.mark.parametrize("objective", [simsiam, byol])
def test_without_a_predictor_alignment_lowers_the_effective_rank(objective):
    found = free(objective_case(objective), **SIZE)
    assert found.after.effective_rank() < found.before.effective_rank()


def test_alignment_alone_leaves_the_dimensions_in_which_the_views_agree():
    def alignment(Z):
        return {"invariance": (Z - Z.mean(0)).square().sum((0, 2)).mean()}

    found = free(objective_case(alignment), **SIZE)
    assert found.after.effective_rank() < found.before.effective_rank()
    assert found.after.participation_ratio() < 4


def test_the_start_is_the_same_for_all():
    one, other = (free(objective_case(f), N=64, steps=1).before for f in (simsiam, frossl))
    assert torch.equal(one.eigenvalues, other.eigenvalues)


def test_an_objective_without_bound_is_a_failure():
    found = free(objective_case(broken_losses.diverges), N=64, steps=3)
    assert found.after is None
    (finding,) = findings(found, free(objective_case(frossl), N=64, steps=3))
    assert (finding.verdict, finding.measured.split(" of ")[0]) == ("failed", "they are not finite")
