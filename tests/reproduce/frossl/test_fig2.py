import json
from dataclasses import replace

import pytest
import torch

from fullrank.dynamics.two_view_modes import frossl_modes
from fullrank.errors import UserError
from fullrank.reproduce.frossl.fig2 import FIGURE, Size, printed_18, two_views


@pytest.fixture(scope="module")
def rows():
    return FIGURE.compute(FIGURE.sizes["smoke"], data=None, seed=0)


def claim(rows, words):
    (found,) = [claim for claim in FIGURE.claims(rows) if words in claim.statement]
    return found


def test_frossl_is_quicker_at_equal_learning_rate_and_barlow_at_its_own_limit(rows):
    assert claim(rows, "much quicker").holds
    assert claim(rows, "more steps than Barlow").holds


def test_18_as_printed_does_not_describe_training_and_the_corrected_form_does(rows):
    assert not claim(rows, "(18)").holds
    assert claim(rows, "corrected signs").holds
    assert claim(rows, "time at which each is learnt").holds
    assert claim(rows, "1 + 1/ρ").holds


def test_what_else_the_theory_predicts(rows):
    assert claim(rows, "no closer together").holds
    assert claim(rows, "span the modes").holds
    assert claim(rows, "canonical correlation").holds


def test_rows_are_json_and_drawn(rows):
    again = json.loads(json.dumps(rows, allow_nan=False))
    assert again == rows
    assert len(FIGURE.plot(again).axes) == 6


def test_the_printed_formula_starts_right_and_decays_where_the_true_one_grows():
    # the numbers of its own equation, s′ = 2s (λ − 2k − 2λ²s²), at λ = γ = 1
    one, t = torch.ones(1, dtype=torch.float64), torch.tensor([0.0, 0.5, 1.0, 3.0], dtype=torch.float64)
    printed = printed_18(t, 0.1 * one, one, one)[:, 0]
    torch.testing.assert_close(printed, torch.tensor([0.1, 0.0365, 0.0134, 2.45e-4], dtype=torch.float64), rtol=0.01, atol=0)
    assert (frossl_modes(one, one).singular_values(t, 0.1 * one)[1:, 0] > 0.5).all()
    slope = torch.autograd.functional.jacobian(lambda t: printed_18(t, 0.1 * one, one, one)[:, 0], t).diagonal()
    torch.testing.assert_close(slope, 2 * printed * (-1 - 2 * printed**2))


def test_views_are_centred_and_in_the_coordinates_of_what_they_span():
    X = two_views(Size(images=40, area=0.9, learning_rate=0.1, scale=1e-3, points=2), data=None, seed=0)
    assert X.shape == (2, 40, 40)  # 64 pixels, 40 images
    assert X.mean(1).abs().max() < 1e-12


def test_views_too_different_for_the_theory_are_named():
    with pytest.raises(UserError, match=r"some eigenvalues do not reach 0.5 .* crops are more alike"):
        FIGURE.compute(replace(FIGURE.sizes["smoke"], area=0.6), data=None, seed=0)
