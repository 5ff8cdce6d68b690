"""Losses with one error each, of kinds that occur in public code; other processes import this module."""

import torch
import torch.distributed as dist

from fullrank.objectives import frossl, vicreg

running = {"mean": 0.0}


def correct(Z, *, invariance=2.0):
    """A correct loss with two terms, for any number of views."""
    U = torch.nn.functional.normalize(Z, dim=-1)
    return {
        "invariance": invariance * (U - U.mean(0)).square().sum((0, 2)).mean(),
        "spread": (U.mT @ U / U.shape[1]).square().sum(),
    }


def barlow_with_a_local_correlation(Z, *, redundancy=5e-3):
    """Standardised on each process, then summed over processes in place, which gives no gradient."""
    Z1, Z2 = (Z - Z.mean(1, keepdim=True)) / Z.std(1, keepdim=True)
    M = Z1.mT @ Z2 / len(Z1)
    if dist.is_initialized():
        M = M / dist.get_world_size()
        dist.all_reduce(M)
    on = (1 - M.diagonal()).square().sum()
    return {"on": on, "off": redundancy * (M.square().sum() - M.diagonal().square().sum())}


def hinge_with_a_sum_in_place(Z):
    """VICReg's hinge: its gradient is zero if the variance of every feature is large, and then it cannot be wrong."""
    C = Z - Z.mean(1, keepdim=True)
    var = C.square().mean(1)
    if dist.is_initialized():
        dist.all_reduce(var)
        var = var / dist.get_world_size()
    return {"invariance": (Z[0] - Z[1]).square().mean(), "variance": torch.relu(1 - (var + 1e-4).sqrt()).mean()}


def rank_of_the_process(Z):
    """The weight of the loss depends on the process."""
    return {"loss": Z.square().mean() * (1 + (dist.get_rank() if dist.is_initialized() else 0))}


def raises_on_rank_one(Z):
    if dist.is_initialized() and dist.get_rank() == 1:
        raise RuntimeError("only here")
    return {"loss": Z.square().mean()}


def detached(Z):
    return {"loss": vicreg(Z[:2])["variance"].detach()}


def random_inside(Z):
    return {"loss": (Z + 0.1 * torch.randn_like(Z)).square().mean()}


def random_from_the_generator(Z, *, slices=3, generator):
    """Correct: random directions, from the argument."""
    A = torch.randn(Z.shape[-1], slices, generator=generator, dtype=torch.float64).to(Z)
    return {"loss": ((Z @ A).square().mean((0, 1)) - 1).square().mean()}


def item_inside(Z):
    return {"loss": Z.square().mean() / Z.detach().norm().item()}


def nan_at_a_constant_column(Z):
    A = Z - Z.mean(1, keepdim=True)
    A = A / A.norm(dim=1, keepdim=True)
    return {"loss": (A.mT @ A).square().sum()}


def infinite_gradient_at_equal_views(Z):
    return {"loss": (Z - Z.roll(1, 0)).square().sum(-1).sqrt().mean()}


def bare_tensor(Z):
    return sum(frossl(Z).values())


def per_sample(Z):
    return {"loss": Z.square().sum((0, 2))}


def python_number(Z):
    return {"loss": Z.square().mean(), "constant": 1.0}


def keeps_state(Z):
    running["mean"] = 0.9 * running["mean"] + 0.1 * Z.detach().mean()
    return {"loss": (Z - running["mean"]).square().mean()}


def changes_its_argument(Z):
    with torch.no_grad():
        Z -= Z.mean(1, keepdim=True)
    return {"loss": Z.square().mean()}


def wrong_gradient(Z):
    """The mean uses .data, which autograd ignores."""
    return {"loss": (Z - Z.data.mean(1, keepdim=True) * Z.mean(1, keepdim=True)).pow(4).mean()}


def stop_gradient(Z):
    """A correct loss with stop-gradients."""
    return {"loss": (Z[0] - Z[1].detach()).square().mean() + (Z[1] - Z[0].detach()).square().mean()}


def target_gets_a_gradient(P, T):
    return {"loss": -torch.nn.functional.cosine_similarity(P, T.flip(0), dim=-1).mean()}


def weight_of_another_term(Z, *, invariance=2.0, spread=1.0):
    terms = correct(Z, invariance=invariance)
    return {"invariance": terms["invariance"], "spread": invariance * spread * terms["spread"]}


def half_precision(Z):
    return {"loss": Z.float().square().mean()}


def cancels(Z):
    """The variance as a difference of large numbers, which cancel."""
    A = Z + 1e4
    return {"loss": (A.square().mean() - A.mean().square())}


def raises(Z):
    return {"loss": Z.no_such_method()}


def diverges(Z):
    return {"loss": -Z.pow(6).sum().exp().mean()}


def two_views_without_annotation(Z):
    Z1, Z2 = Z
    return {"loss": (Z1 - Z2).square().mean()}


def unknown_tensor(z1, z2):
    return {"loss": (z1 - z2).square().mean()}


def number_without_default(Z, *, temperature):
    return {"loss": Z.square().mean() / temperature}


def always_zero(Z):
    return {"loss": 0 * Z.sum()}
