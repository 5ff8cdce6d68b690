import torch
from sklearn.metrics import top_k_accuracy_score

from fullrank.evaluation import score


def test_equals_scikit_learn():
    generator = torch.Generator().manual_seed(0)
    votes, y = torch.randn(200, 12, generator=generator), torch.randint(12, (200,), generator=generator)
    scored = score(votes, y)
    for k, value in ((1, scored.accuracy), (5, scored.top5)):
        assert abs(value - top_k_accuracy_score(y, votes, k=k, labels=range(12))) < 1e-12


def test_unlabelled_rows_are_predicted_and_not_judged():
    scored = score(torch.tensor([[1.0, 0], [0, 1], [0, 1], [1, 0]]), torch.tensor([0, -1, 0, -1]))
    assert scored.accuracy == 0.5
    assert scored.predicted.tolist() == [0, 1, 1, 0]


def test_there_is_no_top_five_of_ten_classes():
    assert score(torch.eye(10), torch.arange(10)).top5 is None
    assert score(torch.eye(11), torch.arange(11)).top5 == 1.0


def test_accuracy_of_many_rows_is_exact():
    y = torch.zeros(100_003, dtype=torch.int64)
    votes = torch.eye(2)[(torch.arange(100_003) % 3 == 0).long()]
    assert score(votes, y).accuracy == (100_003 - 33_335) / 100_003
