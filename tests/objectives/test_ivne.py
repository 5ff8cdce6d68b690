import math

import pytest
import torch
from loops import dot, unit_row

from fullrank.objectives import ivne


def loops(Z, alignment, entropy):
    """Compute the eigenvalues as squared singular values of the unit rows divided by √N."""
    V, N, _ = Z.shape
    z = [[unit_row(row) for row in view] for view in Z.tolist()]
    pairs = [(v, w) for v in (0, 1) for w in range(v + 1, V)]  # not two small views
    total = -alignment / N / len(pairs) * sum(sum(map(dot, z[v], z[w])) for v, w in pairs)
    for view in z:
        for sigma in torch.linalg.svdvals(torch.tensor(view, dtype=torch.float64) / math.sqrt(N)).tolist():
            total += entropy / V * sigma**2 * math.log(sigma**2)
    return total


@pytest.mark.parametrize("shape", [(2, 7, 4), (2, 4, 6), (4, 7, 4)])
def test_equals_cosines_and_entropy_of_squared_singular_values(loss, shape, randn):
    Z = randn(*shape)
    assert loss(Z, alignment=1.5, entropy=0.7).item() == pytest.approx(loops(Z, 1.5, 0.7), abs=1e-10)


def test_minimum_is_at_equal_views_with_isotropic_directions(is_least):
    identity = torch.eye(4, dtype=torch.float64)
    best = torch.cat([identity, -identity]).expand(2, 8, 4)  # all four eigenvalues are equal
    is_least(best, -4.16 - math.log(4), critical=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(2, 48, 16), (2, 16, 48)])
@pytest.mark.parametrize("rank", [1, 3])
def test_directions_without_variance_have_no_entropy_and_no_gradient(shape, rank, dtype, randn):
    Z = (randn(2, shape[1], rank) @ randn(rank, shape[2])).to(dtype).requires_grad_()
    terms = ivne(Z)
    (gradient,) = torch.autograd.grad(terms["entropy"], Z)
    assert -math.log(rank) - 1e-5 < terms["entropy"].item() <= 1e-5
    assert gradient.isfinite().all()
    basis = torch.linalg.svd(Z.detach(), full_matrices=False).Vh[:, :rank]  # of the span of the rows
    outside = gradient - gradient @ basis.mT @ basis
    assert outside.abs().max() < 1e-4
