import pytest
import torch
from torch import nn

from fullrank.evaluation import state_hash, verify_frozen


def network():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout())


@pytest.mark.parametrize("name", ["0.weight", "0.bias", "1.running_mean", "1.num_batches_tracked"])
def test_the_hash_depends_on_every_tensor(name):
    module = network()
    before = state_hash(module)
    tensor = module.state_dict()[name].view(-1)
    if tensor.is_floating_point():
        tensor[0] = torch.nextafter(tensor[0], torch.tensor(9.0))
    else:
        tensor[0] += 1
    assert state_hash(module) != before


def test_the_hash_depends_on_non_persistent_buffers():
    module = nn.Module()
    module.register_buffer("hidden", torch.zeros(2), persistent=False)
    before = state_hash(module)
    module.hidden += 1
    assert state_hash(module) != before


def test_the_hash_of_nan_is_stable():
    module = nn.Linear(1, 1)
    module.bias.data.fill_(torch.nan)
    assert state_hash(module) == state_hash(module)


def test_the_hash_depends_on_the_precision():
    module = nn.Linear(1, 1)
    assert state_hash(module.bfloat16()) != state_hash(module.float())


def test_every_mode_is_restored():
    module = network().train()
    module[1].eval()
    with verify_frozen(module):
        assert not any(part.training for part in module.modules())
    assert [part.training for part in module.modules()] == [True, True, False, True]


def test_modes_are_restored_after_an_error():
    module = network().train()
    with pytest.raises(KeyError), verify_frozen(module):
        raise KeyError
    assert module.training


def test_a_forward_in_train_mode_raises():
    module, images = network(), torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    with pytest.raises(AssertionError, match="Sequential changed its parameters or buffers"), verify_frozen(module):
        module.train()(images)
