import json

import torch
from sklearn.metrics import top_k_accuracy_score

from fullrank.evaluation import topk_accuracy
from fullrank.evaluation.result import Evaluation, ProbeScore


def test_equals_scikit_learn():
    generator = torch.Generator().manual_seed(0)
    logits, y = torch.randn(200, 12, generator=generator), torch.randint(12, (200,), generator=generator)
    result = topk_accuracy(logits, y)
    for k, value in ((1, result.accuracy), (5, result.top5)):
        assert abs(value - top_k_accuracy_score(y, logits, k=k, labels=range(12))) < 1e-12


def test_unlabelled_rows_are_predicted_but_not_scored():
    result = topk_accuracy(torch.tensor([[1.0, 0], [0, 1], [0, 1], [1, 0]]), torch.tensor([0, -1, 0, -1]))
    assert result.accuracy == 0.5
    assert result.predictions.tolist() == [0, 1, 1, 0]


def test_top_five_needs_more_than_ten_classes():
    assert topk_accuracy(torch.eye(10), torch.arange(10)).top5 is None
    assert topk_accuracy(torch.eye(11), torch.arange(11)).top5 == 1.0


def test_accuracy_of_many_rows_is_exact():
    y = torch.zeros(100_003, dtype=torch.int64)
    logits = torch.eye(2)[(torch.arange(100_003) % 3 == 0).long()]
    assert topk_accuracy(logits, y).accuracy == (100_003 - 33_335) / 100_003


def test_intervals_survive_the_file():
    score = ProbeScore(features="backbone", probe="kNN", accuracy=0.5, balanced_accuracy_interval=(0.25, 0.75))
    evaluation = Evaluation(
        model="run", train_images=8, test_images=2, statement="", scores=(score,), finetuned="Better."
    )
    assert Evaluation.from_json(json.loads(json.dumps(evaluation.to_json()))) == evaluation
