"""The comparison with equal care: draws, budget curves, and what Dunnett's intervals decide."""

import json
from dataclasses import asdict, replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import dunnett, ttest_ind

from fullrank.images import train_test
from fullrank.recipes import balanced_weights
from fullrank.sweep import OnlineScore, Row
from fullrank_papers.figures import CampaignRuns
from fullrank_papers.figures.frossl import benchmark as b
from fullrank_papers.figures.frossl.comparison import read_rows


def row(name, seed, early, late_score, images=0, **fields):
    online = tuple(OnlineScore(epoch, early) for epoch in b.MARKS)
    settings = {"method": name, "draw": 0, "stage": "compared", "images": images, "rate": 0.01, "batch": 64}
    scores = {"CIFAR-10": {"linear": late_score + 0.01, "knn": late_score - 0.01}}
    known = {"recipe": "r", "objective": "frossl", "data": "CIFAR-10", "status": "done", "settings": settings}
    return Row(cell=f"{name}-{seed}", seed=seed, online=online, scores=scores, **known | fields)


def test_every_method_has_the_same_draws_around_its_balanced_weight():
    size = b.SIZES["small"]
    for name, (_, field, centre) in {**b.METHODS, **b.LATER}.items():
        recipes, settings = zip(*(b.draw(size, name, k) for k in range(40)), strict=True)
        rates = [recipe.optimizer.lr for recipe in recipes]
        assert min(rates) < 3e-3
        assert max(rates) > 1e-1
        assert {recipe.batch_size for recipe in recipes} == set(b.BATCHES)
        key = field.partition(".")[2]
        if key:
            centres = [centre or balanced_weights(recipe)[key] for recipe in recipes]
            factors = [each[key] / c for each, c in zip(settings, centres, strict=True)]
            if name in b.NEAR_ONE:
                factors = [(1 - each[key]) / (1 - centre) for each in settings]
            assert 1 / 8 <= min(factors) < 1 / 3
            assert 3 < max(factors) <= 8
    assert {b.draw(size, "frossl-paper", k)[0].hyper["invariance"] for k in range(9)} == {1.0}
    for k in range(5):
        shared = [(r.optimizer.lr, r.batch_size) for r in (b.draw(size, name, k)[0] for name in b.METHODS)]
        assert len(set(shared)) == 1


def test_parts_that_only_one_method_has_follow_images_and_batch():
    for k in range(9):
        names = ("moco", "byol", "wmse", "vibcreg", "moco_v3", "visreg", "rdmreg")
        moco, byol, wmse, vibcreg, moco_v3, *sketches = (b.draw(b.SIZES["small"], name, k)[0] for name in names)
        assert moco.method["queue"] % moco.batch_size == 0
        assert 3000 < moco.method["queue"] < 3277  # a tenth of 32,768
        assert byol.method["predictor"] == moco_v3.method["predictor"] == 256
        assert wmse.hyper["slice_size"] == min(128, wmse.batch_size)
        assert vibcreg.projector.output_iternorm == 64
        assert [sketch.hyper["slices"] for sketch in sketches] == [1024, 1024]


def test_a_seed_has_its_own_images_and_the_search_has_others():
    size = b.SIZES["smoke"]
    search = [cell for cell in b.plan(size)([]) if cell.settings["stage"] == "search"]
    assert len(search) == 4
    assert {cell.recipe.data.subset_seed for cell in search} == {b.SEARCH_SEED}
    known = {"recipe": "r", "objective": "frossl", "seed": b.SEARCH_SEED, "status": "done"}
    rows = [Row(cell=cell.name, settings=cell.settings, **known) for cell in search]
    compared = b.plan(size)(rows)[len(search) :]
    assert sorted({(cell.recipe.seed, cell.recipe.data.subset_seed) for cell in compared}) == [(0, 0), (1, 1)]
    assert not any(cell.recipe.data.validation for cell in compared)


def test_subsets_of_two_seeds_differ_and_keep_the_shares_of_the_classes():
    one, two = (train_test.train_and_test("digits", subset=200, subset_seed=seed).train for seed in (0, 1))
    assert not np.array_equal(one.labels, two.labels)
    assert abs(np.bincount(one.labels) - np.bincount(two.labels)).max() <= 1


def test_the_expected_best_is_the_mean_over_all_choices():
    scores = [0.3, 0.1, 0.4, 0.15, 0.9]
    for k in range(1, 6):
        expected = np.mean([max(chosen) for chosen in combinations(scores, k)])
        assert b.expected_best(scores, k) == pytest.approx(expected)


def test_leads_are_dunnetts_intervals_and_decide_the_claims():
    g = np.random.default_rng(0)

    def runs(lead):
        noise = g.normal(0, 0.004, (len(b.METHODS), 12))
        return [
            row(name, seed, 0.3 + noise[i, seed], 0.5 + lead * (name == "frossl") + noise[i, seed])
            for i, name in enumerate(b.METHODS)
            for seed in range(12)
        ]

    rows = runs(0.0)
    values = b.samples(rows, 0, b.late)
    found = b.leads(rows, 0, b.late)
    groups = {name: list(numbers.values()) for name, numbers in values.items()}
    control = groups.pop("frossl")
    interval = dunnett(*groups.values(), control=control, rng=0).confidence_interval()
    assert found["simclr"] == pytest.approx(
        (np.mean(control) - np.mean(groups["simclr"]), -interval.high[1], -interval.low[1])
    )
    table = {"rows": [asdict(each) for each in rows], "cells": len(rows)}
    assert "equivalent" in b.markdown(table)
    b.plot(table)

    def holds(rows, cells):
        found = b.evaluate_claims({"rows": [asdict(each) for each in rows], "cells": cells})
        return found["late: 0"].holds

    assert holds(rows, len(rows)) is False  # equivalent to others
    assert holds([each for each in rows if each.settings["method"] == "frossl"], 12) is None  # nothing to be ahead of
    assert holds(runs(0.1), len(rows)) is True
    assert holds(runs(0.1), len(rows) + 1) is None  # a run is missing
    assert holds(runs(-0.1), len(rows)) is False


def test_pairing_takes_the_effect_of_the_seeds_out_and_welch_has_the_variances_of_a_pair():
    g = np.random.default_rng(0)
    M, S = len(b.METHODS), 12
    table = 0.5 + g.normal(0, 0.05, S) + 0.01 * np.arange(M)[:, None] + g.normal(0, 0.004, (M, S))
    rows = [row(name, seed, 0.3, table[i, seed]) for i, name in enumerate(b.METHODS) for seed in range(S)]
    pooled, paired, welch = (b.leads(rows, 0, b.late, variance=how) for how in ("pooled", "paired", "welch"))
    residuals = table - table.mean(1, keepdims=True) - table.mean(0) + table.mean()
    variances = {"pooled": table.var(1, ddof=1).mean(), "paired": (residuals**2).sum() / ((M - 1) * (S - 1))}
    widths = {how: high - low for how, (_, low, high) in (("pooled", pooled["simclr"]), ("paired", paired["simclr"]))}
    assert widths["paired"] / widths["pooled"] == pytest.approx(
        (variances["paired"] / variances["pooled"]) ** 0.5, rel=0.01
    )
    for i, name in enumerate(b.METHODS):
        if name != b.CONTROL:
            assert paired[name][0] == pytest.approx(table[0].mean() - table[i].mean())
            interval = ttest_ind(table[0], table[i], equal_var=False).confidence_interval(1 - 0.05 / (M - 1))
            assert welch[name][1:] == pytest.approx((interval.low, interval.high))
    reverse = b.leads(rows, 0, b.late, control="simclr")
    assert reverse["frossl"] == pytest.approx(
        (-pooled["simclr"][0], -pooled["simclr"][2], -pooled["simclr"][1]), abs=1e-3
    )
    alone = [each for each in rows if each.settings["method"] != "byol"] + [
        row("byol", 99, 0.3, 0.5),
        row("byol", 98, 0.3, 0.5),
    ]
    assert b.leads(alone, 0, b.late, variance="paired") == {}  # no common seed


def test_the_early_endpoint_at_equal_steps_has_the_epochs_of_the_batch_size():
    rising = replace(row("frossl", 0, 0.0, 0.5), online=tuple(OnlineScore(epoch, epoch / 100) for epoch in b.MARKS))
    assert b.early_steps(rising) == pytest.approx(0.03)  # epochs 1 to 5
    assert b.early_steps(replace(rising, settings={"batch": 128})) == pytest.approx(0.06)  # epochs 2 to 10
    assert b.early_steps(replace(rising, settings={"batch": 256})) is None


def test_a_method_that_diverged_has_no_interval_and_leaves_the_others_theirs():
    g = np.random.default_rng(0)
    noise = g.normal(0, 0.004, (len(b.METHODS), 12))
    rows = [
        row(
            name,
            seed,
            0.3 + noise[i, seed],
            0.5 + noise[i, seed],
            **({"diverged": True, "status": "failed"} if name == "wmse" else {}),
        )
        for i, name in enumerate(b.METHODS)
        for seed in range(12)
    ]
    assert "wmse" not in b.leads(rows, 0, b.late)
    _, low, high = b.leads(rows, 0, b.late)["simclr"]
    assert high - low < 0.02
    assert "W-MSE 2 (12 diverged)" in b.compared_table(rows, 0)
    table = {"rows": [asdict(each) for each in rows], "cells": len(rows)}
    assert b.evaluate_claims(table)["late: 0"].holds is False  # equivalent to others, whatever diverged
    ahead = [
        replace(each, scores=row("", 0, 0.3, 0.9 + 1e-3 * each.seed).scores)
        if each.settings["method"] == "frossl"
        else each
        for each in rows
    ]
    assert b.evaluate_claims(table | {"rows": [asdict(each) for each in ahead]})["late: 0"].holds is None


def test_a_result_has_rows_of_two_data_sets():
    rows = [row("frossl", 0, 0.3, 0.5), row("frossl", 1, 0.3, 0.5, images=1, data="CIFAR-100")]
    rows = [replace(each, images=each.data) for each in rows]
    assert len(CampaignRuns("frossl/benchmark", "small").result(rows, 2).rows["rows"]) == 2


def test_stored_rows_are_of_the_recipes_of_the_plan_and_are_not_trained_again():
    (path,) = (Path(__file__).parents[4] / "results").rglob("frossl/benchmark-small.json")
    rows = read_rows(json.loads(path.read_text())["rows"])
    asked = {cell.name: cell.recipe.fingerprint for cell in b.plan(b.SIZES["small"])(rows)}
    assert {row.cell: row.fingerprint for row in rows}.items() <= asked.items()
    found = b.best_draws(rows, b.SIZES["small"].draws)
    assert found == b.DRAWS
