"""Recipes of the projector study, and the evaluation of its runs."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from fullrank.evaluation import extract_features
from fullrank.images import train_and_test
from fullrank.models import load
from fullrank.recipes import RECIPES, check
from fullrank_papers.figures.directclr import study as module
from fullrank_papers.figures.directclr.study import (
    LABELS,
    SIZES,
    run_study,
    train_and_evaluate,
    with_d0,
    with_projector,
)


def test_paper_size_uses_the_imagenet_recipes():
    assert SIZES["paper"].recipe == RECIPES["imagenet-simclr"]
    ours, theirs = with_projector(SIZES["paper"].recipe, "DirectCLR"), RECIPES["imagenet-directclr"]
    assert ours.projector.absent
    assert theirs.projector.absent
    assert replace(ours, name=theirs.name, projector=theirs.projector) == theirs


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", LABELS)
def test_all_recipes_are_valid_and_different(size, name):
    recipe = SIZES[size].recipe
    check(
        replace(
            with_projector(recipe, name),
            data=replace(recipe.data, mean=(0.5,) * recipe.data.channels, std=(0.5,) * recipe.data.channels),
        )
    )
    assert len({with_projector(recipe, other).fingerprint for other in LABELS}) == len(LABELS)


def test_sub_vector_of_the_recipes_d0_shares_its_run_with_table2():
    recipe = SIZES["small"].recipe
    assert with_d0(recipe, recipe.projector.d0) == with_projector(recipe, "low-rank-diagonal")
    assert with_d0(recipe, 5).projector.d0 == 5


def test_run_is_trained_once(smoke, monkeypatch):
    recipes = {"none": with_projector(smoke.recipe, "none")}
    first = run_study(smoke, recipes, data=None, seed=3)
    monkeypatch.setattr(module, "pretrain", None)  # another call would fail
    assert run_study(smoke, recipes, data=None, seed=3) == first
    with pytest.raises(TypeError):
        run_study(smoke, recipes, data=None, seed=4)


def test_stopped_run_is_resumed(smoke, tmp_path):
    recipe = replace(with_projector(smoke.recipe, "none"), seed=5)
    whole = train_and_evaluate(recipe, tmp_path, probe_images=smoke.probe_images)
    (path,) = tmp_path.iterdir()
    (path / f"evaluation-{smoke.probe_images}.json").unlink()
    again = train_and_evaluate(recipe, tmp_path, probe_images=smoke.probe_images)
    assert again | {"seconds": 0} == whole | {"seconds": 0}


def test_evaluation_probes_parts_of_r_and_uses_held_out_spectra(smoke, tmp_path):
    recipe = with_projector(smoke.recipe, "DirectCLR")
    found = train_and_evaluate(recipe, tmp_path, probe_images=0)
    (path,) = tmp_path.iterdir()
    model, splits, d0 = load(path), train_and_test("digits", seed=0), recipe.hyper["d0"]
    train, test = (extract_features(model.backbone, part, model.preprocess) for part in (splits.train, splits.test))
    expected = np.linalg.eigvalsh(np.cov(test.X.double().numpy().T, ddof=0))[::-1]
    np.testing.assert_allclose(found["representation"]["eigenvalues"], expected, rtol=1e-6)
    assert found["embedding"] == found["representation"]  # there is no projector
    for name, part in {
        "whole": slice(None),
        "first": slice(d0),
        "rest": slice(d0, None),
        "next": slice(d0, 2 * d0),
    }.items():
        X, X_test = train.X[:, part].numpy(), test.X[:, part].numpy()
        mean, std = X.mean(0), X.std(0)
        other = LogisticRegression(C=1.0, max_iter=500).fit((X - mean) / std, train.labels)
        assert abs(found["accuracy"][name] - other.score((X_test - mean) / std, test.labels)) < 0.06, name
    assert found["ranks"]["representation"] == [d0, train.X.shape[1]]


def test_stored_eigenvalues_are_evenly_spaced_and_metrics_use_all():
    Z = torch.randn(2000, 600, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = module.summarize_spectrum(Z)
    assert (len(found["index"]), found["index"][0], found["index"][-1]) == (256, 1, 600)
    assert (found["D"], found["collapsed_dimensions"]) == (600, 0)
    assert found["effective_rank"] > 256
