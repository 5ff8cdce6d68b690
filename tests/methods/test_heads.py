import pytest
import torch
from torch import nn

from fullrank.methods.heads import Prototypes


@pytest.fixture
def Z():
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def prototypes():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Prototypes(4, 10, freeze=1.5)


def test_prototypes_give_cosines(prototypes, Z):
    S = prototypes(3 * Z)
    for i, z in enumerate(Z):
        for k, w in enumerate(prototypes.weight):
            assert S[i, k].item() == pytest.approx((z @ w / z.norm() / w.norm()).item(), abs=1e-6)


def test_frozen_prototypes_get_a_gradient_of_zero_and_embeddings_get_one(prototypes, Z):
    prototypes.frozen = True
    Z.requires_grad_()
    prototypes(Z).square().sum().backward()
    assert prototypes.weight.grad.count_nonzero() == 0
    assert Z.grad.norm() > 0


def test_frozen_prototypes_keep_their_directions_under_weight_decay(prototypes, Z):
    prototypes.frozen = True
    before = nn.functional.normalize(prototypes.weight.detach().clone())
    optimizer = torch.optim.AdamW(prototypes.parameters(), lr=0.1, weight_decay=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        prototypes(Z).square().sum().backward()
        optimizer.step()
    assert not torch.equal(prototypes.weight.norm(dim=1), torch.ones(10))
    torch.testing.assert_close(nn.functional.normalize(prototypes.weight.detach()), before)
