"""The scores that `fullrank.evaluate` stores in a run."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

import fullrank
from fullrank.errors import UserError
from fullrank.evaluation import judging
from fullrank.images import load_images, open_images
from fullrank.run import Run
from fullrank.run.rows import OnlineRow

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


def test_models_are_compared_on_the_same_images_as_the_first(copy):
    other = f"{copy}@6"
    result = fullrank.evaluate(copy, probes=["knn"], baselines=False, against=[other])
    alone = fullrank.evaluate(other, **FAST)
    assert [score.features for score in result.scores] == ["backbone", other]
    assert [(each.against, each.reference) for each in result.comparisons] == [(other, alone.scores[0].accuracy)]
    assert Run(copy).evaluations[-1].verdict == result.verdict != ""
    fullrank.evaluate(copy, probes=["knn"], baselines=False, protocols={"knn": {"k": 3}})
    assert [each.against for each in Run(copy).evaluations[-1].comparisons] == [other]
    with pytest.raises(UserError, match="is given twice"):
        fullrank.evaluate(copy, against=[other, other], **FAST)
    with pytest.raises(UserError, match="expected a list of models"):
        fullrank.evaluate(copy, against=other, **FAST)


def test_a_run_that_began_with_given_weights_is_compared_with_them(copy, small, tmp_path):
    started = fullrank.pretrain(
        replace(small, init=str(copy), epochs=1), out=tmp_path / "started", console=Console(quiet=True)
    )
    result = fullrank.evaluate(started, probes=["knn"])
    before = fullrank.evaluate(copy, probes=["knn"], baselines=False, store=False)
    assert result.comparisons[0].against == "initial weights"
    assert result.comparisons[0].reference == before.scores[0].accuracy


def test_labelled_images_from_another_place_count_their_overlap_and_give_a_curve(copy, tmp_path):
    some = open_images("digits")["all"].subset(range(300))  # its held-out images are other ones than those of the run
    result = fullrank.evaluate(
        copy, labelled=some, probes=["knn", "few-shot"], baselines=False, protocols={"few-shot": {"draws": 2}}
    )
    assert [score.probe for score in result.scores[1:]] == [
        f"linear, {n} label{'s' * (n > 1)} per class, draws 2" for n in (1, 2, 5, 10)
    ]
    count, total = result.statement.split("; ")[-1].split(" test images are also among the ")[0].split(" of ")
    assert 0 < int(count) < int(total) == result.test_images
    with pytest.raises(UserError, match="give one of them"):
        fullrank.evaluate(copy, some, labelled=some, **FAST)


def test_images_that_cannot_be_read_are_the_error_and_not_an_overlap_of_none(copy, tmp_path):
    lines, table = [], tmp_path / "moved.csv"
    table.write_text("path,label\n" + "".join(f"gone/{i}.png,{i % 2}\n" for i in range(40)))
    with pytest.raises(UserError, match="--max-error-fraction"):
        fullrank.evaluate(copy, labelled=table, notify=lines.append, **FAST)
    assert not any("images of pretraining" in line for line in lines)


def test_a_network_trained_with_the_labels_alone_is_an_alternative(copy):
    result = fullrank.evaluate(copy, supervised=True, supervised_epochs=1, **FAST)
    score = result.scores[-1]
    assert (score.features, score.probe, score.protocol["epochs"]) == ("labels alone", "network from scratch", 1)
    assert [(each.probe, each.against, each.reference) for each in result.comparisons] == [
        ("kNN", "labels alone", score.accuracy)
    ]
    with pytest.raises(UserError, match="supervised_epochs is 0"):
        fullrank.evaluate(copy, supervised=True, supervised_epochs=0, **FAST)


def test_the_accuracy_during_training_is_that_of_the_last_probe(run, monkeypatch):
    rows = [
        OnlineRow(step=1, epoch=1.0, accuracy=0.1, images=359),
        OnlineRow(step=2, epoch=2.0, accuracy=0.6, images=20, probe="linear"),
    ]
    monkeypatch.setattr(Run, "metrics", SimpleNamespace(online=rows))
    assert judging._accuracy_during_training(fullrank.load(run.path)) == {2.0: 0.6}
