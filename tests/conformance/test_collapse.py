import broken_losses
import torch

from fullrank.conformance.collapse import collapse


def test_a_sound_loss_passes(failed):
    assert failed(collapse, broken_losses.sound) == {}


def test_a_division_by_the_norm_of_a_dead_column_is_found(failed):
    found = failed(collapse, broken_losses.nan_at_a_constant_column)
    assert {"collapse: constant columns", "collapse: zero column", "collapse: equal rows"} <= set(found)


def test_a_finite_value_with_an_infinite_gradient_is_found(failed):
    found = failed(collapse, broken_losses.infinite_gradient_at_equal_views)
    assert set(found) == {"collapse: equal rows and views", "collapse: all zero"}
    assert all(said.endswith("largest gradient nan") for said in found.values())


def test_a_residue_of_rounding_that_is_normalised_is_found(failed):
    """A column that varies by rounding alone, divided by its own norm, is as large as the living ones, with a gradient of 1/ε."""

    def loss(Z):
        A = Z - Z.mean(1, keepdim=True)
        norm = A.norm(dim=1, keepdim=True)
        U = torch.where(norm > 0, A / norm.clamp_min(torch.finfo(Z.dtype).tiny), 0 * A)
        return {"correlation": (U[..., 1:] * U[..., :-1]).sum()}

    said = failed(collapse, loss)["collapse: constant columns"]
    assert float(said.split()[-1]) > 1e3
