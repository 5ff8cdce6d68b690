"""The effective rank that each objective reaches on free embeddings that start near four dimensions."""

import broken_losses
import pytest
import torch

from fullrank.objectives import OBJECTIVES, byol, frossl, simsiam
from fullrank.testing import objective_case, optimize_free_embeddings
from fullrank.testing.free_embeddings import free_embeddings_result

NUMBERS = {"directclr": {"d0": 24}, "directclr_paper": {"d0": 24}}
ONLY_ALIGNMENT = {"simsiam", "byol"}
"""Objectives without a variance term: they need the predictor, which free embeddings do not have."""

SIZE = {"N": 96, "steps": 200, "learning_rate": 0.03}


@pytest.mark.parametrize("name", sorted(set(OBJECTIVES) - ONLY_ALIGNMENT))
def test_a_variance_term_raises_the_effective_rank(name):
    spectra = optimize_free_embeddings(objective_case(OBJECTIVES[name], hyper=NUMBERS.get(name)), **SIZE)
    assert spectra.after.effective_rank() > 1.4 * spectra.before.effective_rank()


@pytest.mark.parametrize("objective", [simsiam, byol])
def test_without_a_predictor_alignment_lowers_the_effective_rank(objective):
    spectra = optimize_free_embeddings(objective_case(objective), **SIZE)
    assert spectra.after.effective_rank() < spectra.before.effective_rank()


def test_alignment_keeps_only_the_dimensions_in_which_the_views_agree():
    def alignment(Z):
        return {"invariance": (Z - Z.mean(0)).square().sum((0, 2)).mean()}

    spectra = optimize_free_embeddings(objective_case(alignment), **SIZE)
    assert spectra.after.effective_rank() < spectra.before.effective_rank()
    assert spectra.after.participation_ratio() < 4


def test_the_start_is_the_same_for_all_objectives():
    one, other = (optimize_free_embeddings(objective_case(f), N=64, steps=1).before for f in (simsiam, frossl))
    assert torch.equal(one.eigenvalues, other.eigenvalues)


def test_an_unbounded_objective_fails():
    spectra = optimize_free_embeddings(objective_case(broken_losses.diverges), N=64, steps=3)
    assert spectra.after is None
    result = free_embeddings_result(spectra, optimize_free_embeddings(objective_case(frossl), N=64, steps=3))
    assert (result.status, result.measured.split(" of ")[0]) == ("failed", "they are not finite")
