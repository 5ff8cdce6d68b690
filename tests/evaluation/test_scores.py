import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from fullrank.errors import UserError
from fullrank.evaluation import Evaluation, Score, knn, linear_probe
from fullrank.evaluation.outcomes import Prediction, Target, score_predictions
from fullrank.evaluation.protocol import resolve_protocols
from fullrank.evaluation.score import Comparison, add_evaluation, read_evaluations, write_evaluations


def test_a_target_matrix_has_one_classifier_for_each_class(clusters):
    X, y, X_test, y_test = clusters
    Y = torch.stack([y == 0, y != 0, y == 2], 1).long()
    for result in (linear_probe(X, Y, X_test), knn(X, Y, X_test, k=5)):
        for k, positive in enumerate((y_test == 0, y_test != 0, y_test == 2)):
            assert roc_auc_score(positive, result.logits[:, k]) > 0.9
    with pytest.raises(UserError):
        linear_probe(X, torch.ones_like(Y), X_test)


def predictions(*logits, target=(0, 1, 2, 0)):
    return [Prediction(torch.tensor(each)) for each in logits], Target(np.array(target), np.full(len(target), -1))


def test_a_score_has_its_metrics_and_the_spread_of_its_repetitions():
    found, target = predictions(np.eye(3)[[0, 1, 2, 1]], np.eye(3)[[0, 1, 2, 0]])
    scores = {o.score.metric: o.score for o in score_predictions("backbone", "knn", {"k": 5}, found, target)}
    assert scores["accuracy"].value == 0.875
    assert (scores["accuracy"].n, scores["accuracy"].name) == (2, "kNN, k 5")
    assert scores["accuracy"].sd == pytest.approx(0.1768, abs=1e-4)
    assert scores["accuracy"].per_class == {"0": 0.75, "1": 1.0, "2": 1.0}
    assert scores["balanced accuracy"].value == pytest.approx(11 / 12)


def test_new_scores_never_remove_others(tmp_path):
    path = tmp_path / "evaluation.json"

    def entry(value, step=1, **settings):
        score = Score(features="backbone", probe="knn", value=value, settings=settings)
        return Evaluation(model="run", step=step, train_images=8, test_images=2, scores=(score,))

    write_evaluations(path, [entry(0.1)])
    assert add_evaluation(path, entry(0.2, k=5))[1] == 0
    assert add_evaluation(path, entry(0.3))[1] == 1
    add_evaluation(path, entry(0.4, step=2))
    first, second = read_evaluations(path)
    assert [score.value for score in first.scores] == [0.3, 0.2]
    assert second.find("knn").value == 0.4
    path.write_text("{")
    with pytest.raises(UserError, match="cannot be read"):
        read_evaluations(path)


def test_protocols_are_checked():
    assert resolve_protocols({"knn": {"k": 7}}).knn.k == 7
    for wrong in ({"knn": {"k": 0}}, {"knm": {}}, {"knn": {"neighbours": 3}}):
        with pytest.raises(UserError):
            resolve_protocols(wrong)


def test_a_comparison_needs_its_numbers():
    with pytest.raises(UserError):
        Comparison(probe="knn", against="raw pixels", value=1, reference=0, difference=1, low=0, high="1", units=3)
