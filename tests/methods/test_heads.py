import pytest
import torch
from lightning.fabric import Fabric
from torch import nn

from fullrank.methods import JointEmbedding, TrainingLength
from fullrank.methods.heads import Prototypes
from fullrank.objectives import swav
from fullrank.training import fit


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


def test_fit_keeps_the_optimizer_from_frozen_prototypes(prototypes):
    method = JointEmbedding(nn.Flatten(), nn.Linear(12, 4), swav, head=prototypes)
    method.training_length = TrainingLength(steps_per_epoch=2)
    optimizer, before = torch.optim.Adam(method.parameters(), lr=0.1, weight_decay=0.1), prototypes.weight.clone()
    fabric = Fabric(accelerator="cpu", devices=1)
    method, optimizer = fabric.setup(method, optimizer)
    batches = [([torch.randn(2, 8, 3, 2, 2)], torch.full((8,), -1))] * 4
    moved = [not torch.equal(prototypes.weight, before) for _ in fit(fabric, method, optimizer, batches, lambda k: 0.1)]
    assert moved == [False, False, False, True]
