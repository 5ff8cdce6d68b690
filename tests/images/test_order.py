import pytest
import torch

from fullrank.errors import UserError
from fullrank.images import batch_indices


def test_an_epoch_shows_every_image_at_most_once_and_drops_the_rest():
    epoch = torch.cat([batch_indices(0, step, 4, 10) for step in range(2)])
    assert len(epoch.unique()) == 8
    dropped = {
        frozenset(range(10)) - frozenset(torch.cat([batch_indices(0, 2 * e + k, 4, 10) for k in range(2)]).tolist()) for e in range(20)
    }
    assert len(dropped) > 5


def test_any_step_can_be_the_first():
    walk = [batch_indices(7, step, 3, 11) for step in range(40)]
    assert torch.equal(batch_indices(7, 39, 3, 11), walk[39])
    assert torch.equal(batch_indices(7, 12345, 3, 11), batch_indices(7, 12345, 3, 11))


def test_epochs_and_seeds_have_orders_of_their_own():
    orders = {(seed, epoch): tuple(batch_indices(seed, epoch, 50, 50).tolist()) for seed in (0, 1, 2**32, 2**32 + 1) for epoch in range(50)}
    assert len(set(orders.values())) == len(orders)


def test_every_image_is_equally_likely_in_every_place():
    n, epochs = 5, 4000
    counts = torch.zeros(n, n)
    for epoch in range(epochs):
        counts[torch.arange(n), batch_indices(0, epoch, n, n)] += 1
    chi2 = ((counts - epochs / n) ** 2 / (epochs / n)).sum()
    assert chi2 < 45  # 16 degrees of freedom: p = 1e-4


def test_the_caller_may_write_into_its_indices():
    batch_indices(0, 0, 4, 10).zero_()
    assert len(batch_indices(0, 0, 4, 10).unique()) == 4


@pytest.mark.parametrize("batch", [0, 11])
def test_a_batch_that_does_not_fit_is_refused(batch):
    with pytest.raises(UserError, match=f"a batch of {batch} images, from a set of 10; choose a batch from 1 to 10"):
        batch_indices(0, 0, batch, 10)
