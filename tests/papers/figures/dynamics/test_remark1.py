import pytest
import torch

from fullrank_papers.figures.dynamics.remark1 import FIGURE, coupling, total
from fullrank_papers.theory.objectives import contrastive_linear, infonce_squared


def test_remark_2_is_refuted_for_infonce_and_cosine(rows):
    failed = [claim.statement for claim in FIGURE.claims(rows) if not claim.holds]
    assert len(failed) == 2
    assert "InfoNCE" in failed[0]
    assert "cosine" in failed[1]


def test_swapped_losses_swap_their_verdicts(rows):
    losses = rows["losses"]
    theory = losses["contrastive"]["theory"]
    swapped = {**losses, "InfoNCE": losses["contrastive"], "contrastive": {**losses["InfoNCE"], "theory": theory}}
    verdicts = [claim.holds for claim in FIGURE.claims({**rows, "losses": swapped})]
    assert (verdicts[1], verdicts[2]) == (False, True)
    assert verdicts[5] is False  # closed forms of another loss


def test_coupling_is_the_off_diagonal_share_of_the_hessian():
    rng = torch.Generator().manual_seed(0)
    x, Theta = (torch.randn(*shape, dtype=torch.float64, generator=rng) for shape in ((2, 5, 3), (2, 3)))
    decoupled = lambda W: total(contrastive_linear(*(y @ W[0].mT for y in (x[0], x[1], x[0].flip(0)))))  # noqa: E731
    coupled = lambda W: total(infonce_squared(x @ W[0].mT))  # noqa: E731
    assert coupling(decoupled, Theta) == 0
    H = torch.autograd.functional.hessian(lambda w: coupled((w.view(2, 3),)), Theta.flatten())
    assert coupling(coupled, Theta) == pytest.approx((2**0.5 * H[:3, 3:].norm() / H.norm()).item())
