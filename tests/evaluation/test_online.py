import io
from copy import deepcopy

import pytest
import torch
from torch import nn

from fullrank.evaluation import OnlineProbe


def batch(seed, n=32):
    """Two features of very different scale, and their labels."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (n,), generator=generator)
    X = torch.randn(n, 6, generator=generator) + torch.nn.functional.one_hot(labels, 6) * 3
    return X * torch.logspace(-3, 3, 6) + 1, labels


def test_the_probe_learns_features_of_any_scale():
    probe = OnlineProbe(6, 3, lr=0.01)
    for seed in range(150):
        probe.step(*batch(seed))
    assert probe.accuracy(*batch(1000, 500)) > 0.85


def test_no_gradient_reaches_the_backbone():
    backbone = nn.Linear(6, 6)
    X, labels = batch(0)
    features = backbone(X)
    probe = OnlineProbe(6, 3, lr=0.01)
    out = probe.step(features, labels)
    assert probe.W.abs().sum() > 0
    assert all(parameter.grad is None for parameter in backbone.parameters())
    assert not any(value.requires_grad for value in out.values())
    assert not probe(features).detach().equal(torch.zeros(32, 3))
    features.sum().backward()  # the graph of the backbone was not freed


def test_unlabelled_features_change_neither_loss_nor_accuracy():
    X, labels = batch(0)
    half = labels.clone()
    half[16:] = -1
    probe, oracle = OnlineProbe(6, 3, lr=0.5, momentum=0.0), nn.functional.cross_entropy
    probe.step(X, half)
    Y = nn.functional.batch_norm(X, None, None, training=True, eps=1e-8)
    W = torch.zeros(3, 6, requires_grad=True)
    oracle((Y @ W.T)[:16], labels[:16]).backward()
    torch.testing.assert_close(probe.W.detach(), -0.5 * W.grad)
    predictions = probe.eval()(X).argmax(1)
    assert probe.accuracy(X, half) == pytest.approx((predictions == labels)[:16].float().mean().item())


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_a_batch_without_labels_changes_nothing(steps):
    probe = OnlineProbe(6, 3, lr=0.01)
    for seed in range(steps):
        probe.step(*batch(seed))
    before = deepcopy(probe.state_dict())
    out = probe.step(batch(100)[0], torch.full((32,), -1))
    assert all(value.isnan() for value in out.values())
    assert {"W", "W_velocity", "b", "b_velocity", "norm.running_mean", "norm.num_batches_tracked"} <= before.keys()
    assert all(torch.equal(value, before[name]) for name, value in probe.state_dict().items())


@pytest.mark.parametrize("standardize", [True, False])
def test_steps_with_weight_decay_and_a_schedule_equal_torch_sgd(standardize):
    probe = OnlineProbe(6, 3, lr=0.02, momentum=0.75, weight_decay=0.1, standardize=standardize)
    norm, linear = nn.BatchNorm1d(6, affine=False, eps=1e-8) if standardize else nn.Identity(), nn.Linear(6, 3)
    for parameter in linear.parameters():
        nn.init.zeros_(parameter)
    groups = [{"params": [linear.weight], "weight_decay": 0.1}, {"params": [linear.bias]}]
    optimizer = torch.optim.SGD(groups, lr=0.02, momentum=0.75)
    for seed, factor in enumerate((1.0, 0.5, 0.1)):
        X, labels = batch(seed)
        X = X if standardize else X / X.std(0)
        for group in optimizer.param_groups:
            group["lr"] = 0.02 * factor
        loss = nn.functional.cross_entropy(linear(norm(X)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.testing.assert_close(probe.step(X, labels, lr_factor=factor)["loss"], loss.detach())
    # torch adds the momentum before the rate, as the probe does: v is not scaled by the rate
    torch.testing.assert_close((probe.W, probe.b), (linear.weight, linear.bias))
    assert any("norm" in name for name in probe.state_dict()) == standardize


def test_the_score_counts_the_labelled_features_of_all_batches():
    probe = OnlineProbe(6, 12, lr=0.05)
    generator = torch.Generator().manual_seed(0)
    W = torch.randn(12, 6, generator=generator)
    X = torch.randn(400, 6, generator=generator)
    labels = (X @ W.T).argmax(1)
    for _ in range(20):
        probe.step(X, labels)
    half = labels.where(torch.arange(400) % 2 == 0, -1)
    score = probe.score(zip(X.split(150), half.split(150), strict=True))
    order = probe.eval()(X).argsort(1, descending=True)
    hits = (order == labels[:, None])[::2]
    assert score.images == 200
    assert score.accuracy == hits[:, 0].double().mean().item() == probe.accuracy(X, half)
    assert score.top5 == pytest.approx(hits[:, :5].double().sum().item() / 200)
    assert score.accuracy < score.top5
    assert OnlineProbe(6, 10, lr=0.1).score([(X, labels.clamp(max=9))]).top5 is None


def test_the_probe_resumes_bitwise_from_a_file():
    probe, state = OnlineProbe(6, 3, lr=0.01), torch.get_rng_state()
    for seed in range(5):
        probe.step(*batch(seed))
    assert torch.equal(state, torch.get_rng_state())  # it draws no random numbers
    file = io.BytesIO()
    torch.save(probe.state_dict(), file)
    file.seek(0)
    resumed = OnlineProbe(6, 3, lr=0.01)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    for seed in range(5, 10):
        a, b = probe.step(*batch(seed)), resumed.step(*batch(seed))
        assert all(torch.equal(a[name], b[name]) for name in a)
    assert torch.equal(probe.W, resumed.W)
    assert probe.accuracy(*batch(99)) == resumed.accuracy(*batch(99))


def test_accuracy_uses_eval_mode_and_changes_nothing():
    probe = OnlineProbe(6, 3, lr=0.01)
    for seed in range(20):
        probe.step(*batch(seed))
    before = probe.norm.running_mean.clone()
    X, labels = batch(50)
    one_by_one = sum(probe.accuracy(X[i : i + 1], labels[i : i + 1]) for i in range(32)) / 32
    assert probe.accuracy(X, labels) == pytest.approx(one_by_one)
    assert torch.equal(probe.norm.running_mean, before)


def test_the_probe_works_in_full_precision_under_autocast_and_no_grad():
    X, labels = batch(0)
    plain, cast = OnlineProbe(6, 3, lr=0.01), OnlineProbe(6, 3, lr=0.01)
    plain.step(X, labels)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        cast.step(X, labels)
    assert torch.equal(plain.W, cast.W)
    assert cast.step(X.bfloat16(), labels)["loss"].dtype == torch.float32
