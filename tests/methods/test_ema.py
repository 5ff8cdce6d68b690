import math

import pytest
import torch
from torch import nn

from fullrank.distributed import convert_sync_batchnorm
from fullrank.methods.ema import EMA, cosine


@pytest.fixture
def online():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU()), nn.Linear(4, 2)


def change(*modules):
    """Move parameters, and BatchNorm's statistics by a forward pass."""
    for module in modules:
        for parameter in module.parameters():
            parameter.data += torch.randn(parameter.shape)
    modules[1](modules[0].train()(5 + torch.randn(16, 3)))


def test_parameters_and_batch_norm_statistics_follow(online):
    target = EMA(*online)
    before = {name: value.clone() for name, value in target.network.state_dict().items()}
    change(*online)
    target.update(*online, momentum=0.9)
    wanted = nn.Sequential(*online).state_dict()
    for name, value in target.network.state_dict().items():
        if name.endswith("num_batches_tracked"):
            assert value == wanted[name] == 1
        else:
            torch.testing.assert_close(value, 0.9 * before[name] + 0.1 * wanted[name])
            assert not torch.equal(value, before[name])


def test_it_begins_as_a_copy_that_shares_no_memory(online):
    target = EMA(*online)
    x = torch.randn(6, 3)
    assert torch.equal(target.eval()(x), nn.Sequential(*online).eval()(x))
    change(*online)
    assert not torch.equal(target.eval()(x), nn.Sequential(*online).eval()(x))


def test_a_momentum_of_one_never_moves_and_of_zero_copies(online):
    still, copy = EMA(*online), EMA(*online)
    before = [p.clone() for p in still.parameters()]
    change(*online)
    still.update(*online, momentum=1.0)
    copy.update(*online, momentum=0.0)
    assert all(torch.equal(p, old) for p, old in zip(still.parameters(), before, strict=True))
    assert all(torch.equal(p, new) for p, new in zip(copy.parameters(), nn.Sequential(*online).parameters(), strict=True))


@pytest.mark.parametrize("converted", [False, True])
def test_its_own_batches_leave_its_statistics_alone(online, converted):
    target = EMA(*online)
    if converted:
        convert_sync_batchnorm(target)
    before = target.network[0][1].running_mean.clone()
    out = target.train()(5 + torch.randn(16, 3))
    assert torch.equal(target.network[0][1].running_mean, before)
    assert not out.requires_grad
    assert online[0][1].momentum == 0.1


def test_the_cosine_is_that_of_the_paper():
    for step in range(11):
        wanted = 1 - (1 - 0.996) * (math.cos(math.pi * step / 10) + 1) / 2
        assert cosine(step, 10, 0.996, 1.0) == pytest.approx(wanted, rel=1e-12)
    assert cosine(3, 0, 0.99, 1.0) == 0.99
    assert cosine(12, 10, 0.99, 0.999) == pytest.approx(0.999)
