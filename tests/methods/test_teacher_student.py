import math

import pytest
import torch
from timm.layers.drop import DropBlock2d
from torch import nn
from torchvision.ops import StochasticDepth

from fullrank.methods import BackboneConfig
from fullrank.methods.backbones import build_backbone
from fullrank.methods.teacher_student import EMA, cosine_momentum


@pytest.fixture
def student():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU()), nn.Linear(4, 2)


def change(*modules):
    """Change the parameters, and BatchNorm's statistics by a forward pass."""
    for module in modules:
        for parameter in module.parameters():
            parameter.data += torch.randn(parameter.shape)
    modules[1](modules[0].train()(5 + torch.randn(16, 3)))


def test_parameters_and_batch_norm_statistics_are_averaged(student):
    teacher = EMA(*student)
    before = {name: value.clone() for name, value in teacher.network.state_dict().items()}
    change(*student)
    teacher.update(*student, momentum=0.9)
    expected = nn.Sequential(*student).state_dict()
    for name, value in teacher.network.state_dict().items():
        if name.endswith("num_batches_tracked"):
            assert value == expected[name] == 1
        else:
            torch.testing.assert_close(value, 0.9 * before[name] + 0.1 * expected[name])
            assert not torch.equal(value, before[name])


def test_the_cosine_momentum_is_that_of_the_paper():
    for step in range(11):
        expected = 1 - (1 - 0.996) * (math.cos(math.pi * step / 10) + 1) / 2
        assert cosine_momentum(step, 10, 0.996, 1.0) == pytest.approx(expected, rel=1e-12)
    assert cosine_momentum(3, 0, 0.99, 1.0) == 0.99
    assert cosine_momentum(12, 10, 0.99, 0.999) == pytest.approx(0.999)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "eva02_tiny_patch14_224"])
def test_the_teacher_drops_nothing(name):
    """As in DINO, whose student alone has stochastic depth: the targets of an image are the same in each pass."""
    arguments = {"img_size": 16, "patch_size": 4, "embed_dim": 24, "depth": 3, "num_heads": 2}
    dropping = {f"{part}_drop_rate": 0.3 for part in ("proj", "attn", "pos")}
    dropping |= {"drop_path_rate": 0.5, "patch_drop_rate": 0.5}
    student = build_backbone(BackboneConfig(name=name, arguments=arguments | dropping))
    x = torch.randn(4, 3, 16, 16)
    assert not torch.equal(student(x), student(x))
    teacher = EMA(student)
    assert torch.equal(teacher.train()(x), nn.Sequential(student).eval()(x))
    assert not torch.equal(student.train()(x), student(x))


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (lambda: DropBlock2d(drop_prob=0.5, block_size=3), (4, 8, 8, 8)),
        (lambda: StochasticDepth(0.5, "row"), (8, 3)),
        (lambda: nn.TransformerEncoderLayer(8, 2, dim_feedforward=8, dropout=0.5, batch_first=True), (4, 6, 8)),
    ],
)
def test_the_teacher_drops_nothing_in_layers_of_other_libraries(layer, shape):
    teacher, x = EMA(layer()).train(), torch.randn(shape)
    assert torch.equal(teacher(x), teacher(x))
