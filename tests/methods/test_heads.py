import pytest
import torch
from torch import nn

from fullrank.methods import TrainingLength
from fullrank.methods.heads import L2Normalize, Prototypes, build_predictor


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


def test_the_length_of_a_prototype_has_no_effect(prototypes, Z):
    before = prototypes(Z)
    with torch.no_grad():
        prototypes.weight.mul_(torch.arange(1.0, 11.0)[:, None])
    torch.testing.assert_close(prototypes(Z), before)


def test_prototypes_stay_in_float32_under_autocast(prototypes, Z):
    outside = prototypes(Z.bfloat16())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(prototypes(Z.bfloat16()), outside)
    assert outside.dtype == torch.float32


def test_frozen_prototypes_get_a_gradient_of_zero_and_embeddings_get_one(prototypes, Z):
    prototypes.frozen = True
    Z.requires_grad_()
    prototypes(Z).square().sum().backward()
    assert prototypes.weight.grad.count_nonzero() == 0
    assert Z.grad.norm() > 0


def test_prototypes_are_trained_after_their_frozen_epochs(prototypes):
    frozen = []
    for step in range(5):
        prototypes.before_step(step, TrainingLength(steps_per_epoch=2))
        frozen.append(prototypes.frozen)
    assert frozen == [True, True, True, False, False]


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


def test_l2_normalize_gives_unit_rows_and_keeps_zero_rows(Z):
    Z[3] = 0
    norms = L2Normalize()(Z).norm(dim=1)
    torch.testing.assert_close(norms, torch.ones(8).index_fill(0, torch.tensor(3), 0.0))


def test_a_predictor_has_one_hidden_layer_and_keeps_the_dimensions():
    assert [type(layer).__name__ for layer in build_predictor(4, 7)] == ["Linear", "BatchNorm1d", "ReLU", "Linear"]
    assert build_predictor(4, 7)[0].out_features == 7
