"""The variants: what each changes, that they start from the comparison's best draws, and what decides the claims."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from fullrank.sweep import Row
from fullrank_papers.figures.frossl import benchmark, variants
from fullrank_papers.figures.frossl.comparison import read_rows

SMALL = variants.SIZES["small"]
CELLS = variants.plan(SMALL)([])
NOISE = (0.0, 0.0004, -0.0004)


def of(name, method):
    """The recipes of a variant by value, of seed 0."""
    cells = [cell for cell in CELLS if (cell.settings["variant"], cell.settings["method"]) == (name, method)]
    return {cell.settings["value"]: cell.recipe for cell in cells if cell.recipe.seed == 0}


def result(score=lambda settings: 0.4, diverged=lambda settings: False):
    """Rows of all cells, whose probes have a score that follows from the settings."""
    rows = []
    for cell in CELLS:
        noise = NOISE[cell.recipe.seed] * (1 if cell.settings["variant"] else -1)
        gone, found = diverged(cell.settings), score(cell.settings) + noise
        fields = {"recipe": "r", "objective": "frossl", "settings": dict(cell.settings), "data": "CIFAR-10"}
        fields |= {"diverged": gone, "status": "failed" if gone else "done"}
        scores = {} if gone else {"CIFAR-10": {"linear": found + 0.01, "knn": found - 0.01}}
        rows.append(asdict(Row(cell=cell.name, seed=cell.recipe.seed, scores=scores, **fields)))
    return {"rows": rows, "cells": len(rows)}


def verdicts(rows):
    return {name: each.holds for name, each in variants.evaluate_claims(rows).items()}


def test_variants_start_from_the_best_draws_as_the_runs_of_the_comparison():
    (path,) = (Path(__file__).parents[4] / "results").rglob("frossl/benchmark-small.json")
    rows = read_rows(json.loads(path.read_text())["rows"])
    best = benchmark.best_draws(rows, SMALL.comparison.draws)
    assert best == best | variants.DRAWS
    compared = {cell.recipe.fingerprint for cell in benchmark.plan(SMALL.comparison)(rows)}
    unchanged = {cell.recipe.fingerprint for cell in CELLS if not cell.settings["variant"]}
    assert len(unchanged) == 3 * SMALL.seeds
    assert unchanged <= compared
    assert len({cell.name for cell in CELLS}) == len({cell.recipe.fingerprint for cell in CELLS}) == len(CELLS)


@pytest.mark.parametrize("method", ["frossl", "frossl-paper", "simclr"])
def test_steps_or_images_stay_equal_and_the_weight_follows_or_is_one(method):
    base = SMALL.base(method)
    for batch, recipe in of("steps", method).items():
        assert recipe.batch_size == batch
        assert recipe.epochs / batch == base.epochs / base.batch_size
        assert recipe.schedule.milestones[0] / recipe.epochs == base.schedule.milestones[0] / base.epochs
        assert recipe.optimizer.lr == pytest.approx(base.optimizer.lr * (batch / base.batch_size) ** 0.5)
    for views, recipe in of("views", method).items():
        assert views * recipe.epochs == 2 * base.epochs
    for batch, recipe in of("epochs", method).items():
        assert recipe.epochs == base.epochs
        follows = base.hyper.get("invariance", 0.0) * batch / base.batch_size
        assert recipe.hyper.get("invariance", 0.0) == pytest.approx(1.0 if method == "frossl-paper" else follows)


def test_the_trade_off_is_at_the_sizes_of_the_paper():
    recipes = of("weight", "frossl")
    assert {(r.batch_size, r.projector.dimensions(0), r.hyper["invariance"] / w) for w, r in recipes.items()} == {
        (256, 1024, 1.0)
    }
    assert of("normalization", "frossl")["rows"].hyper["invariance"] == 2 * SMALL.base("frossl").hyper["invariance"]


def test_the_claims_are_decided_by_the_differences_from_the_base():
    same = verdicts(result())
    assert {name for name, holds in same.items() if holds} == {
        *("batches", "steps", "balance", "dimension", "weight", "normalization", "encoders")
    }
    worse = verdicts(result(lambda settings: 0.4 - 0.1 * (settings.get("value") not in (1.0, 1e-6, None))))
    assert {name for name, holds in worse.items() if holds} == {"weight", "logarithms", "epsilon"}
    better = verdicts(result(lambda settings: 0.4 + 0.1 * (settings.get("value") not in (1.0, 1e-6, None))))
    assert {name for name, holds in better.items() if holds is False} == {
        *("weight", "normalization", "logarithms", "encoders")
    }
    assert better["views"] is better["objective"] is True
    near = verdicts(result(lambda settings: 0.4 - 0.02 * (settings["variant"] == "epochs")))
    assert near["batches"] is near["balance"] is None


@pytest.mark.parametrize("value", [1e-8, 512, "no", 8.0])
def test_a_value_with_a_diverged_run_is_worse_than_any_bound(value):
    found, gone = verdicts(result()), result()
    for row in gone["rows"]:
        if row["settings"].get("value") == value and row["seed"] == 2:
            row |= {"diverged": True, "status": "failed", "scores": {}}
    expected = {1e-8: {"epsilon": True}, 512: dict.fromkeys(("batches", "steps", "balance"), False)}
    expected |= {"no": {"logarithms": True}, 8.0: {"weight": True, "views": False, "views_simclr": False}}
    assert verdicts(gone) == found | expected[value]


def test_nothing_is_decided_before_all_runs_are_done_and_a_changed_variant_has_its_own_base():
    rows = result()
    rows["rows"] = [row for row in rows["rows"] if row["settings"].get("value") != 1.0]
    assert not any(verdicts(rows).values())
    assert "weight" not in {name for name, holds in verdicts(rows | {"cells": 0}).items() if holds}
    assert {cell.evaluate.transfer for cell in variants.plan(SMALL, transfer=["other"])([])} == {("other",)}


def test_variants_are_drawn_with_and_without_rows():
    for rows in ({"rows": [], "cells": 0}, result()):
        variants.plot(rows).canvas.draw()
    assert variants.evaluate_claims({"rows": [], "cells": 0}) == {}
    values = {
        (c.settings["variant"], c.settings["method"], c.settings["value"]) for c in CELLS if c.settings["variant"]
    }
    bases = sum(len(v.methods) for v in variants.VARIANTS.values() if not v.changed)
    assert len(variants.markdown(result()).splitlines()) == 2 + len(values) + bases
