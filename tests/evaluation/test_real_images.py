"""Real images, if available: accuracies of raw pixels are close to those of the literature."""

from pathlib import Path

import pytest
from torch import nn

from fullrank.evaluation import evaluate_backbone
from fullrank.images import Preprocess, train_and_test

DATA = Path("../shared/data")


@pytest.mark.skipif(not DATA.exists(), reason="needs MNIST and CIFAR-10 as Parquet under ../shared/data")
@pytest.mark.parametrize(
    ("name", "preprocess", "band"),
    [
        ("mnist", Preprocess(1, 28, (0.1307,), (0.3081,)), (0.78, 0.93)),
        ("cifar10", Preprocess(3, 32, (0.4913, 0.4821, 0.4465), (0.2452, 0.2428, 0.2606)), (0.2, 0.38)),
    ],
)
def test_raw_pixels_score_in_a_plausible_band(name, preprocess, band):
    splits = train_and_test(DATA / name)
    train, test = splits.train.subset(range(800)), splits.test.subset(range(800))
    result = evaluate_backbone(
        nn.Flatten(), None, preprocess, train, test, probes=("linear", "linear-sgd", "knn"), baselines=False
    )
    for score in result.scores:
        assert band[0] < score.accuracy < band[1], score
    assert result.left_out == ()
