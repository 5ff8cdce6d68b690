import broken_losses

from fullrank.conformance.weights import weights


def test_a_weight_that_reaches_another_term_is_found(failed):
    assert failed(weights, broken_losses.sound) == {}
    assert failed(weights, broken_losses.weight_of_another_term) == {"weight invariance": "changes spread"}
