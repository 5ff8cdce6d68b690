"""Projectors: each one in comparison with its formula, and all of them with objectives, on one process and on two."""

import math
import runpy
from copy import deepcopy
from itertools import product
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lightning.fabric import Fabric
from torch import nn

from fullrank.errors import UserError
from fullrank.methods import ProjectorConfig, TrainingLength, build_projector
from fullrank.methods.directclr_projectors import RandomDropout, permutation
from fullrank.objectives import OBJECTIVES, simclr
from fullrank.objectives.directclr import directclr
from fullrank.objectives.signature import tensor_names
from fullrank.training.micro_batches import forward_micro_batches

pytestmark = pytest.mark.usefixtures("double_precision")
WORKER = Path(__file__).with_name("projectors_worker.py")
table = runpy.run_path(str(WORKER))
PROJECTORS, SELECTED_OBJECTIVES, D_B = table["PROJECTORS"], table["SELECTED_OBJECTIVES"], table["D_B"]
every_projector = pytest.mark.parametrize("projector", PROJECTORS)
CUTTING = ("low-rank", "low-rank-diagonal", "sub-vector", "dropout")


@pytest.fixture(scope="module")
def fabric():
    return Fabric(accelerator="cpu", devices=1, precision="64-true")


def built(name, features=D_B, seed=0, **numbers):
    return build_projector(ProjectorConfig(kind=name, **{"d0": 3, "groups": 2} | numbers), features, seed=seed)


def loss_of(terms):
    return torch.stack(list(terms.values())).sum()


def whole_gradient(method, views):
    method.zero_grad()
    loss_of(method.terms(method(views))).backward()
    return torch.cat([p.grad.flatten() for p in method.parameters() if p.grad is not None])


# The MLP


def kinds(projector):
    return [type(layer).__name__ for layer in projector]


@pytest.mark.parametrize(
    ("widths", "expected"),
    [
        ((), []),
        ((7,), ["Linear"]),
        ((8, 8, 7), ["Linear", "BatchNorm1d", "ReLU", "Linear", "BatchNorm1d", "ReLU", "Linear"]),
    ],
)
def test_hidden_layers_are_linear_norm_relu_and_the_last_is_linear(widths, expected):
    projector = build_projector(ProjectorConfig(widths=widths), 5)
    assert kinds(projector) == expected
    assert projector(torch.randn(4, 5)).shape == (4, widths[-1] if widths else 5)


def test_without_widths_the_embedding_is_the_representation():
    R = torch.randn(4, 5)
    assert torch.equal(build_projector(ProjectorConfig(widths=()), 5)(R), R)


def test_batch_norm_is_optional():
    assert kinds(build_projector(ProjectorConfig(widths=(8, 7), batchnorm=False), 5)) == ["Linear", "ReLU", "Linear"]


def test_batch_norm_can_follow_the_last_layer():
    projector = build_projector(ProjectorConfig(widths=(8, 7), output_batchnorm=True), 5)
    assert kinds(projector) == ["Linear", "BatchNorm1d", "ReLU", "Linear", "BatchNorm1d"]
    assert projector[3].bias is None


@pytest.mark.parametrize("batchnorm", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_has_a_bias_only_without_batch_norm_and_if_wanted(batchnorm, bias):
    projector = build_projector(ProjectorConfig(widths=(8, 8, 7), batchnorm=batchnorm, bias=bias), 5)
    linear = [layer for layer in projector if isinstance(layer, nn.Linear)]
    assert [layer.bias is not None for layer in linear] == [bias and not batchnorm, bias and not batchnorm, bias]


def test_the_head_of_simsiam_ends_in_a_norm_without_scale_and_shift():
    config = ProjectorConfig(widths=(8, 8, 7), output_batchnorm=True, output_affine=False)
    projector = build_projector(config, 5)
    assert kinds(projector) == [
        "Linear",
        "BatchNorm1d",
        "ReLU",
        "Linear",
        "BatchNorm1d",
        "ReLU",
        "Linear",
        "BatchNorm1d",
    ]
    assert [layer.affine for layer in projector if isinstance(layer, nn.BatchNorm1d)] == [True, True, False]
    assert [layer.bias for layer in projector if isinstance(layer, nn.Linear)] == [None, None, None]
    Z = projector(3 * torch.randn(64, 5) + 2)
    torch.testing.assert_close(Z.mean(0), torch.zeros(7), atol=1e-6, rtol=0)
    torch.testing.assert_close(Z.var(0, correction=0), torch.ones(7), atol=1e-3, rtol=0)


def test_the_head_of_dino_has_three_layers_with_gelu_and_no_norm():
    projector = build_projector(ProjectorConfig(widths=(8, 8, 4), activation="gelu", batchnorm=False), 5)
    assert kinds(projector) == ["Linear", "GELU", "Linear", "GELU", "Linear"]
    R, (one, _, two, _, three) = torch.randn(6, 5), projector
    gelu = nn.functional.gelu
    torch.testing.assert_close(projector(R), three(gelu(two(gelu(one(R))))))


def test_a_linear_projector_without_bias_is_a_matrix():
    projector, R = build_projector(ProjectorConfig(widths=(3,), bias=False), 5), torch.randn(4, 5)
    torch.testing.assert_close(projector(R), R @ projector[0].weight.mT)


# The projectors of DirectCLR's paper


@every_projector
def test_embeddings_have_the_dimensions_of_the_config(projector):
    spec = PROJECTORS[projector]
    assert build_projector(spec, D_B)(torch.randn(4, D_B)).shape == (4, spec.dimensions(D_B))


def test_a_trainable_diagonal_starts_as_the_identity_and_scales_each_dimension():
    projector, R = built("diagonal"), torch.randn(4, D_B)
    assert torch.equal(projector(R), R)
    projector[0].weight.data = torch.arange(D_B).double()
    torch.testing.assert_close(projector(R), R @ torch.diag(torch.arange(D_B).double()))
    assert [p.shape for p in projector.parameters()] == [(D_B,)]


def test_an_orthogonal_projector_stays_orthogonal_during_training():
    projector = built("orthogonal")
    first = projector[0].weight.detach().clone()
    optimizer = torch.optim.SGD(projector.parameters(), lr=0.5)
    target = torch.randn(20, D_B)
    for _ in range(5):
        optimizer.zero_grad()
        (projector(target) - target.roll(1, dims=1)).square().mean().backward()
        optimizer.step()
    Q = projector[0].weight
    torch.testing.assert_close(Q @ Q.mT, torch.eye(D_B))
    assert (Q - first).norm() > 0.1


@pytest.mark.parametrize("objective", ["simclr", "spectral_contrastive"])
def test_an_orthogonal_projector_does_not_change_a_loss_of_inner_products(objective):
    R = torch.randn(2, 12, D_B)
    loss = OBJECTIVES[objective]
    Z = torch.stack([*map(built("orthogonal"), R)])
    torch.testing.assert_close(loss(Z), loss(R), rtol=1e-12, atol=1e-12)


@settings(max_examples=20, deadline=None)
@given(D=st.integers(1, 12), data=st.data())
def test_a_fixed_low_rank_projector_has_d0_singular_values_of_one(D, data):
    d0 = data.draw(st.integers(1, D))
    W = built("low-rank", features=D, d0=d0)[0].weight
    expected = (torch.arange(D) < d0).double()
    torch.testing.assert_close(torch.linalg.svdvals(W), expected, rtol=0, atol=1e-12)


def test_the_fixed_low_rank_subspaces_are_uniform():
    """E W = 0, and E WᵀW = (d0/D) I, with each entry's standard error in mind."""
    W = torch.stack([built("low-rank", features=4, d0=1)[0].weight for _ in range(4000)])
    assert W.mean(0).abs().max() < 5 * 0.25 / math.sqrt(4000)
    torch.testing.assert_close((W.mT @ W).mean(0), torch.eye(4) / 4, rtol=0, atol=0.02)


@pytest.mark.parametrize("kind", ["low-rank", "low-rank-diagonal"])
def test_fixed_projectors_have_no_parameters_and_are_saved(kind):
    projector = built(kind)
    assert not list(projector.parameters())
    other = built(kind)
    other.load_state_dict(projector.state_dict())
    R = torch.randn(4, D_B)
    assert torch.equal(other(R), projector(R))


def test_fixed_random_projectors_are_a_function_of_the_seed():
    def drawn(seed):
        torch.manual_seed(seed)
        return built("low-rank")[0].weight

    assert torch.equal(drawn(1), drawn(1))
    assert not torch.allclose(drawn(1), drawn(2))


def test_a_sub_vector_equals_a_low_rank_diagonal_for_a_loss_on_normalised_rows():
    R = torch.randn(2, 12, D_B)
    a, b = (torch.stack([*map(built(kind), R)]) for kind in ("sub-vector", "low-rank-diagonal"))
    assert torch.equal(a, R[..., :3])
    assert torch.equal(b, torch.cat([R[..., :3], torch.zeros(2, 12, D_B - 3)], -1))
    torch.testing.assert_close(simclr(a), simclr(b), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("kind", CUTTING)
def test_d0_is_from_one_to_the_dimensions_of_the_representation(kind):
    for d0 in (1, D_B):
        built(kind, d0=d0)
    for d0 in (0, D_B + 1):
        with pytest.raises(
            UserError, match=rf"^projector.d0 is {d0}, but representations have 6 dimensions; choose 1 to 6"
        ):
            built(kind, d0=d0)


# DirectCLR


def test_simclr_of_a_sub_vector_is_directclr_with_the_negatives_of_both_views():
    """With s the cosines / τ of the sub-vectors, DirectCLR compares sample i of one view with all of the other; SimCLR
    also with its own.

    Alignment is the same; log Σ_b exp s_ab of DirectCLR runs over the N of the other view, of SimCLR over those and the
    N − 1 others of its own view.
    """
    N, d0, tau = 9, 3, 0.1
    R = torch.randn(2, N, D_B)
    direct, sim = directclr(R, d0=d0, temperature=tau), simclr(R[..., :d0], temperature=tau)
    U = R[..., :d0] / R[..., :d0].norm(dim=-1, keepdim=True)
    torch.testing.assert_close(sim["alignment"], direct["alignment"])
    other_view, own_view = [], []
    for v, i in product(range(2), range(N)):
        other_view.append(sum(math.exp(U[v, i] @ U[1 - v, j] / tau) for j in range(N)))
        own_view.append(sum(math.exp(U[v, i] @ U[v, j] / tau) for j in range(N) if j != i))
    crossed, all_of_them = torch.tensor(other_view), torch.tensor(other_view) + torch.tensor(own_view)
    torch.testing.assert_close(direct["uniformity"], crossed.log().mean())
    torch.testing.assert_close(sim["uniformity"], all_of_them.log().mean())
    assert loss_of(sim) > loss_of(direct)


def test_dimensions_outside_the_sub_vector_get_no_gradient():
    R = torch.randn(2, 12, D_B, requires_grad=True)
    for kind in ("sub-vector", "low-rank-diagonal"):
        for objective in ("simclr", "frossl", "barlow_twins", "vicreg"):
            (G,) = torch.autograd.grad(loss_of(OBJECTIVES[objective](torch.stack([*map(built(kind), R)]))), R)
            assert (G[..., 3:] == 0).all()
            assert (G[..., :3] != 0).any(0).any(0).all()


# Random dropout of dimensions


def test_dropout_keeps_d0_dimensions_the_same_for_all_samples_and_different_in_each_step():
    projector, sets = built("dropout", features=40, d0=10, seed=7)[0], []
    for step in range(50):
        projector.before_step(step, TrainingLength())
        mask = projector(torch.ones(5, 40))
        assert (mask == mask[0]).all()
        assert mask[0].sum() == 10
        sets.append(mask[0])
    assert len({tuple(mask.tolist()) for mask in sets}) == 50
    expected, error = 50 * 10 / 40, math.sqrt(50 * 0.25 * 0.75)
    assert (torch.stack(sets).sum(0) - expected).abs().max() < 4 * error  # all dimensions are equally frequent


def test_dropout_is_a_function_of_seed_and_step_and_is_not_saved():
    one, other = (built("dropout", features=40, d0=10, seed=7)[0] for _ in range(2))
    assert not one.state_dict()
    one.before_step(3, TrainingLength()), one.before_step(8, TrainingLength())
    other.before_step(8, TrainingLength())
    assert torch.equal(one.dropped, other.dropped)
    different = built("dropout", features=40, d0=10, seed=8)[0]
    different.before_step(8, TrainingLength())
    assert not torch.equal(one.dropped, different.dropped)


def test_in_eval_mode_nothing_is_dropped():
    projector, R = built("dropout").eval(), torch.randn(4, D_B)
    assert torch.equal(projector(R), R)


def test_teacher_and_student_drop_the_same_dimensions():
    method = table["method"]("dropout", "byol")
    method.train().before_step(11)
    student, teacher = (m for m in method.modules() if isinstance(m, RandomDropout))
    assert torch.equal(student.dropped, teacher.dropped)
    assert torch.equal(student.dropped, permutation(table["SEED"], 11, D_B) >= 3)


def test_the_encoders_of_all_views_drop_the_same_dimensions():
    method = table["method"]("dropout", "frossl", shared=False)
    method.train().before_step(4)
    Z = method(next(iter(table["batches"]()))[0])["Z"]
    dropped = (Z == 0).all(1)
    assert dropped.sum(1).tolist() == [3, 3]
    assert torch.equal(dropped[0], dropped[1])


def test_permutations_of_successive_steps_are_uncorrelated():
    orders = torch.stack([permutation(0, step, 30) for step in range(200)])
    assert torch.equal(orders.sort(1).values, torch.arange(30).expand(200, 30))
    positions = orders.double() - 14.5
    correlation = (positions[1:] * positions[:-1]).sum(1) / (positions[0] ** 2).sum()
    assert abs(correlation.mean()) < 4 / math.sqrt(199 * 29)


# With every objective


@pytest.mark.parametrize("objective", [name for name, f in OBJECTIVES.items() if tensor_names(f) != ("R",)])
@every_projector
def test_every_objective_takes_every_projector(projector, objective):
    method = table["method"](projector, objective)
    method.before_step(2)
    views, _ = next(iter(table["batches"]()))
    terms = method.terms(method(views))
    assert all(term.isfinite() for term in terms.values())
    loss_of(terms).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in method.parameters() if p.requires_grad)


@every_projector
def test_micro_batches_give_the_gradient_of_the_whole_batch(projector, fabric):
    method = table["method"](projector, "frossl")
    for module in [m for m in method.modules() if isinstance(m, nn.Sequential)]:
        for name, layer in module.named_children():
            if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
                setattr(module, name, nn.Identity())  # because BatchNorm normalises each micro-batch separately
    method.before_step(2)
    views, _ = next(iter(table["batches"]()))
    expected = whole_gradient(method, views)
    method.zero_grad()
    embeddings, backward = forward_micro_batches(fabric, fabric.setup(method), views, micro_batch=5)
    backward(loss_of(method.terms(embeddings)))
    found = torch.cat([p.grad.flatten() for p in method.parameters() if p.grad is not None])
    assert (found - expected).norm() <= 1e-10 * expected.norm()


@pytest.mark.parametrize("objective", ["frossl", "byol"])
@every_projector
def test_a_resumed_run_takes_the_same_steps(projector, objective, fabric):
    """Random choices are a function of the step, so the weights are enough."""

    def losses(method, steps):
        optimizer = torch.optim.SGD(method.parameters(), lr=0.05)
        for step, (views, _) in [*enumerate(table["batches"](4))][steps]:
            method.train().before_step(step)
            embeddings = method(views)
            loss = loss_of(method.terms(embeddings))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            method.after_step(step, {name: embeddings[name].detach() for name in method.input_names})
            yield loss.item()

    whole = table["method"](projector, objective)
    first = list(losses(whole, slice(2)))
    saved = deepcopy(whole.state_dict())
    rest = list(losses(whole, slice(2, 4)))
    other = table["method"](projector, objective, seed=9)
    other.load_state_dict(saved)
    assert list(losses(other, slice(2, 4))) == rest
    assert len({*first, *rest}) == 4


@pytest.fixture(scope="module")
def one():
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return table["train_all"](Fabric(accelerator="cpu", devices=1, precision="64-true"))
    finally:
        torch.set_default_dtype(default)


@pytest.fixture(scope="module")
def two(together):
    return together(WORKER, 2)


@pytest.mark.ddp
@pytest.mark.parametrize("objective", SELECTED_OBJECTIVES)
@every_projector
def test_two_processes_take_the_step_of_one(projector, objective, one, two):
    expected = one[projector, objective]
    whole = torch.cat([g.flatten() for g in expected["gradients"].values()]).norm()
    assert whole > 0
    for process in two:
        found = process[projector, objective]
        assert found["gradients"].keys() == expected["gradients"].keys()
        for name, g in found["gradients"].items():
            assert (g - expected["gradients"][name]).norm() <= 1e-10 * whole, name
        torch.testing.assert_close(found["losses"], expected["losses"], rtol=1e-10, atol=1e-10)
        for name, value in expected["state"].items():
            torch.testing.assert_close(found["state"][name], value, rtol=1e-9, atol=1e-9)


def test_the_compared_projectors_differ(one):
    for objective in SELECTED_OBJECTIVES:
        losses = {round(one[projector, objective]["losses"][0].item(), 9) for projector in PROJECTORS}
        assert (
            len(losses) >= len(PROJECTORS) - 3
        )  # none, diagonal and (to a loss of inner products) orthogonal start equal
