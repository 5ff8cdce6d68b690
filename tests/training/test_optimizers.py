import pytest
import timm
import torch
from torch import nn

from fullrank import methods
from fullrank.methods.backbones import build_backbone, feature_dim
from fullrank.objectives import OBJECTIVES, frossl
from fullrank.training import OptimizerConfig, build_optimizer, set_learning_rate, split_parameters

TRUST = 0.02


def network():
    rng = torch.Generator().manual_seed(0)
    module = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(3, 4)).double()
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape, generator=rng, dtype=torch.float64)
    return module


def gradients(module, step):
    rng = torch.Generator().manual_seed(step)
    return [torch.randn(p.shape, generator=rng, dtype=torch.float64) for p in module.parameters()]


def take_steps(optimizer, module, steps=3):
    """Take steps with given gradients; return the parameters."""
    for step in range(steps):
        for parameter, gradient in zip(module.parameters(), gradients(module, step), strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
    return [parameter.detach() for parameter in module.parameters()]


def lars_reference(module, *, lr, weight_decay, decay_all, steps=3, trust_coefficient=TRUST, trust_clip=True):
    """Apply LARS one parameter at a time; return the parameters and how often LARC's clip was active."""
    weights = [p.detach().clone() for p in module.parameters()]
    buffers = [torch.zeros_like(w) for w in weights]
    clipped = 0
    for step in range(steps):
        for w, m, g in zip(weights, buffers, gradients(module, step), strict=True):
            if w.ndim > 1 or decay_all:
                adapted = trust_coefficient * w.norm() / (g.norm() + weight_decay * w.norm())
                clipped += int(trust_clip and adapted > lr)
                g = (min(adapted, torch.tensor(lr)) / lr if trust_clip else adapted) * (g + weight_decay * w)
            m.mul_(0.9).add_(g)
            w -= lr * m
    return weights, clipped


@pytest.mark.parametrize(
    ("numbers", "clips", "decay_all"),
    [
        ({"lr": 1.0, "weight_decay": 0.0}, 0, False),
        ({"lr": 1.0, "weight_decay": 1e-2}, 0, False),
        ({"lr": 1.0, "weight_decay": 1e-2}, 0, True),  # and adapts all
        ({"lr": 1e-3, "weight_decay": 1e-2}, 6, False),
        ({"lr": 4.8, "weight_decay": 1e-2, "trust_coefficient": 0.001, "trust_clip": False}, 0, False),  # the paper's
    ],
)
def test_lars_equals_its_formula(numbers, clips, decay_all):
    expected, clipped = lars_reference(network(), **numbers, decay_all=decay_all)
    assert clipped == clips  # both sides of the clip are tested
    module = network()
    found = take_steps(build_optimizer(OptimizerConfig(**numbers, momentum=0.9, decay_all=decay_all), module), module)
    for parameter, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(parameter, wanted, rtol=1e-6, atol=1e-9)  # timm adds 1e-8 to the denominator


@pytest.mark.parametrize("decay_all", [False, True])
@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_only_weights_have_weight_decay_unless_all_parameters_have(name, decay_all):
    """With zero gradients only weight decay changes a parameter."""
    module = network()
    before = [parameter.detach().clone() for parameter in module.parameters()]
    optimizer = build_optimizer(OptimizerConfig(name=name, lr=0.5, weight_decay=0.1, decay_all=decay_all), module)
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for parameter, old in zip(module.parameters(), before, strict=True):
        torch.testing.assert_close(parameter.detach(), old * 0.95 if decay_all or old.ndim > 1 else old)


@pytest.mark.parametrize(("name", "kind"), [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)])
def test_momentum_and_beta2_are_the_betas_of_adam(name, kind):
    optimizer = build_optimizer(OptimizerConfig(name=name, lr=0.1, momentum=0.8, beta2=0.95), network())
    assert type(optimizer) is kind
    assert (optimizer.defaults["lr"], optimizer.defaults["betas"]) == (0.1, (0.8, 0.95))


RESNET = methods.BackboneConfig(arguments={"channels": [8, 8, 8, 8], "layers": [1, 2, 1, 1]}, stem="small")
VIT = methods.BackboneConfig(name="vit_tiny_patch16_224", arguments={"img_size": 32, "patch_size": 4, "depth": 3})
EFFICIENTNET = methods.BackboneConfig(name="test_efficientnet")


def joint(config):
    backbone = build_backbone(config)
    projector = methods.build_projector(methods.ProjectorConfig(widths=(8, 4)), feature_dim(backbone))
    return methods.JointEmbedding(backbone, projector, frossl)


@pytest.mark.parametrize("config", [RESNET, VIT, EFFICIENTNET], ids=lambda config: config.name)
def test_every_trainable_parameter_is_in_one_group(config):
    method = joint(config)
    frozen = next(method.backbone.parameters()).requires_grad_(False)
    grouped = [id(p) for group in split_parameters(method) for p in group]
    assert sorted(grouped) == sorted(id(p) for p in method.parameters() if p is not frozen)


# Learning rates


def rate_of(optimizer, module):
    """Return the learning rate of each parameter, by name."""
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    assert len(rates) == sum(len(group["params"]) for group in optimizer.param_groups)
    return {name: rates[id(p)] for name, p in module.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("config", [RESNET, VIT], ids=lambda config: config.name)
def test_layer_wise_rates_are_those_of_timm_and_heads_have_the_full_rate(config):
    method = joint(config)
    optimizer = build_optimizer(OptimizerConfig(name="adamw", weight_decay=0.1, layer_decay=0.5), method)
    set_learning_rate(optimizer, 0.3)
    found = rate_of(optimizer, method)
    theirs = timm.optim.param_groups_layer_decay(method.backbone, weight_decay=0.1, layer_decay=0.5)
    scales = {id(p): group["lr_scale"] for group in theirs for p in group["params"]}
    for name, parameter in method.backbone.named_parameters():
        assert found.pop(f"backbone.{name}") == pytest.approx(0.3 * scales[id(parameter)]), name
    assert found
    assert set(found.values()) == {0.3}
    assert len(set(scales.values())) >= 4  # layers
    decays = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    weights, others = split_parameters(method)
    assert {decays[id(p)] for p in weights} == {0.1}
    assert {decays[id(p)] for p in others} == {0.0}


def test_the_rate_of_a_constant_predictor_is_the_peak_in_each_step():
    encoder = methods.Encoder(nn.Linear(4, 4), nn.Linear(4, 4), 4)
    method = methods.METHODS["byol"](lambda: encoder, OBJECTIVES["byol"], 2, predictor=8)
    config = OptimizerConfig(name="sgd", lr=0.5, constant_predictor=True, decay_all=True, weight_decay=0.1)
    optimizer = build_optimizer(config, method)
    for rate in (0.01, 0.5, 0.0):
        set_learning_rate(optimizer, rate)
        for name, found in rate_of(optimizer, method).items():
            assert found == (0.5 if name.startswith("head") else rate), name
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.1}
