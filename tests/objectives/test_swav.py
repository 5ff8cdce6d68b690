import math
from itertools import product

import pytest
import torch

from fullrank.errors import UserError
from fullrank.objectives.swav import sinkhorn


def random_cosines(rng, *shape):
    """Return random numbers between −1 and 1."""
    return 2 * torch.rand(*shape, generator=rng, dtype=torch.float64) - 1


def loop_sinkhorn(S, epsilon, iterations):
    """Scale as in the paper: each prototype to 1/K, then each sample to 1/N, and at the end each sample to 1."""
    N, K = S.shape
    Q = [[math.exp((s - S.max().item()) / epsilon) for s in row] for row in S.tolist()]
    for _ in range(iterations):
        sums = [sum(column) for column in zip(*Q, strict=True)]
        Q = [[q / (total * K) for q, total in zip(row, sums, strict=True)] for row in Q]
        Q = [[q / (sum(row) * N) for q in row] for row in Q]
    return [[q * N for q in row] for row in Q]


def loops(S, full, temperature, epsilon, iterations, queue=None):
    samples = S[:full] if queue is None else torch.cat([queue, S[:full]], 1)  # in the order of the authors' code
    codes = [loop_sinkhorn(view, epsilon, iterations)[-S.shape[1] :] for view in samples]
    pairs = [(v, w) for v, w in product(range(len(S)), range(full)) if v != w]
    total = 0.0
    for v, w in pairs:
        for s, q in zip(S[v].tolist(), codes[w], strict=True):
            normaliser = sum(math.exp(a / temperature) for a in s)
            total -= sum(b * math.log(math.exp(a / temperature) / normaliser) for a, b in zip(s, q, strict=True))
    return total / (len(pairs) * S.shape[1])


@pytest.mark.parametrize(("V", "full"), [(2, 2), (4, 2), (4, 4), (3, 1)])
def test_equals_the_mean_over_codes_and_other_views(loss, V, full, rng):
    S = random_cosines(rng, V, 7, 4)
    hyper = {"full": full, "temperature": 0.3, "epsilon": 0.2, "iterations": 2}
    assert loss(S, **hyper).item() == pytest.approx(loops(S, **hyper), abs=1e-10)


@pytest.mark.parametrize(("V", "full", "size"), [(2, 2, 5), (4, 2, 11), (3, 1, 1)])
def test_samples_of_the_queue_take_part_in_the_assignment_only(loss, V, full, size, rng):
    S, queue = random_cosines(rng, V, 7, 4), random_cosines(rng, full, size, 4).requires_grad_()
    hyper = {"full": full, "temperature": 0.3, "epsilon": 0.2, "iterations": 2}
    value = loss(S.requires_grad_(), queue, **hyper)
    assert value.item() == pytest.approx(loops(S.detach(), **hyper, queue=queue.detach()), abs=1e-10)
    assert abs(value - loss(S, **hyper)) > 1e-4
    of_S, of_queue = torch.autograd.grad(value, [S, queue], allow_unused=True)
    assert of_queue is None
    assert of_S.abs().max() > 1e-3


def test_a_queue_may_be_left_out_and_has_as_many_prototypes_as_the_batch(loss, rng):
    S = random_cosines(rng, 2, 7, 4)
    assert loss(S, None) == loss(S)
    with pytest.raises(UserError, match=r"swav: queue has the shape \(2, 5, 3\).* K = 4"):
        loss(S, random_cosines(rng, 2, 5, 3))


def test_codes_have_no_gradient(loss, rng):
    S = random_cosines(rng, 4, 7, 5).requires_grad_()
    codes = torch.tensor([loop_sinkhorn(view, 0.05, 3) for view in S[:2].detach()], dtype=torch.float64)
    pairs = [(v, w) for v, w in product(range(4), range(2)) if v != w]
    log_p = (S / 0.1).log_softmax(-1)
    usual = -sum((codes[w] * log_p[v]).sum(-1).mean() for v, w in pairs) / len(pairs)
    torch.testing.assert_close(*(torch.autograd.grad(value, S)[0] for value in (loss(S), usual)), atol=1e-12, rtol=0)


def test_complete_collapse_has_a_loss_of_at_least_log_K(loss, rng):
    equal = random_cosines(rng, 1, 1, 4).expand(2, 8, 4)
    assert loss(equal) > math.log(4)
    assert loss(torch.full_like(equal, 0.3)).item() == pytest.approx(math.log(4), abs=1e-12)


def test_sinkhorn_sums_are_one_for_samples_and_converge_for_prototypes(rng):
    S = random_cosines(rng, 2, 12, 4)
    few, many = (sinkhorn(S, epsilon=0.2, iterations=iterations) for iterations in (1, 200))
    ones = torch.ones(2, 12, dtype=torch.float64)
    torch.testing.assert_close(few.sum(-1), ones)
    torch.testing.assert_close(many.sum(-1), ones)
    torch.testing.assert_close(many.sum(-2), 3 * ones[:, :4], atol=1e-9, rtol=0)
    assert (few.sum(-2) - 3).abs().max() > 1e-3


@pytest.mark.parametrize("epsilon", [0.05, 1e-3])
@pytest.mark.parametrize("scale", [1.0, 1e4, 1e30])
def test_sinkhorn_is_finite_at_extreme_inputs_in_float32(scale, epsilon, rng):
    S = (scale * random_cosines(rng, 2, 64, 16)).float()
    codes = sinkhorn(S, epsilon=epsilon, iterations=3)
    assert codes.isfinite().all()
    torch.testing.assert_close(codes.sum(-1), torch.ones(2, 64))
