import broken_losses
import torch

from fullrank.objectives import corinfomax_batch
from fullrank.testing import objective_case
from fullrank.testing.precision import check_bfloat16, check_float32


def test_a_correct_loss_passes(failed):
    assert failed(check_float32, broken_losses.correct) == {}
    assert failed(check_bfloat16, broken_losses.correct) == {}


def test_a_difference_of_large_numbers_fails(failed):
    assert "float32" in failed(check_float32, broken_losses.cancels)
    assert "bfloat16 network" in failed(check_bfloat16, broken_losses.cancels)


def test_float64_for_float32_fails(failed):
    assert failed(check_float32, lambda Z: {"loss": Z.double().square().mean()})["float32"].startswith("float64")


def test_an_overflow_behind_the_network_fails(failed):
    def loss(Z):
        return {"loss": torch.where(Z.abs().max() > 3, Z.square().mean() * torch.inf, Z.square().mean())}

    assert "bfloat16 network" in failed(check_bfloat16, loss)


def test_a_missing_half_precision_kernel_is_reported():
    result = check_bfloat16(objective_case(corinfomax_batch))[1]
    assert (result.status, result.name) == ("info", "bfloat16 embeddings")
    assert result.measured.startswith("NotImplementedError")
