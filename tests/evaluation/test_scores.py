import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

import fullrank
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


@pytest.fixture(scope="module")
def images():
    y = torch.arange(60) % 3
    noise = torch.rand(60, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    return (noise * 80 + y[:, None, None, None] * 60).to(torch.uint8), y


def test_a_model_is_compared_with_pixels_and_the_untrained_network(images):
    result = fullrank.evaluate("timm-untrained:test_resnet", images, probes=["knn", "linear"])
    assert [c.against for c in result.comparisons] == ["raw pixels (32 px)", "untrained backbone"]
    assert result.main is not None
    assert result.main.probe == "linear"
    assert result.verdict
    with pytest.raises(UserError):
        fullrank.evaluate("timm-untrained:test_resnet", images[0])


def test_models_are_ranked_and_neighbours_found(images, tmp_path):
    models = ["timm-untrained:test_resnet", "timm-untrained:test_vit"]
    twice = torch.cat([images[0], images[0][:10]])
    choice = fullrank.choose(models, twice)
    assert sorted(choice.ranks()) in ([(1, 1), (2, 2)], [(1, 2), (1, 2)])
    choice.save(tmp_path / "choice.json")
    found = fullrank.neighbours(models[0], twice, k=2)
    assert [(pair.first, pair.second) for pair in found.duplicates if pair.equal] == [(i, 60 + i) for i in range(10)]
    found.save(tmp_path / "found")
    assert (tmp_path / "found" / "duplicates.parquet").exists()


def test_a_comparison_needs_its_numbers():
    with pytest.raises(UserError):
        Comparison(probe="knn", against="raw pixels", value=1, reference=0, difference=1, low=0, high="1", units=3)
