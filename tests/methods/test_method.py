from functools import partial

import pytest
import torch
from torch import nn

from fullrank.methods import Method
from fullrank.methods.precision import at_least_float32
from fullrank.objectives import frossl


class Plain(Method):
    """Nothing but an objective."""

    def __init__(self, objective):
        super().__init__(nn.Identity(), nn.Identity(), objective)


def two_tensors(P, T, /, extra, *, temperature=0.1):
    return {"loss": (P * T * extra).sum() * temperature}


def test_it_needs_the_positional_arguments_of_its_objective():
    assert Plain(frossl).inputs == ("Z",)
    assert Plain(two_tensors).inputs == ("P", "T", "extra")


def test_what_a_partial_has_fixed_is_not_needed():
    assert Plain(partial(frossl, invariance=2.0, log=False)).inputs == ("Z",)
    assert Plain(partial(two_tensors, extra=1.0)).inputs == ("P", "T")


def test_the_objective_gets_what_it_needs_and_no_more():
    seen = {}

    def objective(Z, *, weight=3.0):
        seen["Z"] = Z
        return {"loss": weight * Z.sum()}

    Z = torch.ones(2, 3, 4)
    terms = Plain(partial(objective, weight=5.0)).terms({"R": torch.zeros(1), "Z": Z})
    assert seen["Z"] is Z
    assert terms["loss"] == 5 * 24


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_an_objective_is_taken_in_float32_or_better(given, taken):
    Z = torch.randn(2, 8, 4).to(given)
    assert at_least_float32(Z).dtype == taken
    with torch.autocast("cpu", dtype=torch.bfloat16):
        terms = Plain(frossl).terms({"Z": Z})
    assert {term.dtype for term in terms.values()} == {taken}
    outside = frossl(Z.to(taken))
    assert all(torch.equal(terms[name], outside[name]) for name in outside)  # to the last bit: autocast never reached it


def test_autocast_would_have_changed_the_objective():
    Z = torch.randn(2, 64, 32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = frossl(Z)["variance"]
        exact = Plain(frossl).terms({"Z": Z})["variance"]
    assert rounded != exact


def test_a_method_says_itself_how_it_embeds():
    with pytest.raises(NotImplementedError):
        Plain(frossl)([torch.zeros(2, 4, 3, 8, 8)])


def test_the_hooks_do_nothing():
    method = Plain(frossl)
    method.layer = nn.Linear(2, 2)
    before = method.layer.weight.clone()
    assert method.state() == {}
    assert method.before_step(3) is None
    assert method.after_step(3, {"Z": torch.ones(2, 3, 2)}) is None
    assert torch.equal(method.layer.weight, before)


def test_what_the_method_remembers_is_not_asked_of_the_views():
    class Remembering(Plain):
        def state(self):
            return {"extra": torch.full((), 2.0)}

    method = Remembering(two_tensors)
    assert method.inputs == ("P", "T")
    assert method.terms({"P": torch.ones(3), "T": torch.ones(3)})["loss"].item() == pytest.approx(0.6)
