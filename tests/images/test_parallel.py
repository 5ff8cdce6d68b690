import operator
from functools import partial

import pytest
import torch

from fullrank.errors import UserError
from fullrank.images import decode
from fullrank.images.parallel import parallel_map


@pytest.mark.parametrize("workers", [0, 2])
def test_results_come_in_the_order_of_the_tasks(workers):
    assert list(parallel_map(operator.neg, iter(range(20)), workers=workers)) == [-k for k in range(20)]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_user_error_of_a_worker_is_raised_unchanged(workers):
    array = torch.zeros(2, 2, 5, dtype=torch.uint8).numpy()
    with pytest.raises(UserError) as caught:
        list(parallel_map(partial(decode, array), [3], workers=workers))
    assert str(caught.value).startswith("'image' has 5 channels, expected 3")
    assert "\n" not in str(caught.value)


def test_the_global_generator_is_not_changed():
    before = torch.get_rng_state()
    list(parallel_map(operator.neg, [1, 2], workers=1))
    assert torch.equal(torch.get_rng_state(), before)
