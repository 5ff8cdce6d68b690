import numpy as np

from fullrank.evaluation.bootstrap import interval, resampled_class_means, resampled_means, units


def test_interval_of_a_mean_has_the_width_of_the_normal_approximation():
    values = (np.arange(1000) < 700).astype(float)[:, None]
    low, high = interval(resampled_means(values, resamples=4000))
    error = 1.96 * np.sqrt(0.7 * 0.3 / 1000)
    np.testing.assert_allclose([low[0], high[0]], [0.7 - error, 0.7 + error], atol=0.003)


def test_intervals_cover_the_true_mean_at_their_level():
    generator = np.random.default_rng(0)
    covered = 0
    for _ in range(300):
        low, high = interval(resampled_means((generator.random((200, 1)) < 0.8).astype(float), resamples=400))
        covered += low[0] <= 0.8 <= high[0]
    assert 0.90 < covered / 300 < 0.985


def test_columns_share_the_resamples_so_that_a_constant_difference_has_no_width():
    values = np.random.default_rng(0).random((50, 1))
    means = resampled_means(np.concatenate([values, values - 0.25], axis=1))
    np.testing.assert_allclose(means[:, 0] - means[:, 1], 0.25)


def test_images_of_a_group_are_resampled_together():
    patients = np.repeat([0.0, 1.0] * 10, 30)[:, None]  # 20 patients of 30 equal images
    groups = np.repeat(np.arange(20), 30)
    (alone,), (grouped,) = (np.diff(interval(resampled_means(patients, each)), axis=0)[0] for each in (None, groups))
    assert 4.5 < grouped / alone < 6.5  # √30 = 5.5
    by_patient = resampled_means(patients, groups)
    np.testing.assert_allclose(by_patient * 20, (by_patient * 20).round(), atol=1e-9)


def test_a_group_of_one_image_is_an_image_without_a_group():
    values = np.random.default_rng(0).random((40, 1))
    np.testing.assert_array_equal(resampled_means(values, np.arange(40)), resampled_means(values))
    assert len(set(units(np.full(40, -1), 40))) == 40


def test_blocks_do_not_change_the_resamples(monkeypatch):
    values = np.random.default_rng(0).random((40, 2))
    whole = resampled_means(values, resamples=100, seed=3)
    monkeypatch.setattr("fullrank.evaluation.bootstrap.CELLS", 40 * 7)
    np.testing.assert_allclose(resampled_means(values, resamples=100, seed=3), whole)


def test_class_metrics_of_resamples_are_those_of_the_resampled_rows():
    from sklearn.metrics import balanced_accuracy_score, roc_auc_score

    rng = np.random.default_rng(0)
    y = np.arange(45) % 3
    scores = np.round(rng.dirichlet(np.ones(3), 45) + 0.3 * np.eye(3)[y], 1)  # rounded: ties
    predictions, groups = scores.argmax(1), np.arange(45) // 3
    found = resampled_class_means(y, (predictions == y).astype(float), scores, groups, resamples=5, seed=3)
    draws = np.random.default_rng(3).integers(15, size=(5, 15))
    for row, drawn in zip(found, draws, strict=True):
        rows = np.concatenate([np.flatnonzero(groups == group) for group in drawn])
        areas = [roc_auc_score(y[rows] == label, scores[rows, label]) for label in range(3)]
        np.testing.assert_allclose(
            row, [balanced_accuracy_score(y[rows], predictions[rows]), np.mean(areas)], rtol=1e-12
        )


def test_a_class_that_a_resample_lacks_does_not_count():
    y, hits = np.array([0, 0, 0, 1]), np.array([1.0, 1, 1, 0])
    found = resampled_class_means(y, hits, None, resamples=200)
    assert set(found[:, 0]) == {0.0, 0.5, 1.0} or set(found[:, 0]) == {0.5, 1.0}
    assert np.isnan(found[:, 1]).all()
