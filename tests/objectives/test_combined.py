"""Sums of objectives: values, gradients and signature from the summands, and the texts that are no sums."""

import pytest
import torch

from fullrank.errors import UserError
from fullrank.objectives import find_objective, find_state, frossl, moco, simclr
from fullrank.objectives.signature import hyperparameters, required_views, takes, tensor_names
from fullrank.recipes.user_code import find_objective as find_checked


def test_value_and_gradient_are_the_weighted_sums(rng):
    Z = torch.randn(2, 12, 5, generator=rng, dtype=torch.float64, requires_grad=True)
    terms = find_objective("frossl(invariance=3.0) + 0.5 simclr(temperature=0.1)")(Z)
    one, other = frossl(Z, invariance=3.0), simclr(Z, temperature=0.1)
    expected = {f"frossl {k}": x for k, x in one.items()} | {f"simclr {k}": x / 2 for k, x in other.items()}
    torch.testing.assert_close(terms, expected)
    loss = sum(one.values()) + sum(other.values()) / 2
    found, wanted = (torch.autograd.grad(x, Z, retain_graph=True)[0] for x in (sum(terms.values()), loss))
    torch.testing.assert_close(found, wanted)


def test_epochs_choose_the_summands(rng):
    Z, P, T = torch.randn(3, 2, 12, 5, generator=rng)
    objective = find_objective("frossl(end=2) + 3 byol(start=1)")
    one, other = sum(frossl(Z).values()), 3 * sum(find_objective("byol")(P, T).values())
    values = [sum(objective(Z, P, T, epoch=epoch).values()) for epoch in (0.0, 1.0, 1.99, 2.0)]
    torch.testing.assert_close(torch.stack(values), torch.stack([one, one + other, one + other, other]))
    assert takes(objective, "epoch")
    assert not takes(find_objective("frossl + byol"), "epoch")


def test_the_signature_has_every_tensor_once_and_no_hyperparameters():
    assert tensor_names(find_objective("frossl + moco")) == ("Z", "Q", "K", "queue")
    assert find_state(find_objective("frossl + moco")) is find_state(moco)
    assert hyperparameters(find_objective("frossl + moco")) == {}
    assert [required_views(find_objective(text)) for text in ("frossl + simclr", "frossl + vicreg")] == [None, 2]
    assert takes(find_objective("frossl + lejepa(slices=8)"), "generator")


def test_random_numbers_and_optional_tensors_reach_their_summand(rng):
    Z, queue = torch.randn(2, 12, 5, generator=rng), torch.randn(2, 30, 5, generator=rng)
    drawn = [find_objective("frossl + lejepa(slices=8)")(Z, generator=rng.manual_seed(1)) for _ in range(2)]
    assert drawn[0] == drawn[1]
    swav = find_objective("frossl + swav")
    assert swav(Z, Z)["swav prediction"] == find_objective("swav")(Z)["prediction"]
    assert swav(Z, Z, queue)["swav prediction"] == find_objective("swav")(Z, queue)["prediction"]


def test_a_scheduled_hyperparameter_reaches_its_summand_and_no_other_keyword_is_taken(rng):
    Z, S, T = torch.randn(3, 2, 12, 5, generator=rng)
    objective, dino, c = find_objective("frossl + dino"), find_objective("dino"), torch.zeros(5)
    found = objective(Z, S, T, c, teacher_temperature=0.5)
    expected = dino(S, T, c, teacher_temperature=0.5)
    assert {f"dino {name}": value for name, value in expected.items()}.items() <= found.items()
    with pytest.raises(UserError, match="got temperature_, expected Z, S, T, c"):
        objective(Z, S, T, c, temperature_=1.0)
    with pytest.raises(UserError, match="got 5 tensors"):
        objective(Z, S, T, c, Z)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("frossl - byol", "is no sum of objectives"),
        ("frossl + ", "is no sum of objectives"),
        ("frossl + __import__('os')", "is no sum of objectives"),
        ("2 3 frossl", "is no sum of objectives"),
        ("frossl(end='soon') + byol", "is no sum of objectives"),
        ("+".join(["frossl"] * 10_000), "is no sum of objectives"),
        ("frosl + byol", "did you mean 'frossl'"),
        ("frossl(invarianc=2) + byol", "did you mean 'invariance'"),
        ("frossl(invariance='high') + byol", "frossl.invariance"),
        ("frossl + 2 frossl", "twice"),
        ("moco + dino", "at most one"),
        ("frossl(start=1) + byol(start=1)", "no objective counts in epoch 0"),
        ("frossl(end=1) + byol(start=3)", "no objective counts in epoch 1"),
        ("2 spectral_contrastive", "leave it out"),
        ("frossl + corinfomax", "leave it out"),
    ],
)
def test_another_text_is_an_error(text, words):
    with pytest.raises(UserError, match=words):
        find_checked(text)
