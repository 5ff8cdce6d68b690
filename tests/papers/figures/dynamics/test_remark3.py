"""Remark 3 at its smoke size: the verdict on each claim of both papers."""

import pytest
import torch

from fullrank_papers.figures.dynamics import remark3
from fullrank_papers.figures.dynamics.remark3 import FIGURE
from fullrank_papers.theory.flow import gradient


def test_only_remark_2_is_refuted(rows):
    claims = FIGURE.claims(rows)
    assert [claim.holds for claim in claims] == [True, False] + [True] * 9
    assert [claim.kind for claim in claims] == ["claim"] * 4 + ["correction"] * 7
    assert claims[1].statement.startswith("Remark 2")


def test_training_follows_the_closed_form(rows):
    for key in ("u", "r"):
        assert rows["free"][key] == pytest.approx(rows["free"][f"{key}, theory"], abs=0.05)


def test_the_experiment_is_a_full_factorial(rows):
    cells = {tuple(cell[factor] for factor in remark3.FACTORS) for cell in rows["cells"]}
    assert len(cells) == len(rows["cells"]) == 3 * 4 * 2 * 2


def test_variance_shares_of_factors():
    factors = {"loss": 0.0, "network": 0.0}
    cells = [factors | {"constraint": a, "projector": b, "y": 2.0 * a + b} for a in (0, 1) for b in (0, 1)]
    shares = remark3.variance_shares(cells, "y")
    expected = {"loss": 0, "constraint": 0.8, "network": 0, "projector": 0.2, "all but network": 1}
    assert shares == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("network", remark3.NETWORKS)
@pytest.mark.parametrize("loss", remark3.LOSSES)
def test_low_rank_projector_equals_a_rotated_sub_vector(loss, network):
    """Rotating by Q the weights that read or write h gives the same gradients, rotated."""
    problem = remark3.Problem.sample(remark3.Size(samples=16), seed=0)
    rng = torch.Generator().manual_seed(1)
    Q = torch.linalg.qr(torch.cat([problem.A.mT, torch.randn(8, 5, generator=rng, dtype=torch.float64)], 1))[0].mT
    Q[:3] = problem.A
    rotated = {
        "Theta": lambda W: Q @ W,
        "W1": lambda W: Q @ W,
        "W2": lambda W: Q @ W @ Q.mT if network == "residual" else W @ Q.mT,
        "W3": lambda W: Q @ W,
    }
    start = problem.starts[network]
    one = remark3.make_loss(problem, problem.A, loss, "unit rows", network)
    other = remark3.make_loss(problem, torch.eye(3, 8, dtype=torch.float64), loss, "unit rows", network)
    slopes, expected = gradient(other, {name: rotated[name](W) for name, W in start.items()}), gradient(one, start)
    for name, slope in slopes.items():
        torch.testing.assert_close(slope, rotated[name](expected[name]), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", remark3.CONSTRAINTS)
def test_constraints_fix_their_norms(name):
    u = torch.randn(3, 20, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    constrained = remark3.CONSTRAINTS[name](u)[0]
    sizes = {
        "free": (constrained, u[0]),
        "one norm": (constrained.square().sum(), torch.tensor(20.0).double()),
        "unit rows": (constrained.norm(dim=-1), torch.ones(20).double()),
        "orthonormal": (constrained.mT @ constrained / 20, torch.eye(4).double()),
    }
    torch.testing.assert_close(*sizes[name])
