import json

import pytest
import torch

from fullrank.objectives.theory import contrastive_linear, infonce_squared
from fullrank.reproduce.dynamics.remark1 import FIGURE, coupling, total


@pytest.fixture(scope="module")
def rows():
    return FIGURE.compute(FIGURE.sizes["smoke"], data=None, seed=0)


def test_remark_1_holds_and_of_remark_2_only_what_it_says_of_the_spectral_contrastive_loss(rows):
    failed = [claim.statement for claim in FIGURE.claims(json.loads(json.dumps(rows))) if not claim.holds]
    assert failed == [
        "InfoNCE decouples, and so collapses (Remark 2)",
        "the same argument holds for the cosine loss, here without a predictor (Remark 2)",
    ]


def test_losses_that_swap_their_fates_swap_their_verdicts(rows):
    losses = rows["losses"]
    theory = losses["contrastive"]["theory"]
    swapped = {**losses, "InfoNCE": losses["contrastive"], "contrastive": {**losses["InfoNCE"], "theory": theory}}
    held = [claim.holds for claim in FIGURE.claims({**rows, "losses": swapped})]
    assert (held[1], held[2]) == (False, True)
    assert held[5] is False  # closed forms of another loss


def test_coupling_is_what_one_output_changes_in_the_pull_on_another():
    rng = torch.Generator().manual_seed(0)
    x, Theta = (torch.randn(*shape, dtype=torch.float64, generator=rng) for shape in ((2, 5, 3), (2, 3)))
    apart = lambda W: total(contrastive_linear(*(y @ W[0].mT for y in (x[0], x[1], x[0].flip(0)))))  # noqa: E731
    tied = lambda W: total(infonce_squared(x @ W[0].mT))  # noqa: E731
    assert coupling(apart, Theta) == 0
    H = torch.autograd.functional.hessian(lambda w: tied((w.view(2, 3),)), Theta.flatten())
    assert coupling(tied, Theta) == pytest.approx((2**0.5 * H[:3, 3:].norm() / H.norm()).item())


def test_it_is_drawn_in_three_panels(rows):
    assert len(FIGURE.plot(rows).axes) == 3
