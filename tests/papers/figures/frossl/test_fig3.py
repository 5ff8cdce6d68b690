import math
from dataclasses import replace

import pytest
import torch
from PIL import Image

from fullrank.errors import UserError
from fullrank.objectives import frossl
from fullrank_papers.figures.frossl.fig3 import (
    FIGURE,
    NARROW,
    PAPERS,
    SETTINGS,
    count_wins,
    half_saturation_step,
    is_best,
    load_splits,
    make_recipe,
    standardize_columns,
    summarize_spectra,
)


def test_all_seeds_use_the_learning_rate_of_the_best_probe(rows):
    size = FIGURE.sizes["smoke"]
    for name in SETTINGS:
        row = rows[name]
        assert row["sweep"][f"{row['learning_rate']:g}"] == max(row["sweep"].values())
        assert row["steps"] == [0, 2, 4, 6], "the longer runs of the sweep add no spectra"
        assert len(row["normalized"]) == len(row["raw"]) == size.seeds
        assert len({run["condition"] for run in row["raw"]}) == size.seeds


def with_conditions(**conditions):
    return {
        name: {"normalized": [{"condition": value} for value in conditions.get(name, (9.0, 9.1, 8.9))]}
        for name in PAPERS
    }


def test_the_paired_interval_over_seeds_decides():
    best = with_conditions(frossl=(3.0, 3.1, 2.9))
    assert is_best(best, "normalized", "condition", PAPERS) is True
    assert (
        is_best(
            best | with_conditions(frossl=(3.0, 3.1, 2.9), vicreg=(2.0, 2.1, 1.9)), "normalized", "condition", PAPERS
        )
        is False
    )
    assert (
        is_best(with_conditions(frossl=(2.0, 9.0, 20.0)), "normalized", "condition", PAPERS) is None
    )  # the interval contains 0
    assert (
        is_best(with_conditions(frossl=(3.0,), **dict.fromkeys(PAPERS[1:], (9.0,))), "normalized", "condition", PAPERS)
        is None
    )  # one seed
    assert (
        is_best(with_conditions(simclr=(None, None, None), frossl=(3.0, 3.1, 2.9)), "normalized", "condition", PAPERS)
        is True
    )
    assert count_wins(with_conditions(frossl=(3.0, 10.0, 2.9)), "normalized", "condition", PAPERS) == 2
    assert count_wins(with_conditions(frossl=(1.0, None, 1.0)), "normalized", "condition", PAPERS) == 2


def test_overlapping_saturation_steps_of_three_seeds_decide_nothing():
    steps = {"frossl": (294, 227, 295), "vicreg": (12, 222, 288)}
    rows = {
        name: {"normalized": [{"saturation": step} for step in steps.get(name, (270, 270, 270))]} for name in PAPERS
    }
    assert is_best(rows, "normalized", "saturation", PAPERS) is None


def test_claims_of_a_run_of_few_epochs(rows):
    found = FIGURE.claims(rows)
    assert [claim.kind for claim in found] == ["claim"] * 4 + ["correction"] * 3
    assert found[0].holds == is_best(rows, "normalized", "condition", PAPERS)
    rate, half = found[3], found[4]
    assert "100 epochs" in rate.statement
    assert rate.holds is None
    assert half.holds is None, "one seed decides nothing"


def test_diverging_rates_are_skipped_and_all_diverging_raises(monkeypatch):
    size = replace(FIGURE.sizes["smoke"], learning_rates=(0.1, 100.0), seeds=1)

    def run(size, settings, recipe, lr, train, test, *, seed, probe=False):
        summary = {
            "eigenvalues": [[1.0] * 14],
            "condition": 1.0,
            "entropy": 1.0,
            "entropy_of_all": 1.0,
            "saturation": 0,
        }
        return {"accuracy": None} if lr > 1 else {"accuracy": 0.5, "steps": [0], "normalized": summary, "raw": summary}

    monkeypatch.setattr("fullrank_papers.figures.frossl.fig3.train_once", run)
    rows = FIGURE.compute(size, data=None, seed=0)
    assert rows["frossl"]["sweep"] == {"0.1": 0.5, "100": None}
    assert rows["frossl"]["learning_rate"] == 0.1
    FIGURE.plot(rows)
    with pytest.raises(UserError, match="FroSSL diverged at every learning rate"):
        FIGURE.compute(replace(size, learning_rates=(100.0,)), data=None, seed=0)


def test_hyperparameters_are_the_papers():
    paper = FIGURE.sizes["paper"].recipe
    recipes = {name: make_recipe(settings, paper, lr=0.1, seed=3) for name, settings in SETTINGS.items()}
    assert {name: recipe.projector.widths[-1] for name, recipe in recipes.items()} == dict.fromkeys(SETTINGS, 1024) | {
        "simclr": 256
    }
    assert recipes["frossl"].hyper["invariance"] == 1.0
    assert recipes["barlow"].hyper["redundancy"] == 0.05
    assert recipes["barlow_5e-3"].hyper["redundancy"] == 0.005
    assert recipes["vicreg"].hyper == {"invariance": 25.0, "variance": 25.0, "covariance": 1.0}
    assert recipes["simclr"].hyper["temperature"] == 0.2
    for recipe in recipes.values():
        assert (recipe.optimizer.name, recipe.optimizer.lr, recipe.optimizer.momentum, recipe.seed) == (
            "sgd",
            0.1,
            0.0,
            3,
        )
    # invariance (1/N) ‖Z₁ − Z₂‖² of unrelated views is the same, as it is with weight 1 at N = 256, D = 1024
    small = make_recipe(SETTINGS["frossl"], NARROW, lr=0.1, seed=0)
    terms = [
        frossl(torch.randn(2, N, D, generator=torch.Generator().manual_seed(0)), invariance=weight)["invariance"].item()
        for N, D, weight in (
            (256, 1024, 1.0),
            (NARROW.batch_size, small.projector.widths[-1], small.hyper["invariance"]),
        )
    ]
    assert terms[1] == pytest.approx(terms[0], rel=0.02)


def test_summary_of_spectra():
    Z = torch.randn(400, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = summarize_spectra([0, 5, 10], [0.1 * Z, 0.99 * Z, Z])
    lam = torch.linalg.eigvalsh(torch.cov(Z.mT, correction=0)).flip(0)
    p = lam[:14] / lam[:14].sum()
    assert found["condition"] == pytest.approx((lam[0] / lam[13]).item())
    assert found["entropy"] == pytest.approx(-(p * p.log()).sum().item())
    assert found["saturation"] == 5  # 0.99² > 0.95
    assert summarize_spectra([0], [torch.zeros(5, 20)])["condition"] is None


def test_half_saturation_step():
    curves = [[1.0] * 13 + [value] for value in (0.6, 0.1, 0.4, 0.5, 0.9, 1.0)]
    assert half_saturation_step({"steps": [0, 10, 20, 30, 40, 50], "eigenvalues": {"normalized": curves}}) == 30


def test_unlabelled_images_are_trained_on_and_too_few_raise(tmp_path):
    for name in ("train/a/0", "train/a/1", "train/b/2", "train/3", "train/4", "test/a/5", "test/b/6"):
        path = (tmp_path / name).with_suffix(".png")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), color=10 * int(path.stem)).save(path)
    size = replace(FIGURE.sizes["smoke"], images=5, held_out=0)
    train, test, recipe = load_splits(size, str(tmp_path), seed=0)
    assert sorted(train.labels.tolist()) == [-1, -1, 0, 0, 1]
    assert sorted(test.labels.tolist()) == [0, 1]
    assert recipe.data.mean == pytest.approx((20 / 255,))
    with pytest.raises(UserError, match="has 5 training images"):
        load_splits(replace(size, images=6), str(tmp_path), seed=0)
    assert (FIGURE.sizes["paper"].images, FIGURE.sizes["paper"].steps) == (
        105_000,
        5 * (105_000 // FIGURE.sizes["paper"].recipe.batch_size),
    )


def test_standardized_columns():
    Z = standardize_columns(torch.randn(50, 3, dtype=torch.float64) * torch.tensor([1.0, 10.0, 0.1]) + 7)
    torch.testing.assert_close(Z.mean(0), torch.zeros(3, dtype=torch.float64), atol=1e-12, rtol=0)
    torch.testing.assert_close(Z.var(0, correction=0), torch.ones(3, dtype=torch.float64))
    assert math.isclose(Z.square().sum().item(), 150)
