from dataclasses import replace

import pytest
import torch

from fullrank.errors import UserError
from fullrank_papers.figures.frossl.fig2 import FIGURE, Size, make_views, printed_equation_18
from fullrank_papers.theory.two_view_modes import frossl_modes


def claim(rows, words):
    (found,) = [claim for claim in FIGURE.claims(rows) if words in claim.statement]
    return found


def test_frossl_is_faster_at_equal_learning_rate_but_not_at_its_own_limit(rows):
    assert claim(rows, "much quicker").holds
    assert claim(rows, "more steps than Barlow").holds


def test_corrected_closed_form_describes_training_and_printed_one_does_not(rows):
    assert not claim(rows, "(18)").holds
    assert claim(rows, "corrected signs").holds
    assert claim(rows, "time at which each is learned").holds
    assert claim(rows, "1 + 1/ρ").holds


def test_other_predictions_hold(rows):
    assert claim(rows, "speeds up all modes").holds
    assert claim(rows, "span the modes").holds
    assert claim(rows, "canonical correlation").holds


def test_printed_formula_decays_where_the_correct_one_grows():
    # the numbers of its own equation, s′ = 2s (λ − 2k − 2λ²s²), at λ = γ = 1
    one, t = torch.ones(1, dtype=torch.float64), torch.tensor([0.0, 0.5, 1.0, 3.0], dtype=torch.float64)
    printed = printed_equation_18(t, 0.1 * one, one, one)[:, 0]
    torch.testing.assert_close(
        printed, torch.tensor([0.1, 0.0365, 0.0134, 2.45e-4], dtype=torch.float64), rtol=0.01, atol=0
    )
    assert (frossl_modes(one, one).singular_values(t, 0.1 * one)[1:, 0] > 0.5).all()
    slope = torch.autograd.functional.jacobian(
        lambda t: printed_equation_18(t, 0.1 * one, one, one)[:, 0], t
    ).diagonal()
    torch.testing.assert_close(slope, 2 * printed * (-1 - 2 * printed**2))


def test_views_are_centred_and_use_the_coordinates_of_their_span():
    X = make_views(Size(images=40, area=0.9, learning_rate=0.1, scale=1e-3, points=2), data=None, seed=0)
    assert X.shape == (2, 40, 40)  # 64 pixels, 40 images
    assert X.mean(1).abs().max() < 1e-12


def test_views_that_are_too_different_raise():
    with pytest.raises(UserError, match="stay below"):
        FIGURE.compute(replace(FIGURE.sizes["smoke"], area=0.6), data=None, seed=0)
