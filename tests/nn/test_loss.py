"""The modules are the objectives: of a method of the library, of one process, and of lightly."""

import runpy
from copy import deepcopy
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from fullrank.errors import UserError
from fullrank.methods import METHODS, Encoder
from fullrank.nn import EMA, Loss, Prototypes, build_predictor
from fullrank.objectives import OBJECTIVES, total
from process_group import in_float64

WORKER = Path(__file__).with_name("loss_worker.py")
N, D, K, QUEUE = 24, 6, 8, 40
SIZES = {
    "moco": {"D": D, "size": QUEUE},
    "nnclr": {"D": D, "size": QUEUE},
    "dino": {"K": K},
    "tico": {"D": D},
    "corinfomax": {"D": D},
}
BUILD = {"moco": {"queue": QUEUE}, "nnclr": {"queue": QUEUE}, "dino": {"prototypes": K}, "swav": {"prototypes": K}}
HYPER = {"directclr": {"d0": 3}, "directclr_paper": {"d0": 3}}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_two_steps_are_those_of_the_method_of_the_library(name):
    hyper = HYPER.get(name, {})
    torch.manual_seed(0)
    encoder = Encoder(nn.Flatten(), nn.Linear(D, D), D)
    method = METHODS[name](lambda: encoder, partial(OBJECTIVES[name], **hyper), 2, **BUILD.get(name, {}))
    criterion = Loss(name, **hyper, **SIZES.get(name, {}))
    if criterion.state:
        criterion.state.load_state_dict(method.state.state_dict())
    for method.current_step, views in enumerate(torch.randn(2, 2, N, D, 1, 1)):
        embeddings = method([views])
        loss = total(method.terms(embeddings))
        # The module has the heads without weights itself.
        raw = embeddings | {"Z": torch.stack([*map(encoder.projector, views.flatten(2))])}
        inputs = [raw[name] for name in criterion.inputs]
        assert torch.equal(criterion(*(inputs if len(inputs) > 1 else inputs[0])), loss)
        assert torch.equal(sum(criterion.terms.values()), loss)
        method.after_step(0, {key: x.detach() for key, x in embeddings.items()})
        if criterion.state:
            torch.testing.assert_close(criterion.state.tensors(), method.state.tensors())


@pytest.mark.parametrize("name", OBJECTIVES)
def test_each_objective_learns_with_the_defaults_in_a_plain_loop(name):
    torch.manual_seed(0)
    criterion = Loss(name, **HYPER.get(name, {}), **SIZES.get(name, {}))
    projector = nn.Sequential(nn.Linear(12, D), nn.BatchNorm1d(D))
    head = {"S": Prototypes(D, K), "P": build_predictor(D, 16)}.get(criterion.inputs[0], nn.Identity())
    student = nn.Sequential(projector, head)
    averaged = student if criterion.inputs[0] == "S" else projector
    teacher, optimizer = EMA(averaged), torch.optim.Adam(student.parameters(), lr=1e-2)
    X = torch.randn(64, 12)

    def loss(student, teacher):
        views = [X + 0.3 * torch.randn_like(X) for _ in range(2)]
        P = [student(x) for x in views]
        return criterion(*P) if len(criterion.inputs) == 1 else criterion(P, [teacher(x) for x in views])

    untrained = deepcopy(student), deepcopy(teacher)
    for _ in range(40):
        value = loss(student, teacher)
        assert value.isfinite()
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        teacher.update(averaged, momentum=0.9)
    if not criterion.state:  # the loss depends on it
        assert loss(student, teacher) < loss(*untrained)


@pytest.mark.ddp
def test_two_processes_with_different_data_are_one(together):
    with in_float64():
        expected = runpy.run_path(str(WORKER))["main"]()
    first, second = together(WORKER, 2)
    for name, values in expected.items():
        for process in (first[name], second[name]):
            torch.testing.assert_close(process, values, rtol=1e-10, atol=1e-12, check_dtype=False, msg=name)


def test_the_state_is_in_the_state_dict_and_eval_mode_does_not_change_it():
    Q, T = torch.randn(2, 2, 8, D)
    criterion = Loss("moco", D=D, size=QUEUE)
    criterion(Q, T)
    again = Loss("moco", D=D, size=QUEUE)
    again.load_state_dict(deepcopy(criterion.state_dict()))
    criterion.eval()
    before = criterion(Q, T)
    assert torch.equal(criterion(Q, T), before)
    assert torch.equal(again(Q, T), before)
    assert not torch.equal(again(Q, T), before)  # in train mode, the keys have entered the queue


def test_a_schedule_follows_the_epoch_of_the_loop():
    z0, z1 = torch.randn(2, 8, D)
    criterion = Loss("frossl(end=2) + simclr(start=2)")
    for criterion.epoch, name in ((0, "frossl"), (1.5, "frossl"), (2, "simclr")):
        torch.testing.assert_close(criterion(z0, z1), Loss(name)(z0, z1))


def test_views_are_arguments_a_sequence_or_a_tensor():
    views = torch.randn(3, 8, D)
    criterion = Loss("frossl", invariance="balanced")
    assert criterion(*views) == criterion([*views]) == criterion(views) == criterion(Z=views)
    weight = 4 * 8 / D * (2 / (3 * 2)) ** 0.5
    assert criterion(views) == total(OBJECTIVES["frossl"](views, invariance=weight))


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_state_in_another_precision_is_averaged_in_float32_or_better(name, dtype):
    student, teacher = torch.randn(2, 2, N, K if name == "dino" else D)
    expected = Loss(name, **SIZES[name])
    module = deepcopy(expected).to(dtype)
    views = (student, teacher) if len(expected.inputs) > 1 else (student,)
    for _ in range(3):
        assert module(*(x.double() for x in views)).item() == pytest.approx(expected(*views).item(), rel=1e-4)


def test_a_part_of_an_objective_keeps_its_name_and_what_comes_before():
    views = 3 * torch.randn(2, 8, D)
    assert Loss(partial(OBJECTIVES["spectral_contrastive"]))(views) == Loss("spectral_contrastive")(views)


def test_a_sum_of_objectives_with_a_state_is_a_loss():
    views, keys = torch.randn(2, 2, 8, D)
    criterion, moco = Loss("frossl + 0.5 moco", D=D, size=16), Loss("moco", D=D, size=16)
    moco.load_state_dict(criterion.state_dict())
    loss = criterion(Z=views, Q=views, K=keys)
    torch.testing.assert_close(loss, Loss("frossl")(views) + moco(views, keys) / 2)
    assert torch.equal(criterion.state.queue, moco.state.queue)
    tico, both = Loss("tico", D=D, forgetting=0.5), Loss("frossl + tico(forgetting=0.5)", D=D)
    tico(views, keys), both(Z=views, T=keys)
    assert torch.equal(tico.state.C, both.state.C)


def test_half_precision_is_computed_in_float32():
    views = torch.randn(2, 8, D).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        loss = Loss("vicreg")(*views)
    assert loss == total(OBJECTIVES["vicreg"](views.float()))


def test_labels_and_random_numbers_reach_an_objective_of_the_user():
    def mine(Z, labels, *, weight=1.0, generator):
        noise = torch.rand((), generator=generator)
        return {"loss": weight * (Z.mean(-1) - labels).square().mean() + noise}

    views, labels = torch.randn(2, 8, D), torch.arange(8.0)
    one, other, seed = Loss(mine, weight=2.0), Loss(mine, weight=2.0), Loss(mine, weight=2.0, seed=1)
    first = one(*views, labels=labels)
    assert first == other(*views, labels=labels) != seed(*views, labels=labels)
    other.load_state_dict(one.state_dict())
    second = one(*views, labels=labels)  # the next call draws new numbers
    assert first != second == other(*views, labels=labels)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Loss("vicrec"), "unknown objective 'vicrec'.*did you mean 'vicreg'"),
        (lambda: Loss("vicreg", covarianze=1.0), "unknown setting of vicreg 'covarianze'"),
        (lambda: Loss("VICReg"), "did you mean 'vicreg'"),
        (lambda: Loss("moco", D=D), r"size is None, expected .*: Loss\('moco', D=…, size=…\)"),
        (lambda: Loss("dino", K=0), "K is 0, expected"),
        (lambda: Loss("byol")(torch.randn(4, D)), r"got 1 arguments, expected \(P, T\)"),
        (lambda: Loss("byol")(*torch.randn(2, 4, D)), r"P has views of shape \[\(6,\), .*expected two or more views"),
        (lambda: Loss("vicreg")(torch.randn(4, D)), r"views of shape \[\(4, 6\)\], expected two or more views"),
        (lambda: Loss("vicreg")(*torch.randn(2, 1, D)), "at least two images"),
        (lambda: Loss("vicreg")(torch.randn(4, D), torch.randn(3, D)), r"\[\(4, 6\), \(3, 6\)\], .*of one shape"),
        (lambda: Loss("vicreg")(*torch.randn(2, 4, D), teacher=torch.ones(4)), "unknown argument .* 'teacher'"),
        (lambda: Loss("vicreg")(*torch.randn(3, 4, D)), "exactly 2 views"),
        (lambda: Loss("simmer", order="balanced")(*torch.randn(2, 4, D)), "unknown"),
    ],
)
def test_a_mistake_names_what_was_expected(make, words):
    with pytest.raises(UserError, match=words):
        make()
