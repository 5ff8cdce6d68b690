"""The counts of `benchmarks/selection.py` on runs whose order is known."""

import importlib
import json
import math

import numpy as np
import pytest


@pytest.fixture
def selection():
    return importlib.import_module("selection")


def run(objective, linear, **measures):
    return {
        "objective": objective,
        "accuracy": {"linear": linear},
        "measures": {f"backbone: {key}": value for key, value in measures.items()},
    }


def test_clear_pairs_are_counted_within_an_objective_with_the_sign_of_each_measure(selection):
    runs = {
        "a": run("simclr", 0.40, RankMe=10.0, IdEst=5.0),
        "b": run("simclr", 0.45, RankMe=12.0, IdEst=6.0),
        "c": run("simclr", 0.46, RankMe=12.0, IdEst=4.0),  # not clear against b
        "d": run("byol", 0.90, RankMe=1.0, IdEst=9.0),  # another objective
    }
    counts = selection.count_clear_pairs(runs)
    assert counts["backbone: RankMe"] == {"right": 2.0, "pairs": 2}
    assert counts["backbone: IdEst"] == {
        "right": 1.0,
        "pairs": 2,
    }  # the lower dimension is better: b against a is wrong


def test_a_tie_is_half_right(selection):
    assert (
        selection.count_clear_pairs({"a": run("x", 0.1, RankMe=3.0), "b": run("x", 0.2, RankMe=3.0)})[
            "backbone: RankMe"
        ]["right"]
        == 0.5
    )


def test_clid_is_the_sum_of_standardised_parts(selection):
    runs = {str(i): run("x", 0.1, **{"cluster learnability": 0.1 * i, "TwoNN dimension": 5.0 - i}) for i in range(4)}
    scores = [entry["measures"]["backbone: CLID"] for entry in selection.with_clid(runs).values()]
    assert np.allclose(scores, 0)  # one rises as the other falls
    runs["3"]["measures"]["backbone: TwoNN dimension"] = 20.0
    assert selection.with_clid(runs)["3"]["measures"]["backbone: CLID"] > 1
    assert "backbone: CLID" not in runs["3"]["measures"]


def test_results_of_earlier_measurements_are_read_back(selection, tmp_path):
    measured = {"a": run("x", 0.5, RankMe=3.0, **{"condition number": math.inf})}
    path = tmp_path / "selection.json"
    settings = {"views": "mild"}
    result = {"runs": measured, "environment": {"commit": "b"}, "earlier": [{"commit": "a"}], "settings": settings}
    path.write_text(json.dumps(selection.to_json(result)))
    assert selection.read_results(path, settings) == (measured, [{"commit": "a"}, {"commit": "b"}])
    with pytest.raises(SystemExit, match="views"):
        selection.read_results(path, {"views": "strong"})
