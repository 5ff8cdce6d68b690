import torch

from fullrank.conformance.held import Held


def test_what_is_detached_or_computed_without_gradient_is_given_back():
    def function(x):
        with torch.no_grad():
            a = 2 * x
        return x * x.detach() * a

    held = Held()
    with held:
        assert function(torch.tensor(3.0)) == 54
    for x in (1.0, 5.0):
        with held.again():
            assert function(torch.tensor(x)) == x * 3 * 6


def test_what_is_changed_in_place_without_gradient_stays_itself():
    def function(x):
        total = torch.zeros(())
        with torch.no_grad():
            total.add_(x)
        return x * total

    held = Held()
    with held:
        function(torch.tensor(3.0))
    with held.again():
        assert function(torch.tensor(5.0)) == 15


def test_nothing_is_held_where_gradients_flow():
    held = Held()
    with held:
        torch.tensor(3.0).square()
    assert held.tape == []
