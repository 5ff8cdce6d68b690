"""Bootstrap, metrics, comparisons and the verdict, against scikit-learn and hand calculations."""

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, balanced_accuracy_score, roc_auc_score, top_k_accuracy_score

from fullrank.errors import UserError
from fullrank.evaluation import Comparison, Evaluation, Prediction, Score, Scoring, bootstrap
from fullrank.evaluation.bootstrap import MeanOfClasses, average_precision, interval, resample, weighted_mean
from fullrank.evaluation.outcomes import Target, judge, score_predictions
from fullrank.evaluation.score import add_evaluation, read_evaluations, write_evaluations
from fullrank.evaluation.verdict import decide, rising, still_rising, verdict, what_decides

RAW = Comparison(
    probe="knn", against="raw pixels", value=0.9, reference=0.8, difference=0.1, low=0.05, high=0.15, units=400
)


def score(logits, y, *, groups=None, name="backbone", **options):
    """Return metric → outcome of one or several arrays of logits."""
    logits = logits if isinstance(logits, list) else [logits]
    target = Target(np.asarray(y), np.full(len(y), -1) if groups is None else groups)
    predictions = [Prediction(torch.as_tensor(each)) for each in logits]
    found = score_predictions(name, "knn", {}, predictions, target, **options)
    return {outcome.score.metric: outcome for outcome in found}, target


def test_intervals_cover_the_true_mean_at_their_level():
    rng, covered = np.random.default_rng(0), 0
    for _ in range(300):
        values = (rng.random(200) < 0.8).astype(float)
        low, high = interval(resample([weighted_mean(values)], np.full(200, -1), resamples=400)[:, 0])
        covered += low <= 0.8 <= high
    assert 0.90 < covered / 300 < 0.985


def test_statistics_share_the_resamples_and_groups_are_drawn_whole(monkeypatch):
    values, groups = np.random.default_rng(0).random(40), np.arange(40) // 4
    statistics = [weighted_mean(values), weighted_mean(values - 0.25), lambda weights: weights[:, ::4] @ np.ones(10)]
    found = resample(statistics, groups, resamples=100, seed=3)
    np.testing.assert_allclose(found[:, 0] - found[:, 1], 0.25)
    np.testing.assert_array_equal(found[:, 2], 10)
    monkeypatch.setattr(bootstrap, "CELLS", 40 * 7)  # blocks do not change the resamples
    np.testing.assert_allclose(resample(statistics, groups, resamples=100, seed=3), found)
    alone = [resample(statistics[:1], each, resamples=50) for each in (np.arange(40), np.full(40, -1))]
    np.testing.assert_array_equal(*alone)


def test_metrics_of_resamples_are_those_of_the_resampled_rows():
    """Balanced accuracy, AUROC and mean average precision of scikit-learn on the rows of each draw, with ties."""
    rng = np.random.default_rng(0)
    y, groups = np.arange(45) % 3, np.arange(45) // 3
    shares = rng.dirichlet(np.ones(3), 45) + 0.3 * np.eye(3)[y]
    Y = np.eye(3, dtype=bool)[y]
    found, _ = score(np.log(shares), y, groups=groups)
    shares /= shares.sum(1, keepdims=True)
    statistics = [found[name].statistic for name in ("accuracy", "balanced accuracy", "AUROC")]
    tied = shares.round(1)
    values = resample([*statistics, MeanOfClasses(average_precision, Y, tied)], groups, resamples=5, seed=3)
    draws = np.random.default_rng(3).integers(15, size=(5, 15))
    best = torch.as_tensor(np.log(shares)).topk(1).indices[:, 0].numpy()
    for row, drawn in zip(values, draws, strict=True):
        rows = np.concatenate([np.flatnonzero(groups == group) for group in drawn])
        areas = [roc_auc_score(Y[rows, k], shares[rows, k]) for k in range(3)]
        precisions = [average_precision_score(Y[rows, k], tied[rows, k]) for k in range(3)]
        accuracies = [np.mean(best[rows] == y[rows]), balanced_accuracy_score(y[rows], best[rows])]
        np.testing.assert_allclose(row, [*accuracies, np.mean(areas), np.mean(precisions)])


def test_a_class_that_a_resample_lacks_does_not_count():
    y = np.array([0, 0, 0, 1])
    statistic = score(np.eye(2)[[0, 0, 0, 0]], y)[0]["balanced accuracy"].statistic
    np.testing.assert_array_equal(statistic(np.array([[4.0, 0, 0, 0], [0, 0, 0, 4], [1, 1, 1, 1]])), [1, 0, 0.5])


def test_metrics_are_those_of_scikit_learn():
    generator = torch.Generator().manual_seed(0)
    logits, y = torch.randn(200, 12, generator=generator), torch.randint(12, (200,), generator=generator)
    found, target = score(logits, y)
    expected = {
        "accuracy": top_k_accuracy_score(y, logits, k=1),
        "top-5 accuracy": top_k_accuracy_score(y, logits, k=5),
        "balanced accuracy": balanced_accuracy_score(y, logits.argmax(1)),
        "AUROC": roc_auc_score(y, logits.double().softmax(1), multi_class="ovr"),
    }
    assert {name: outcome.score.value for name, outcome in found.items()} == pytest.approx(expected)
    main = found["accuracy"].score
    assert sum(map(sum, main.confusion)) == 200
    assert sum(main.confusion[k][k] for k in range(12)) / 200 == pytest.approx(main.value)
    assert np.mean(list(main.per_class.values())) == pytest.approx(expected["balanced accuracy"])
    assert target.chance == pytest.approx(y.bincount().max().item() / 200)
    assert "top-5 accuracy" not in score(logits[:, :10], y % 10)[0]
    without = score(logits, torch.where(y == 1, 0, y))[0]["accuracy"].score  # no image of class 1
    assert list(without.positives) == [str(k) for k in range(12)]  # the names of the rows of the confusion matrix
    assert list(without.positives.values()) == [sum(row) for row in without.confusion]
    assert "1" not in without.per_class
    one_vote = torch.where(logits == logits.amax(1, keepdim=True), logits, -torch.inf)  # kNN with one neighbour
    assert score(one_vote, y)[0]["top-5 accuracy"].score.value == pytest.approx(expected["accuracy"])
    assert set(score(logits, y, by_class=False)[0]) == {"accuracy", "top-5 accuracy"}


def test_several_labels_an_image_have_the_mean_average_precision_of_scikit_learn():
    rng = np.random.default_rng(0)
    Y, logits = rng.random((40, 4)) < 0.3, rng.integers(0, 8, (40, 4)) / 8
    Y[:, 2] = False  # a class without an image does not count
    found, target = score(logits, Y)
    main = found["mean average precision"].score
    expected = {str(k): average_precision_score(Y[:, k], logits[:, k]) for k in (0, 1, 3)}
    assert main.per_class == pytest.approx(expected)
    assert main.value == pytest.approx(np.mean(list(expected.values())))
    assert main.positives == {str(k): Y[:, k].sum() for k in (0, 1, 3)}
    areas = [roc_auc_score(Y[:, k], logits[:, k]) for k in (0, 1, 3)]
    assert found["AUROC"].score.value == pytest.approx(np.mean(areas))
    equal, _ = score(np.zeros((40, 4)), Y)
    assert equal["mean average precision"].score.value == pytest.approx(target.chance)


def compare(ours, theirs, y, *, groups=None, seeds=False):
    """Return the comparison of lists of predicted classes."""
    logits = {name: [np.eye(2)[p] for p in each] for name, each in (("a", ours), ("b", theirs))}
    both = [score(each, y, groups=groups, name=name) for name, each in logits.items()]
    outcomes = [outcome for found, _ in both for outcome in found.values()]
    return judge(outcomes, both[0][1], seed=0, seeds=seeds)


def test_the_interval_joins_the_errors_of_images_and_seeds():
    y = np.arange(100) % 2
    theirs = [np.where(np.arange(100) < wrong, 1 - y, y) for wrong in (10, 20, 30)]
    scores, (comparison,) = compare([y] * 3, theirs, y, seeds=True)
    half = 4.302653 * 0.1 / math.sqrt(3)  # t(0.975, 2) · sd / √3
    assert comparison.seed_half_width == pytest.approx(half, rel=1e-5)
    assert (comparison.difference, comparison.seeds) == (pytest.approx(0.2), 3)
    (images,) = compare([y] * 3, theirs, y)[1]
    assert images.seed_half_width == 0
    for end in ("low", "high"):
        of_images = getattr(images, end) - 0.2
        assert getattr(comparison, end) - 0.2 == pytest.approx(math.copysign(math.hypot(of_images, half), of_images))
    of_theirs = next(s for s in scores if (s.features, s.metric) == ("b", "accuracy"))
    assert (of_theirs.n, of_theirs.sd) == (3, pytest.approx(0.1))


def test_equal_predictions_decide_nothing_and_groups_are_the_units():
    y = np.arange(40) % 2
    (comparison,) = compare([y, 1 - y], [y, 1 - y], y, groups=np.arange(40) // 2, seeds=True)[1]
    assert (comparison.difference, comparison.low, comparison.high) == (0, 0, 0)
    assert (comparison.units, comparison.grouped) == (20, True)
    assert decide(comparison) == "not significant"


@pytest.mark.parametrize(
    ("low", "high", "expected"), [(0.05, 0.15, "better"), (-0.2, -0.01, "worse"), (-0.01, 0.2, "not significant")]
)
def test_an_interval_without_zero_decides_with_enough_images(low, high, expected):
    comparison = replace(RAW, low=low, high=high)
    assert decide(comparison) == expected
    assert verdict([comparison]).lower().startswith(expected)
    assert decide(replace(comparison, units=19)) == "not significant"


def test_the_strongest_alternative_counts():
    initial = replace(RAW, against="initial weights", reference=0.91, difference=-0.01, low=-0.03, high=0.01)
    text = verdict([RAW, initial])
    assert text.startswith("Not significant: by kNN, the backbone has 90.0 %, initial weights, the strongest")
    assert "-1.0 points (95 % interval -3.0 to +1.0)" in text
    assert verdict([]) == ""


def test_needed_images_grow_with_the_square_of_the_relative_width():
    unsure = replace(RAW, difference=0.02, low=-0.02, high=0.06)
    assert "about 1,600 test images" in what_decides(unsure)
    assert "about 1,600 groups of test images" in what_decides(replace(unsure, grouped=True))
    for difference in (0.001, 0.0):
        assert "too small to decide" in what_decides(replace(unsure, difference=difference))
    assert "8 test images are too few" in what_decides(replace(unsure, units=8))
    assert "more seeds" in what_decides(replace(unsure, seed_half_width=0.03))
    # The images explain 0.04² − 0.01² of the width, which may become 0.02² − 0.01²: 400 · 15/3.
    assert "about 2,000" in what_decides(replace(unsure, seed_half_width=0.01))


def test_curves_say_whether_labels_or_epochs_may_help():
    assert "50.0 % with 1 label per class to 60.0 % with 2" in rising({2: 0.6, 1: 0.5}, 500)
    assert rising({5: 0.6}, 500) == ""
    line = {float(e): 0.2 + 0.01 * e for e in range(0, 31, 3)}
    assert "38.0 % after epoch 18 to 50.0 % after epoch 30" in still_rising(line, 500)
    fell = {0.0: 0.2, 10.0: 0.3, 20.0: 0.4, 30.0: 0.2}
    assert "may not help" in still_rising(fell, 500)
    for short in ({}, {0.0: 0.2, 1.0: 0.3}, {0.0: 0.2, 1.0: 0.3, 2.0: 0.35, 100.0: 0.6}):
        assert still_rising(short, 500) == ""
    unsure, worse = replace(RAW, low=-0.1), replace(RAW, difference=-0.1, low=-0.15, high=-0.05)
    assert "labels" in verdict([unsure], {1: 0.5, 2: 0.6})
    assert "labels" not in verdict([RAW], {1: 0.5, 2: 0.6})
    assert "more epochs may not help" in verdict([worse], training=fell, images=500)
    assert "epochs" not in verdict([RAW], training=fell, images=500)


def test_no_trend_is_told_within_two_standard_errors():
    one_image_more = {0.0: 0.25, 10.0: 0.2, 20.0: 0.2, 30.0: 0.2125}  # of 80
    assert still_rising(one_image_more, 80) == still_rising(one_image_more, 0) == ""
    rise = {1: 0.5, 2: 0.6}  # two standard errors are 0.1 of about 196 images
    assert (rising(rise, 190) == "", rising(rise, 200) == "") == (True, False)


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
    for probe, verdict_of in (("linear", "A"), ("knn", "B")):  # the comparisons of the verdict come first
        add_evaluation(path, replace(entry(0.9), comparisons=(replace(RAW, probe=probe),), verdict=verdict_of))
    merged = read_evaluations(path)[-1]
    assert (merged.comparisons[0].probe, merged.verdict) == ("knn", "B")
    assert add_evaluation(path, entry(0.9))[0].verdict == "B"  # of the same value
    add_evaluation(path, replace(entry(0.9), scores=(), comparisons=(replace(RAW, probe="finetune"),), finetuned="C"))
    stale = add_evaluation(path, entry(0.6))[0]  # the verdict was about another value
    assert (stale.verdict, stale.finetuned, [each.probe for each in stale.comparisons]) == (
        "",
        "C",
        ["finetune", "linear"],
    )
    path.write_text("{")
    with pytest.raises(UserError, match="cannot be read"):
        read_evaluations(path)


def test_evaluations_at_the_same_time_lose_nothing(tmp_path):
    def add(k):
        score = Score(features="backbone", probe="knn", value=0.5, settings={"k": k})
        add_evaluation(
            tmp_path / "evaluation.json", Evaluation(model="a", train_images=8, test_images=2, scores=(score,))
        )

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(24)))
    (entry,) = read_evaluations(tmp_path / "evaluation.json")
    assert {score.settings["k"] for score in entry.scores} == set(range(24))


def test_protocols_are_checked():
    assert Scoring(protocols={"knn": {"k": 7}}).protocols.knn.k == 7
    for wrong in ({"knn": {"k": 0}}, {"knm": {}}, {"knn": {"neighbours": 3}}, 3):
        with pytest.raises(UserError):
            Scoring(protocols=wrong)
    with pytest.raises(UserError):
        replace(RAW, high="1")
