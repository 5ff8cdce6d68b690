import broken_losses
import torch

from fullrank.conformance import objective_case
from fullrank.conformance.precision import bfloat16, float32
from fullrank.objectives import corinfomax_batch


def test_a_sound_loss_passes(failed):
    assert failed(float32, broken_losses.sound) == {}
    assert failed(bfloat16, broken_losses.sound) == {}


def test_a_difference_of_large_numbers_is_found(failed):
    assert "float32" in failed(float32, broken_losses.cancels)
    assert "bfloat16 around the method" in failed(bfloat16, broken_losses.cancels)


def test_float64_for_float32_is_found(failed):
    assert failed(float32, lambda Z: {"loss": Z.double().square().mean()})["float32"].startswith("float64")


def test_an_overflow_behind_the_network_is_found(failed):
    def loss(Z):
        return {"loss": torch.where(Z.abs().max() > 3, Z.square().mean() * torch.inf, Z.square().mean())}

    assert "bfloat16 around the method" in failed(bfloat16, loss)


def test_what_half_precision_has_no_kernel_for_is_noted():
    finding = bfloat16(objective_case(corinfomax_batch))[1]
    assert (finding.verdict, finding.name) == ("noted", "bfloat16 embeddings, not cast up")
    assert finding.measured.startswith("NotImplementedError")
