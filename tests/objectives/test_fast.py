"""Each faster form has the terms, the gradients and the special cases of the formula, also of higher order; and the
folder can be deleted."""

import subprocess
import sys

import pytest
import torch

from fullrank.objectives import OBJECTIVES
from fullrank.objectives.faster import faster_form
from fullrank.testing import objective_case

fast = pytest.importorskip("fullrank.objectives.fast.pairs")
FAST = [name for name, objective in OBJECTIVES.items() if hasattr(objective, "formula")]
every_form = pytest.mark.parametrize("name", FAST)


def both(name, tensors, **hyper):
    """Return terms and gradients of the fast form and of the formula."""
    leaves = [t.detach().requires_grad_() for t in tensors]
    found = []
    for objective in (OBJECTIVES[name], OBJECTIVES[name].formula):
        terms = objective(*leaves, **hyper)
        weights = torch.arange(1.0, len(terms) + 1, dtype=tensors[0].dtype)
        loss = (torch.stack(list(terms.values())) * weights).sum()
        found.append([*terms.values(), *torch.autograd.grad(loss, leaves, materialize_grads=True)])
    return found


@pytest.mark.parametrize("D", [4, 12])  # fewer and more than the samples
@every_form
def test_has_the_terms_and_gradients_of_the_formula(name, D):
    tensors = objective_case(OBJECTIVES[name]).random_tensors(N=9, D=D)
    torch.testing.assert_close(*both(name, list(tensors.values())), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("hyper", [{"log": False}, {"center": False}, {"normalize": "rows"}], ids=str)
def test_frossl_with_other_numbers(hyper):
    Z = torch.randn(3, 9, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(*both("frossl", [Z + 0.5], **hyper))


@pytest.mark.parametrize("name", ["simclr", "ssl_hsic"])
@pytest.mark.parametrize("keep", [0, 2**26])
def test_in_blocks_that_are_kept_or_made_again(name, keep, monkeypatch):
    monkeypatch.setattr(fast, "BLOCK", {"cpu": 4})
    monkeypatch.setattr(fast, "KEEP", keep)
    tensors = objective_case(OBJECTIVES[name]).random_tensors()
    torch.testing.assert_close(*both(name, list(tensors.values())), rtol=1e-9, atol=1e-12)


@every_form
def test_at_collapse_and_at_nan(name):
    tensors = list(objective_case(OBJECTIVES[name]).random_tensors().values())
    for special in (torch.full_like(tensors[0], 0.1), torch.zeros_like(tensors[0])):
        found, expected = both(name, [special, *tensors[1:]])
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)
    damaged = tensors[0].clone()
    damaged[0, 1, 2] = torch.nan
    assert sum(OBJECTIVES[name](damaged, *tensors[1:]).values()).isnan()


@every_form
def test_higher_order_and_transforms_use_the_formula(name):
    case = objective_case(OBJECTIVES[name])
    tensors = list(case.random_tensors(N=5, D=3).values())

    def gradient(objective):
        Z = tensors[0].clone().requires_grad_()
        loss = sum(objective(Z, *tensors[1:]).values())
        (first,) = torch.autograd.grad(loss, Z, create_graph=True)
        return torch.autograd.grad(first.square().sum(), Z)[0]

    torch.testing.assert_close(gradient(OBJECTIVES[name]), gradient(OBJECTIVES[name].formula))
    functional = torch.func.grad(lambda Z: sum(OBJECTIVES[name](Z, *tensors[1:]).values()))(tensors[0])
    Z = tensors[0].clone().requires_grad_()
    torch.testing.assert_close(functional, torch.autograd.grad(sum(OBJECTIVES[name](Z, *tensors[1:]).values()), Z)[0])


def test_without_the_folder_every_objective_is_its_formula():
    code = (
        "import sys, torch; sys.modules['fullrank.objectives.fast'] = None\n"
        "from fullrank.objectives import frossl; from fullrank.objectives.faster import faster_form\n"
        "assert faster_form('columns:frossl') is None; frossl(torch.randn(2, 8, 4)); assert 'timm' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert faster_form("columns:frossl") is not None
