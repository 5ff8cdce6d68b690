from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.neighbors import KNeighborsClassifier

import fullrank
from fullrank.errors import UserError
from fullrank.evaluation import Evaluation, Score, accuracy, few_shot, gradient_probe, knn, linear_probe, linear_svm
from fullrank.evaluation.bootstrap import area, average_precision, interval, resample, weighted_mean
from fullrank.evaluation.outcomes import Prediction, Target, judge, score_predictions
from fullrank.evaluation.protocol import AdamProtocol, SgdProtocol, resolve_protocols
from fullrank.evaluation.score import Comparison
from fullrank.evaluation.stored import add_evaluation, read_evaluations, write_evaluations
from fullrank.evaluation.verdict import verdict


@pytest.mark.parametrize("weights", [np.ones(30), np.random.default_rng(1).integers(0, 4, 30).astype(float)])
def test_area_and_average_precision_are_those_of_scikit_learn(weights):
    rng = np.random.default_rng(0)
    positive, score = rng.random(30) < 0.4, rng.integers(0, 9, 30).astype(float)  # with ties
    expected = roc_auc_score(positive, score, sample_weight=weights)
    assert area(weights[None], positive, score)[0] == pytest.approx(expected)
    expected = average_precision_score(positive, score, sample_weight=weights)
    assert average_precision(weights[None], positive, score)[0] == pytest.approx(expected)


def test_the_bootstrap_has_the_standard_error_and_groups_widen_it():
    values = np.arange(400) % 2 * 1.0
    alone, grouped = (
        resample([weighted_mean(np.sort(values))], groups) for groups in (np.full(400, -1), np.arange(400) // 20)
    )
    assert alone.std() == pytest.approx(0.5 / 20, rel=0.1)
    assert grouped.std() > 3 * alone.std()
    low, high = interval(alone[:, 0])
    assert low < 0.5 < high


def test_probes_agree_with_scikit_learn(clusters):
    X, y, X_test, y_test = clusters
    expected = LogisticRegression(C=1 / (len(X) * 0.1), tol=1e-8).fit(X, y).score(X_test, y_test)
    assert accuracy(linear_probe(X, y, X_test, penalties=(0.1,)).logits, y_test) == pytest.approx(expected)
    unit = torch.nn.functional.normalize
    near = KNeighborsClassifier(5).fit(unit(X), y).predict(unit(X_test))
    assert (knn(X, y, X_test, k=5, temperature=1e6).logits.argmax(1).numpy() == near).mean() > 0.97
    for result in (linear_svm(X, y, X_test), gradient_probe(X, y, X_test, SgdProtocol())):
        assert accuracy(result.logits, y_test) > 0.8
    assert accuracy(gradient_probe(X, y, X_test, AdamProtocol(lr=(1e-2, 1e-1))).logits, y_test) > 0.8


def test_a_target_matrix_has_one_classifier_for_each_class(clusters):
    X, y, X_test, y_test = clusters
    Y = torch.stack([y == 0, y != 0, y == 2], 1).long()
    for result in (linear_probe(X, Y, X_test), knn(X, Y, X_test, k=5)):
        for k, positive in enumerate((y_test == 0, y_test != 0, y_test == 2)):
            assert roc_auc_score(positive, result.logits[:, k]) > 0.9
    with pytest.raises(UserError):
        linear_probe(X, torch.ones_like(Y), X_test)


def test_few_labels_are_drawn_anew_and_repeatable(clusters):
    X, y, X_test, _ = clusters
    first, second = ([each.logits for each in few_shot(X, y, X_test, labels=2, draws=3)] for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not torch.equal(first[0], first[1])


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


def test_a_comparison_is_paired_and_the_seeds_widen_it():
    right, wrong = np.eye(2)[np.arange(60) % 2], np.eye(2)[(np.arange(60) + (np.arange(60) < 20)) % 2]
    outcomes = []
    for name, logits in (("backbone", right), ("raw pixels", wrong)):
        found, target = predictions(logits, target=np.arange(60) % 2)
        outcomes += score_predictions(name, "linear", {}, found, target)
    scores, (comparison,) = judge(outcomes, target, seed=0)
    assert comparison.difference == pytest.approx(1 / 3)
    assert 0.2 < comparison.low < comparison.difference < comparison.high < 0.5
    assert all(score.low is not None for score in scores)
    assert verdict([comparison]).startswith("Better")
    assert verdict([replace(comparison, low=-0.1)]).startswith("Undecided")
    assert verdict([replace(comparison, units=10)]).startswith("Undecided")


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


def test_several_labels_an_image_have_a_mean_average_precision(images):
    y = images[1]
    labels = torch.stack([y == 0, y > 0], 1).long()
    result = fullrank.evaluate("timm-untrained:test_resnet", (images[0], labels), probes=["knn", "svm"])
    assert result.find("knn").metric == "mean average precision"
    assert any("svm" in line for line in result.left_out)


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
