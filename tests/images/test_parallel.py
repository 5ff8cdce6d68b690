import operator
from functools import partial

import pytest
import torch

from fullrank.errors import UserError
from fullrank.images import decode
from fullrank.images.parallel import parallel


@pytest.mark.parametrize("workers", [0, 2])
def test_results_come_in_the_order_of_the_tasks(workers):
    assert list(parallel(operator.neg, iter(range(20)), workers=workers)) == [-k for k in range(20)]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_mistake_of_the_user_arrives_unchanged(workers):
    array = torch.zeros(2, 2, 5, dtype=torch.uint8).numpy()
    with pytest.raises(UserError) as caught:
        list(parallel(partial(decode, array), [3], workers=workers))
    assert str(caught.value).startswith("'image' has 5 channels, 3 were asked for")
    assert "\n" not in str(caught.value)


def test_the_global_generator_is_left_alone():
    before = torch.get_rng_state()
    list(parallel(operator.neg, [1, 2], workers=1))
    assert torch.equal(torch.get_rng_state(), before)
