"""The loss of a run equals a stored curve, so that a change of names or structure cannot change a result unnoticed.

A commit that changes the numbers on purpose updates `loss_curves.json`, and docs/log.md gives the reason.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

CURVES = Path(__file__).with_name("loss_curves.json")
STEPS = 4  # later, training amplifies the rounding errors of another processor


def losses(run):
    return [row.loss for row in run.metrics.train[:STEPS]]


@pytest.mark.parametrize("storage", ["memory", "disk"])
def test_the_loss_follows_the_stored_curve(train, small, storage):
    recipe = replace(small, log_every=1, epochs=1, data=replace(small.data, storage=storage, workers=0))
    assert losses(train(recipe)) == pytest.approx(json.loads(CURVES.read_text())[storage], rel=1e-4)
