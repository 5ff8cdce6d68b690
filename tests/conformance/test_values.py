import broken_losses
import pytest

from fullrank.conformance.values import terms


def test_a_sound_loss_passes(failed):
    assert failed(terms, broken_losses.sound) == {}


@pytest.mark.parametrize(
    ("loss", "finding", "words"),
    [
        (broken_losses.bare, "returns terms", "a bare tensor ()"),
        (broken_losses.per_sample, "returns terms", "'loss' has the shape (12,)"),
        (broken_losses.python_number, "returns terms", "'constant' is a float"),
        (broken_losses.diverges, "finite", "loss -inf"),
        (broken_losses.half_precision, "keeps the precision", "float32"),
        (broken_losses.detached, "differentiable", "detached"),
        (broken_losses.random_inside, "pure", "draws random numbers"),
        (broken_losses.remembers, "pure", "at the second call"),
        (broken_losses.overwrites, "pure", "overwrites Z"),
        (broken_losses.raises, "this check", "AttributeError: 'Tensor' object has no attribute 'no_such_method'"),
    ],
)
def test_each_fault_is_found(failed, loss, finding, words):
    assert words in failed(terms, loss)[finding]


def test_a_bare_tensor_is_examined_further(failed):
    assert list(failed(terms, broken_losses.bare)) == ["returns terms"]
