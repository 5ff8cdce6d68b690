import math
from copy import deepcopy
from typing import get_args, get_type_hints

import pytest
import timm
import torch
from timm.optim import Lars
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from fullrank.errors import UserError
from fullrank.methods import (
    METHODS,
    BackboneConfig,
    Encoder,
    JointEmbedding,
    ProjectorConfig,
    build_backbone,
    build_projector,
    feature_dim,
)
from fullrank.objectives import OBJECTIVES, frossl
from fullrank.recipes.choices import BATCH_EXPONENTS, OPTIMIZERS
from fullrank.recipes.forecast import STATE_PER_WEIGHT
from fullrank.training import OptimizerConfig, build_optimizer, set_learning_rate, split_parameters

TRUST = 0.02
NAMES = get_args(get_type_hints(OptimizerConfig)["name"])


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


def lars_reference(
    module, *, lr, weight_decay, momentum, steps=3, trust_coefficient=TRUST, trust_clip=True, adapted_dimensions=1
):
    """Apply LARS one parameter at a time; return the parameters and how often LARC's clip was active."""
    weights = [p.detach().clone() for p in module.parameters()]
    buffers = [torch.zeros_like(w) for w in weights]
    clipped = 0
    for step in range(steps):
        for w, m, g in zip(weights, buffers, gradients(module, step), strict=True):
            if w.ndim > adapted_dimensions:
                adapted = trust_coefficient * w.norm() / (g.norm() + weight_decay * w.norm())
                clipped += int(trust_clip and adapted > lr)
                g = (min(adapted, torch.tensor(lr)) / lr if trust_clip else adapted) * (g + weight_decay * w)
            m.mul_(momentum).add_(g)
            w -= lr * m
    return weights, clipped


@pytest.mark.parametrize("weight_decay", [0.0, 1e-2])
@pytest.mark.parametrize(("lr", "clips"), [(1.0, 0), (1e-3, 6)])
def test_lars_equals_its_formula(lr, clips, weight_decay):
    expected, clipped = lars_reference(network(), lr=lr, weight_decay=weight_decay, momentum=0.9)
    assert clipped == clips  # both sides of the clip are tested
    module = network()
    found = take_steps(build_optimizer(OptimizerConfig(lr=lr, weight_decay=weight_decay), module), module)
    for parameter, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(parameter, wanted, rtol=1e-6, atol=1e-9)  # timm adds 1e-8 to the denominator


def test_lars_without_the_clip_equals_the_formula_of_the_paper():
    numbers = {"lr": 4.8, "weight_decay": 1e-2, "momentum": 0.9}
    expected, _ = lars_reference(network(), **numbers, trust_coefficient=0.001, trust_clip=False)
    module = network()
    found = take_steps(
        build_optimizer(OptimizerConfig(**numbers, trust_coefficient=0.001, trust_clip=False), module), module
    )
    for parameter, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(parameter, wanted, rtol=1e-6, atol=1e-9)


def test_lars_updates_biases_and_norms_like_sgd_without_decay():
    ours, theirs = network(), network()
    found = take_steps(build_optimizer(OptimizerConfig(lr=0.3, weight_decay=0.1), ours), ours)
    expected = take_steps(torch.optim.SGD(theirs.parameters(), lr=0.3, momentum=0.9), theirs)
    for parameter, wanted in zip(found, expected, strict=True):
        if parameter.ndim == 1:
            torch.testing.assert_close(parameter, wanted, rtol=1e-12, atol=1e-12)
        else:
            assert not torch.allclose(parameter, wanted)


def test_lars_adapts_weights_without_decay_unlike_timm():
    ours, theirs = network(), network()
    found = take_steps(build_optimizer(OptimizerConfig(lr=0.3, weight_decay=0.0), ours), ours)
    naive = take_steps(
        Lars(theirs.parameters(), lr=0.3, momentum=0.9, weight_decay=0.0, trust_coeff=TRUST, trust_clip=True), theirs
    )
    assert not torch.allclose(found[0], naive[0])


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


def adam_reference(module, *, decoupled, lr, weight_decay, betas, decay_all, steps=3):
    """Apply Adam or AdamW (`decoupled`) one number at a time."""
    weights = [p.detach().clone() for p in module.parameters()]
    for index, w in enumerate(weights):
        decay = weight_decay if decay_all or w.ndim > 1 else 0.0
        numbers = w.flatten()
        for i, value in enumerate(numbers.tolist()):
            mean = square = 0.0
            for step in range(steps):
                g = gradients(module, step)[index].flatten()[i].item()
                if decoupled:
                    value -= lr * decay * value
                else:
                    g += decay * value
                mean = betas[0] * mean + (1 - betas[0]) * g
                square = betas[1] * square + (1 - betas[1]) * g * g
                corrected = square / (1 - betas[1] ** (step + 1))
                value -= lr * mean / (1 - betas[0] ** (step + 1)) / (math.sqrt(corrected) + 1e-8)
            numbers[i] = value
    return weights


@pytest.mark.parametrize("decay_all", [False, True])
@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_adam_equals_its_formula(name, decay_all):
    module, numbers = network(), {"lr": 0.1, "weight_decay": 0.2, "decay_all": decay_all}
    expected = adam_reference(network(), decoupled=name == "adamw", betas=(0.8, 0.95), **numbers)
    found = take_steps(build_optimizer(OptimizerConfig(name=name, momentum=0.8, beta2=0.95, **numbers), module), module)
    for parameter, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(parameter, wanted, rtol=1e-10, atol=1e-10)


def test_lars_adapts_and_decays_all_parameters_if_it_decays_all():
    numbers = {"lr": 1.0, "weight_decay": 1e-2, "momentum": 0.9}
    expected, _ = lars_reference(network(), **numbers, adapted_dimensions=0)
    module = network()
    found = take_steps(build_optimizer(OptimizerConfig(**numbers, decay_all=True), module), module)
    for parameter, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(parameter, wanted, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("lars", Lars), ("sgd", torch.optim.SGD), ("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)],
)
def test_hyperparameters_are_passed_on(name, kind):
    optimizer = build_optimizer(OptimizerConfig(name=name, lr=0.25, weight_decay=0.125, momentum=0.75), network())
    assert type(optimizer) is kind
    decayed, plain = optimizer.param_groups
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.125, 0.0)
    for group in optimizer.param_groups:
        assert group["lr"] == 0.25
        assert (group["betas"][0] if name.startswith("adam") else group["momentum"]) == 0.75
    if name == "lars":
        assert {group["trust_coeff"] for group in optimizer.param_groups} == {TRUST}
        assert {group["trust_clip"] for group in optimizer.param_groups} == {True}


def test_the_fused_step_of_adamw_equals_the_plain_step():
    ours, theirs = network(), network()
    optimizer = build_optimizer(OptimizerConfig(name="adamw", lr=0.1, weight_decay=0.1), ours)
    assert all(group["fused"] for group in optimizer.param_groups)
    weights, others = split_parameters(theirs)
    groups = [{"params": weights, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    expected = take_steps(torch.optim.AdamW(groups, lr=0.1, foreach=False), theirs)
    for parameter, wanted in zip(take_steps(optimizer, ours), expected, strict=True):
        torch.testing.assert_close(parameter, wanted, rtol=1e-12, atol=1e-12)


def test_a_checkpoint_of_the_plain_step_is_continued_with_the_plain_step():
    """A run that another version has started continues bit for bit."""
    ours, theirs = network(), network()
    weights, others = split_parameters(theirs)
    plain = torch.optim.AdamW([{"params": weights}, {"params": others}], lr=0.1)
    take_steps(plain, theirs)
    ours.load_state_dict(theirs.state_dict())
    optimizer = build_optimizer(OptimizerConfig(name="adamw"), ours)
    optimizer.load_state_dict(deepcopy(plain.state_dict()))  # load_state_dict shares the counts of steps
    for parameter, wanted in zip(take_steps(optimizer, ours), take_steps(plain, theirs), strict=True):
        assert torch.equal(parameter, wanted)


@pytest.mark.parametrize("name", NAMES)
def test_a_network_without_biases_and_norms_can_be_trained(name):
    module = nn.Linear(3, 2, bias=False)
    optimizer = build_optimizer(OptimizerConfig(name=name, lr=0.1), module)
    before = module.weight.detach().clone()
    module(torch.randn(4, 3)).square().sum().backward()
    optimizer.step()
    assert not torch.equal(module.weight, before)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", NAMES)
def test_no_step_needs_a_value_on_the_host(name, device):
    """Tensors without values raise if a value is read; fake CUDA tensors need no GPU."""
    with FakeTensorMode(), torch.device(device):
        module = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Linear(3, 4))
        optimizer = build_optimizer(OptimizerConfig(name=name), module)
        for _ in range(2):
            for parameter in module.parameters():
                parameter.grad = torch.empty_like(parameter)
            optimizer.step()
        with pytest.raises(DataDependentOutputException):
            bool(module[0].weight.norm() > 0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", NAMES)
def test_no_step_waits_for_the_device(name):
    module = network().cuda()
    optimizer = build_optimizer(OptimizerConfig(name=name), module)
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(2):
            optimizer.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize(
    "config",
    [
        BackboneConfig(arguments={"channels": [8, 8, 8, 8], "layers": [1, 1, 1, 1]}),
        BackboneConfig(name="vit_tiny_patch16_224", arguments={"img_size": 32, "patch_size": 4, "depth": 2}),
        BackboneConfig(name="test_efficientnet"),
    ],
    ids=lambda config: config.name,
)
def test_every_trainable_parameter_is_in_one_group(config):
    backbone = build_backbone(config)
    method = JointEmbedding(backbone, build_projector(ProjectorConfig(widths=(8, 4)), feature_dim(backbone)), frossl)
    frozen = next(method.backbone.parameters()).requires_grad_(False)
    grouped = [id(p) for group in split_parameters(method) for p in group]
    assert sorted(grouped) == sorted(id(p) for p in method.parameters() if p is not frozen)


def test_parameters_listed_by_a_timm_model_have_no_decay():
    backbone = build_backbone(
        BackboneConfig(name="vit_tiny_patch16_224", arguments={"img_size": 32, "patch_size": 4, "depth": 2})
    )
    method = JointEmbedding(backbone, build_projector(ProjectorConfig(widths=(8, 4)), feature_dim(backbone)), frossl)
    names = {id(parameter): name for name, parameter in method.named_parameters()}
    weights, others = ({names[id(p)] for p in group} for group in split_parameters(method))
    assert {"backbone.pos_embed", "backbone.cls_token"} <= others
    assert {"backbone.patch_embed.proj.weight", "backbone.blocks.1.attn.qkv.weight", "projector.0.weight"} <= weights
    assert {name for name in others if method.get_parameter(name).ndim > 1} == {
        "backbone.pos_embed",
        "backbone.cls_token",
    }


def test_the_groups_equal_those_of_timm():
    network = timm.create_model("test_vit", num_classes=0)
    weights, others = split_parameters(network)
    theirs = timm.optim.param_groups_weight_decay(
        network, weight_decay=0.1, no_weight_decay_list=network.no_weight_decay()
    )
    assert {frozenset(map(id, group)) for group in (weights, others)} == {
        frozenset(map(id, group["params"])) for group in theirs
    }


# Learning rates


def rate_of(optimizer, module):
    """Return the learning rate of each parameter, by name."""
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    assert len(rates) == sum(len(group["params"]) for group in optimizer.param_groups)
    return {name: rates[id(p)] for name, p in module.named_parameters() if p.requires_grad}


def test_without_special_rates_there_are_two_groups_as_in_older_checkpoints():
    optimizer = build_optimizer(OptimizerConfig(name="sgd"), network())
    assert len(optimizer.param_groups) == 2
    assert not {"lr_scale", "constant_lr"} & optimizer.param_groups[0].keys()


@pytest.mark.parametrize(
    "config",
    [
        BackboneConfig(arguments={"channels": [8, 8, 8, 8], "layers": [1, 2, 1, 1]}, stem="small"),
        BackboneConfig(name="vit_tiny_patch16_224", arguments={"img_size": 32, "patch_size": 4, "depth": 3}),
    ],
    ids=lambda config: config.name,
)
def test_layer_wise_rates_are_those_of_timm_and_heads_have_the_full_rate(config):
    backbone = build_backbone(config)
    method = JointEmbedding(backbone, build_projector(ProjectorConfig(widths=(8, 4)), feature_dim(backbone)), frossl)
    optimizer = build_optimizer(OptimizerConfig(name="adamw", weight_decay=0.1, layer_decay=0.5), method)
    set_learning_rate(optimizer, 0.3)
    found = rate_of(optimizer, method)
    theirs = timm.optim.param_groups_layer_decay(backbone, weight_decay=0.1, layer_decay=0.5)
    scales = {id(p): group["lr_scale"] for group in theirs for p in group["params"]}
    for name, parameter in backbone.named_parameters():
        assert found.pop(f"backbone.{name}") == pytest.approx(0.3 * scales[id(parameter)]), name
    assert found
    assert set(found.values()) == {0.3}
    assert len(set(scales.values())) >= 4  # layers
    decays = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    weights, others = split_parameters(method)
    assert {decays[id(p)] for p in weights} == {0.1}
    assert {decays[id(p)] for p in others} == {0.0}


def test_the_encoder_of_each_view_has_layer_wise_rates():
    def make_encoder():
        backbone = build_backbone(BackboneConfig(arguments={"channels": [8, 8, 8, 8], "layers": [1, 1, 1, 1]}))
        return Encoder(backbone, build_projector(ProjectorConfig(widths=(4,)), 8), 4)

    method = METHODS["frossl"](make_encoder, frossl, 2, shared=False)
    optimizer = build_optimizer(OptimizerConfig(name="sgd", layer_decay=0.5), method)
    set_learning_rate(optimizer, 1.0)
    found = rate_of(optimizer, method)
    assert found["backbone.conv1.weight"] == found["view_encoders.0.0.conv1.weight"] == 0.5**4
    assert found["view_encoders.0.1.0.weight"] == 1.0


def test_layer_wise_rates_need_a_network_that_says_its_layers():
    with pytest.raises(UserError, match=r"optimizer\.layer_decay is 0\.5, but no network"):
        build_optimizer(OptimizerConfig(layer_decay=0.5), network())


@pytest.mark.parametrize("objective", ["simsiam", "byol"])
def test_the_rate_of_a_constant_predictor_is_the_peak_in_each_step(objective):
    def make_encoder():
        return Encoder(nn.Linear(4, 4), nn.Linear(4, 4), 4)

    method = METHODS[objective](make_encoder, OBJECTIVES[objective], 2, predictor=8)
    optimizer = build_optimizer(
        OptimizerConfig(name="sgd", lr=0.5, constant_predictor=True, decay_all=True, weight_decay=0.1), method
    )
    for rate in (0.01, 0.5, 0.0):
        set_learning_rate(optimizer, rate)
        for name, found in rate_of(optimizer, method).items():
            assert found == (0.5 if name.startswith("head") else rate), name
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.1}


def test_a_constant_predictor_needs_a_predictor():
    with pytest.raises(UserError, match=r"optimizer\.constant_predictor is set, but the method has no predictor"):
        build_optimizer(OptimizerConfig(constant_predictor=True), network())


def test_every_optimizer_has_a_rule_for_the_batch_size_and_a_forecast():
    assert set(NAMES) == set(OPTIMIZERS) == set(BATCH_EXPONENTS) == set(STATE_PER_WEIGHT)
    for name in NAMES:
        assert OPTIMIZERS[name].name == name
        module = network()
        optimizer = build_optimizer(OptimizerConfig(name=name), module)
        take_steps(optimizer, module, steps=1)
        numbers = sum(value.numel() for state in optimizer.state.values() for value in state.values() if value.ndim)
        assert numbers == STATE_PER_WEIGHT[name] * sum(p.numel() for p in module.parameters())
