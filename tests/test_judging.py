"""The scores that `fullrank.evaluate` stores in a run."""

from dataclasses import replace

import pytest
import torch
from rich.console import Console

import fullrank
from fullrank import judging
from fullrank.errors import UserError
from fullrank.images import load_images, open_images
from fullrank.run import Run

FAST = {"probes": ["knn"], "baselines": False}


def test_scores_on_images_in_memory_replace_only_scores_on_the_same_images(copy):
    first = load_images(open_images("digits")["all"].subset(range(40)), channels=1)
    other = replace(first, pixels=255 - first.pixels)
    for images in (first, other, first):
        fullrank.evaluate(copy, images, **FAST)
    names = [evaluation.data for evaluation in Run(copy).evaluations if evaluation.data.startswith("memory")]
    assert len(names) == len(set(names)) == 2


def test_scores_of_a_run_that_was_replaced_meanwhile_are_not_stored(copy, small, monkeypatch):
    before = (copy / "evaluation.json").exists()
    evaluate_backbone = judging.evaluate_backbone

    def replace_run(*arguments, **options):
        fullrank.pretrain(replace(small, epochs=1, seed=5), out=copy, overwrite=True, console=Console(quiet=True))
        return evaluate_backbone(*arguments, **options)

    monkeypatch.setattr(judging, "evaluate_backbone", replace_run)
    with pytest.raises(UserError, match="replaced by another run"):
        fullrank.evaluate(copy, **FAST)
    assert not (copy / "evaluation.json").exists(), before
    assert torch.isfinite(next(iter(Run(copy).checkpoint().weights().values()))).all()
