"""Compare a step with micro-batches to a step without, and to micro-batches with all activations in memory."""

from copy import deepcopy
from functools import partial

import pytest
import torch
from lightning.fabric import Fabric
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fullrank.methods import METHODS, BackboneConfig, Encoder, JointEmbedding
from fullrank.methods.backbones import build_backbone, freeze
from fullrank.objectives import OBJECTIVES, frossl, vicreg
from fullrank.objectives.signature import required_views, tensor_names
from fullrank.training.micro_batches import forward_micro_batches, split_views

pytestmark = pytest.mark.usefixtures("double_precision")
N, D = 12, 5
MULTI_CROP = [name for name, f in OBJECTIVES.items() if tensor_names(f)[0] in ("Z", "S") and required_views(f) is None]


@pytest.fixture(scope="module")
def fabric():
    return Fabric(accelerator="cpu", devices=1, precision="64-true")


def views(*crops):
    """Return two full-size views and smaller ones; the images of a batch differ in mean."""
    rng = torch.Generator().manual_seed(1)
    groups = [(2, 8), *crops]
    return [torch.randn(V, N, 1, S, S, generator=rng) + torch.linspace(-1, 1, N).view(N, 1, 1, 1) for V, S in groups]


def branch(*layers):
    """Return a network for images of any size, with additional layers in its middle."""
    inner = nn.Conv2d(1, 6, 3), *layers, nn.ReLU()
    backbone = nn.Sequential(*inner, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, 8))
    return Encoder(backbone, nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, D)), D)


def joint(*layers, objective=frossl):
    backbone, projector, _ = branch(*layers)
    return JointEmbedding(backbone, projector, objective)


def build_method(name):
    """Return the method of an objective, without BatchNorm."""
    numbers = {"d0": 4} if name.startswith("directclr") else {}
    method = METHODS[name](branch, partial(OBJECTIVES[name], **numbers), 2).double()
    for module in list(method.modules()):
        for child, layer in module.named_children():
            if isinstance(layer, _BatchNorm):
                setattr(module, child, nn.Identity())
    return method


def gradient(fabric, method, groups, *, micro_batch):
    """Return the loss and its gradient as one vector; a parameter without gradient counts as zeros."""
    embeddings, backward = forward_micro_batches(fabric, fabric.setup(method), groups, micro_batch=micro_batch)
    loss = sum(method.terms(embeddings).values())
    backward(loss)
    return loss.detach(), flat_gradient(method)


def flat_gradient(method):
    return torch.cat([torch.zeros(p.numel()) if p.grad is None else p.grad.flatten() for p in method.parameters()])


def keep_all_activations(method, micro_batches):
    """Return the loss of micro-batches that are embedded one by one, and its gradient by backward through all of
    them."""
    outputs = [method(part) for part in micro_batches]
    loss = sum(method.terms({name: torch.cat([output[name] for output in outputs], 1) for name in outputs[0]}).values())
    loss.backward()
    return loss.detach(), flat_gradient(method)


def assert_equal(found, wanted):
    torch.testing.assert_close(found[0], wanted[0], rtol=1e-10, atol=0)
    assert wanted[1].norm() > 1e-6
    assert (found[1] - wanted[1]).norm() <= 1e-10 * wanted[1].norm()


@pytest.mark.parametrize("name", OBJECTIVES)
def test_loss_and_gradient_equal_those_of_the_whole_batch(fabric, name):
    method = build_method(name)
    groups = views((3, 6)) if name in MULTI_CROP else views()
    wanted = gradient(fabric, deepcopy(method), groups, micro_batch=0)
    assert_equal(gradient(fabric, method, groups, micro_batch=5), wanted)  # three micro-batches of 4


@pytest.mark.parametrize("objective", ["frossl", "dino"])
def test_a_vision_transformer_has_the_gradient_of_the_whole_batch(fabric, objective):
    """With smaller views, whose position embeddings are interpolated, and with a frozen patch embedding."""
    arguments = {"img_size": 8, "patch_size": 2, "embed_dim": 12, "depth": 2, "num_heads": 2, "dynamic_img_size": True}

    def encoder():
        backbone = build_backbone(BackboneConfig(name="vit_tiny_patch16_224", arguments=arguments), channels=1)
        freeze(backbone, ["patch_embed"])
        return Encoder(backbone, nn.Linear(12, D), D)

    method = METHODS[objective](encoder, partial(OBJECTIVES[objective]), 5).double()
    loss, wanted = gradient(fabric, deepcopy(method), views((3, 4)), micro_batch=0)
    found = gradient(fabric, method, views((3, 4)), micro_batch=5)
    torch.testing.assert_close(found[0], loss, rtol=1e-10, atol=0)
    assert (found[1] - wanted).norm() <= 1e-8 * wanted.norm()  # timm interpolates position embeddings in float32
    assert method.backbone.patch_embed.proj.weight.grad is None


def test_dropout_uses_the_same_masks_in_both_passes(fabric):
    method, groups = joint(nn.Dropout2d(0.5)), views((1, 5))
    state = torch.get_rng_state()
    wanted = keep_all_activations(deepcopy(method), split_views(groups, 5))
    after = torch.get_rng_state()
    other = keep_all_activations(deepcopy(method), split_views(groups, 5))
    assert (other[1] - wanted[1]).norm() > 0.1 * wanted[1].norm()  # other masks give another gradient
    torch.set_rng_state(state)
    assert_equal(gradient(fabric, method, groups, micro_batch=5), wanted)
    assert torch.equal(torch.get_rng_state(), after)


def test_batchnorm_normalises_each_micro_batch_and_updates_its_statistics(fabric):
    method, groups = joint(nn.BatchNorm2d(6)), views((1, 5))
    oracle, undivided = deepcopy(method), deepcopy(method)
    assert_equal(gradient(fabric, method, groups, micro_batch=5), keep_all_activations(oracle, split_views(groups, 5)))
    norm, wanted = method.backbone[1], oracle.backbone[1]
    torch.testing.assert_close(norm.running_mean, wanted.running_mean, rtol=1e-12, atol=0)
    torch.testing.assert_close(norm.running_var, wanted.running_var, rtol=1e-12, atol=0)
    assert norm.num_batches_tracked == 3 * 3  # micro-batches × views
    _, whole = gradient(fabric, undivided, groups, micro_batch=0)
    assert (whole - flat_gradient(method)).norm() > 1e-2 * whole.norm()  # BatchNorm changes the gradient


class SavedTensor:
    """A tensor saved for the backward pass; counts the numbers in all saved tensors."""

    alive = peak = 0

    def __init__(self, tensor, weights):
        self.tensor = tensor
        self.counted = 0 if tensor.untyped_storage().data_ptr() in weights else tensor.numel()
        SavedTensor.alive += self.counted
        SavedTensor.peak = max(SavedTensor.peak, SavedTensor.alive)

    def __del__(self):
        SavedTensor.alive -= self.counted


def count_saved(fabric, method, groups, *, micro_batch):
    """Return how many numbers, without weights, are saved for backward: after the forward pass, and at most."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in method.parameters()}
    SavedTensor.peak = 0
    hooks = (lambda tensor: SavedTensor(tensor, weights)), (lambda saved: saved.tensor)
    with torch.autograd.graph.saved_tensors_hooks(*hooks):
        embeddings, backward = forward_micro_batches(fabric, fabric.setup(method), groups, micro_batch=micro_batch)
        embedded = SavedTensor.alive
        backward(sum(method.terms(embeddings).values()))
    assert SavedTensor.alive == 0
    return embedded, SavedTensor.peak


def test_activations_of_only_one_micro_batch_are_in_memory(fabric):
    method, groups = joint(objective=vicreg), views()
    embedded, whole = count_saved(fabric, method, groups, micro_batch=0)
    assert embedded > N * 6 * 6 * 6  # activations
    for micro_batch in (6, 4, 2):
        embedded, peak = count_saved(fabric, method, groups, micro_batch=micro_batch)
        assert embedded == 0
        assert peak <= 1.05 * whole * micro_batch / N


def test_processes_exchange_gradients_only_after_the_last_micro_batch(fabric, monkeypatch):
    calls, plain = [], fabric.no_backward_sync

    def record(module, enabled):
        calls.append(enabled)
        return plain(module, enabled)

    monkeypatch.setattr(fabric, "no_backward_sync", record)
    gradient(fabric, joint(), views(), micro_batch=4)
    assert calls == [True, True, False]
