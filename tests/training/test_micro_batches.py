"""A step in pieces against the undivided step, and against pieces whose activations are all kept."""

from copy import deepcopy
from functools import partial

import pytest
import torch
from lightning.fabric import Fabric
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fullrank.distributed import convert_sync_batchnorm
from fullrank.methods import METHODS, Encoder, JointEmbedding
from fullrank.methods.method import Method
from fullrank.objectives import OBJECTIVES, frossl, vicreg
from fullrank.objectives.signature import required_views, tensor_names
from fullrank.training import OptimizerConfig, build_optimizer, fit
from fullrank.training.micro_batches import count_pieces, divide, embed

N, D = 12, 5
MULTI_CROP = [name for name, f in OBJECTIVES.items() if tensor_names(f)[0] in ("Z", "S") and required_views(f) is None]


@pytest.fixture(autouse=True)
def _double_precision():
    torch.set_default_dtype(torch.float64)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="module")
def fabric():
    return Fabric(accelerator="cpu", devices=1, precision="64-true")


def views(*crops):
    """Two full-size views, and smaller ones; the images of a batch differ in mean."""
    rng = torch.Generator().manual_seed(1)
    groups = [(2, 8), *crops]
    return [torch.randn(V, N, 1, S, S, generator=rng) + torch.linspace(-1, 1, N).view(N, 1, 1, 1) for V, S in groups]


def branch(*layers):
    """A network for images of any size, with further layers in its middle."""
    backbone = nn.Sequential(nn.Conv2d(1, 6, 3), *layers, nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, 8))
    return Encoder(backbone, nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, D)), D)


def joint(*layers, objective=frossl):
    backbone, projector, _ = branch(*layers)
    return JointEmbedding(backbone, projector, objective)


def built(name):
    """The method of an objective, without BatchNorm."""
    numbers = {"d0": 4} if name.startswith("directclr") else {}
    method = METHODS[name](branch, partial(OBJECTIVES[name], **numbers), 2).double()
    for module in list(method.modules()):
        for child, layer in module.named_children():
            if isinstance(layer, _BatchNorm):
                setattr(module, child, nn.Identity())
    return method


def gradient(fabric, method, groups, *, micro_batch):
    """The loss and its whole gradient, in one vector; a parameter without gradient counts as zeros."""
    embeddings, backward = embed(fabric, fabric.setup(method), groups, micro_batch=micro_batch)
    loss = sum(method.terms(embeddings).values())
    backward(loss)
    return loss.detach(), vector(method)


def vector(method):
    return torch.cat([torch.zeros(p.numel()) if p.grad is None else p.grad.flatten() for p in method.parameters()])


def by_keeping_everything(method, pieces):
    """The loss of pieces that are embedded one after another, and its gradient by backward through all of them."""
    outputs = [method(piece) for piece in pieces]
    loss = sum(method.terms({name: torch.cat([output[name] for output in outputs], 1) for name in outputs[0]}).values())
    loss.backward()
    return loss.detach(), vector(method)


def assert_equal(found, wanted):
    torch.testing.assert_close(found[0], wanted[0], rtol=1e-10, atol=0)
    assert wanted[1].norm() > 1e-6
    assert (found[1] - wanted[1]).norm() <= 1e-10 * wanted[1].norm()


@pytest.mark.parametrize("name", OBJECTIVES)
def test_loss_and_gradient_are_those_of_the_undivided_batch(fabric, name):
    method = built(name)
    groups = views((3, 6)) if name in MULTI_CROP else views()
    wanted = gradient(fabric, deepcopy(method), groups, micro_batch=0)
    assert_equal(gradient(fabric, method, groups, micro_batch=5), wanted)  # three pieces of 4


@pytest.mark.parametrize("micro_batch", [1, 4, 7, 11, 12, 100])
def test_any_number_of_images_may_make_a_piece(fabric, micro_batch):
    method, groups = joint(), views((4, 5), (1, 4))
    wanted = gradient(fabric, deepcopy(method), groups, micro_batch=0)
    assert_equal(gradient(fabric, method, groups, micro_batch=micro_batch), wanted)


def test_dropout_falls_on_the_same_units_in_both_passes(fabric):
    method, groups = joint(nn.Dropout2d(0.5)), views((1, 5))
    state = torch.get_rng_state()
    wanted = by_keeping_everything(deepcopy(method), divide(groups, 5))
    after = torch.get_rng_state()
    other = by_keeping_everything(deepcopy(method), divide(groups, 5))
    assert (other[1] - wanted[1]).norm() > 0.1 * wanted[1].norm()  # the units matter
    torch.set_rng_state(state)
    assert_equal(gradient(fabric, method, groups, micro_batch=5), wanted)
    assert torch.equal(torch.get_rng_state(), after)


def test_batchnorm_normalises_each_piece_and_its_statistics_move_once_for_each(fabric):
    method, groups = joint(nn.BatchNorm2d(6)), views((1, 5))
    oracle, undivided = deepcopy(method), deepcopy(method)
    assert_equal(gradient(fabric, method, groups, micro_batch=5), by_keeping_everything(oracle, divide(groups, 5)))
    norm, wanted = method.backbone[1], oracle.backbone[1]
    torch.testing.assert_close(norm.running_mean, wanted.running_mean, rtol=1e-12, atol=0)
    torch.testing.assert_close(norm.running_var, wanted.running_var, rtol=1e-12, atol=0)
    assert norm.num_batches_tracked == 3 * 3  # pieces × views
    _, whole = gradient(fabric, undivided, groups, micro_batch=0)
    assert (whole - vector(method)).norm() > 1e-2 * whole.norm()  # what the note is for


@pytest.mark.parametrize("name", ["lars", "adamw"])
def test_three_steps_are_those_of_the_undivided_batch(fabric, name):
    method = built("moco")  # with a moving average and a queue
    other = deepcopy(method)
    rng = torch.Generator().manual_seed(2)
    batches = [([torch.randn(2, N, 1, 8, 8, generator=rng)], torch.arange(N)) for _ in range(3)]

    def steps(method, micro_batch):
        module, optimizer = fabric.setup(method, build_optimizer(OptimizerConfig(name=name, lr=0.1), method))
        return list(fit(fabric, module, optimizer, batches, lambda step: 0.1, micro_batch=micro_batch))

    for found, wanted in zip(steps(method, 5), steps(other, 0), strict=True):
        assert torch.equal(found.labels, wanted.labels)
        assert not any(tensor.requires_grad for tensor in (found.R, *found.embeddings.values(), *found.terms.values()))
        for x, y in zip((found.R, *found.embeddings.values()), (wanted.R, *wanted.embeddings.values()), strict=True):
            torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-9)
    for key, value in method.state_dict().items():
        torch.testing.assert_close(value, other.state_dict()[key], rtol=1e-9, atol=1e-9)


class Pair(Method):
    """A target without gradient, and an objective that does not hold it constant by itself."""

    def __init__(self):
        objective = lambda P, T: {"distance": (P - 0.5 * T).square().sum() + (P * T).sum()}  # noqa: E731
        super().__init__(nn.Flatten(), nn.Linear(64, D), objective)

    def forward(self, views):
        R = torch.stack([self.backbone(view) for view in views[0]])
        P = self.projector(R)
        return {"R": R, "Z": P, "P": P, "T": P.detach().flip(0)}


def test_a_target_without_gradient_is_held_constant(fabric):
    method = Pair()
    wanted = gradient(fabric, deepcopy(method), views(), micro_batch=0)
    assert_equal(gradient(fabric, method, views(), micro_batch=5), wanted)


class Held:
    """A tensor that a backward pass waits for; counts the numbers in all that are held at once."""

    alive = peak = 0

    def __init__(self, tensor, weights):
        self.tensor = tensor
        self.counted = 0 if tensor.untyped_storage().data_ptr() in weights else tensor.numel()
        Held.alive += self.counted
        Held.peak = max(Held.peak, Held.alive)

    def __del__(self):
        Held.alive -= self.counted


def held(fabric, method, groups, *, micro_batch):
    """Numbers beside weights that wait for the backward pass: after the embeddings are there, and at most."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in method.parameters()}
    Held.peak = 0
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: Held(tensor, weights), lambda saved: saved.tensor):
        embeddings, backward = embed(fabric, fabric.setup(method), groups, micro_batch=micro_batch)
        embedded = Held.alive
        backward(sum(method.terms(embeddings).values()))
    assert Held.alive == 0
    return embedded, Held.peak


def test_the_first_pass_keeps_only_embeddings_and_the_second_one_piece(fabric):
    method, groups = joint(objective=vicreg), views()
    embedded, whole = held(fabric, method, groups, micro_batch=0)
    assert embedded > N * 6 * 6 * 6  # activations
    for micro_batch in (6, 4, 2):
        embedded, peak = held(fabric, method, groups, micro_batch=micro_batch)
        assert embedded == 0
        assert peak <= 1.05 * whole * micro_batch / N


def test_no_more_images_pass_at_once_than_asked_for_and_each_passes_twice(fabric):
    method, sizes = joint(), []
    method.backbone[0].register_forward_hook(lambda layer, inputs, output: sizes.append(len(inputs[0])))
    gradient(fabric, method, views(), micro_batch=5)
    assert sizes == [4, 4] * 3 * 2


def test_processes_share_gradients_with_the_last_piece_alone(fabric, monkeypatch):
    calls, plain = [], fabric.no_backward_sync

    def record(module, enabled):
        calls.append(enabled)
        return plain(module, enabled)

    monkeypatch.setattr(fabric, "no_backward_sync", record)
    gradient(fabric, joint(), views(), micro_batch=4)
    assert calls == [True, True, False]


@pytest.mark.parametrize("micro_batch", range(1, 14))
def test_pieces_are_as_few_as_can_be_nearly_equal_and_make_the_whole(micro_batch):
    groups = views((3, 4))
    pieces = divide(groups, micro_batch)
    sizes = [piece[0].shape[1] for piece in pieces]
    assert len(sizes) == count_pieces(N, micro_batch) == min(k for k in range(1, N + 1) if k * micro_batch >= N)
    assert max(sizes) <= micro_batch
    assert max(sizes) - min(sizes) <= 1
    for group, parts in zip(groups, zip(*pieces, strict=True), strict=True):
        assert torch.equal(torch.cat(parts, 1), group)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_dropout_falls_on_the_same_units_in_both_passes_on_a_gpu():
    fabric = Fabric(accelerator="cuda", devices=1, precision="64-true")
    method, groups = joint(nn.Dropout2d(0.5)).cuda(), [group.cuda() for group in views((1, 5))]
    state = torch.cuda.get_rng_state()
    wanted = by_keeping_everything(deepcopy(method), divide(groups, 5))
    torch.cuda.set_rng_state(state)
    assert_equal(gradient(fabric, method, groups, micro_batch=5), wanted)


def test_mixed_precision_is_that_of_the_undivided_batch():
    torch.set_default_dtype(torch.float32)
    method, groups = convert_sync_batchnorm(joint()).float(), [group.float() for group in views()]
    fabric = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
    loss, wanted = gradient(fabric, deepcopy(method), groups, micro_batch=0)
    found, divided = gradient(fabric, method, groups, micro_batch=5)
    torch.testing.assert_close(found, loss, rtol=1e-3, atol=0)
    assert (divided - wanted).norm() <= 0.02 * wanted.norm()
