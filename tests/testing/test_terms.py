import broken_losses
import pytest

from fullrank.testing import check
from fullrank.testing.terms import check_terms, check_weights


def test_a_correct_loss_passes(failed):
    assert failed(check_terms, broken_losses.correct) == {}


def test_a_loss_with_a_generator_passes_every_check():
    report = check(broken_losses.random_from_the_generator, processes=(1, 2))
    assert report.passed, [result for result in report.results if result.status == "failed"]
    assert "over eight seeds" in next(result.measured for result in report.results if result.name == "random numbers")


@pytest.mark.parametrize(
    ("loss", "name", "words"),
    [
        (broken_losses.bare_tensor, "returns terms", "a bare tensor ()"),
        (broken_losses.per_sample, "returns terms", "'loss' has the shape (12,)"),
        (broken_losses.python_number, "returns terms", "'constant' is a float"),
        (broken_losses.diverges, "finite", "loss -inf"),
        (broken_losses.half_precision, "keeps the precision", "float32"),
        (broken_losses.detached, "differentiable", "detached"),
        (broken_losses.random_inside, "pure", "draws from the global generator of torch"),
        (broken_losses.keeps_state, "pure", "at the second call"),
        (broken_losses.changes_its_argument, "pure", "changes Z in place"),
        (broken_losses.raises, "this check", "AttributeError: 'Tensor' object has no attribute 'no_such_method'"),
    ],
)
def test_each_error_fails(failed, loss, name, words):
    assert words in failed(check_terms, loss)[name]


def test_a_bare_tensor_passes_the_other_checks(failed):
    assert list(failed(check_terms, broken_losses.bare_tensor)) == ["returns terms"]


def test_a_weight_that_changes_another_term_fails(failed):
    assert failed(check_weights, broken_losses.correct) == {}
    assert failed(check_weights, broken_losses.weight_of_another_term) == {"weight invariance": "changes spread"}
