import math

import pytest
import torch
from loops import unit_row


@pytest.mark.parametrize("V_T", [2, 3])
def test_predictions_and_targets_are_the_views_of_a_sample(loss, randn, V_T):
    V, N, c = 3, 5, 0.5
    P, T = randn(V, N, 4), randn(V_T, N, 4)
    rows = [(i, unit_row(row)) for view in [*P.tolist(), *T.tolist()] for i, row in enumerate(view)]
    n = len(rows)
    K = [[c / math.sqrt(c * c + math.dist(x, y) ** 2) for _, y in rows] for _, x in rows]
    mean = [sum(row) / n for row in K]
    total = sum(mean) / n
    positives = [K[a][b] for a in range(n) for b in range(n) if a != b and rows[a][0] == rows[b][0]]
    variance = sum((K[a][b] - mean[a] - mean[b] + total) ** 2 for a in range(n) for b in range(n)) / n**2
    expected = total - sum(positives) / len(positives) + 1.5 * math.sqrt(variance)
    assert loss(P, T, regularization=1.5, kernel_scale=c).item() == pytest.approx(expected, abs=1e-12)


def test_one_is_the_scale_that_the_authors_learn_for_spread_embeddings():
    """The mean of log |∂k/∂‖x − y‖²| = log c − 3/2 log(c² + ‖x − y‖²) − log 2 over rows of uniform directions."""
    X = torch.nn.functional.normalize(torch.randn(2000, 256, generator=torch.Generator().manual_seed(0)), dim=-1)
    D2 = torch.pdist(X).square()
    scales = torch.linspace(0.5, 1.5, 101)
    values = torch.stack([c.log() - 1.5 * (c**2 + D2).log().mean() for c in scales])
    assert scales[values.argmax()].item() == pytest.approx(1, abs=0.011)
