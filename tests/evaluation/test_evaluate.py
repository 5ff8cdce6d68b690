"""`fullrank.evaluate`: what is scored, what is left out, and what is stored in a run."""

import io
import json
import shutil
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from torch import nn

import fullrank
from fullrank.errors import UserError
from fullrank.evaluation import Scoring, Task, calibrate_batchnorm, extract_features, knn, score_model
from fullrank.evaluation.finetune import SupervisedTraining
from fullrank.evaluation.score import FILE, read_evaluations
from fullrank.evaluation.task import accuracy_during_training, trained_on_held_out
from fullrank.images import Device, as_images, load_images, open_images
from fullrank.methods import BackboneConfig
from fullrank.models import Model
from fullrank.models.model_images import LabelledSplits
from fullrank.run import Run

KNN: dict[str, Any] = {"probes": ["knn"], "baselines": False}
SMALL = {"linear-sgd": {"epochs": 5}, "few-shot": {"draws": 3}, "fractions": {"draws": 2}}


def small_network():
    """Return a small untrained network for digits, with the initial statistics of BatchNorm."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        first = nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()
        second = nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU()
        return nn.Sequential(*first, *second, nn.AdaptiveAvgPool2d(2), nn.Flatten()).eval()


class SmallModel(Model):
    """A model of a small network that was not trained."""

    def untrained(self, seed=None):
        return deepcopy(self.backbone)


def score(train, test, preprocess, *, network=small_network, others=(), progress=print, **scoring):
    """Score a network on training and test images."""
    model, *rest = (SmallModel(n, f(), preprocess, BackboneConfig()) for n, f in (("model", network), *others))
    task = Task(LabelledSplits(train, test, "digits", ""), Device(accelerator="cpu"), progress=progress)
    return score_model(model, rest, task, Scoring(**scoring))


def values(result, metric="accuracy"):
    return {(s.features, s.name): s.value for s in result.scores if s.metric == metric}


@pytest.fixture(scope="module")
def result(halves, preprocess):
    return score(*halves, preprocess, protocols=SMALL)


def test_every_probe_scores_every_feature_set_with_intervals(result):
    sets, probes = ("backbone", "raw pixels", "untrained backbone"), ("linear", "linear-sgd", "knn", "few-shot")
    assert [(s.features, s.probe) for s in result.scores if s.metric == "accuracy"] == [
        (features, probe) for features in sets for probe in probes
    ]
    for each in result.scores:
        if each.metric == "accuracy":
            assert 0 <= each.low <= each.value <= each.high <= 1
            assert (each.n, each.sd is None) == ((3, False) if each.probe == "few-shot" else (1, True))
    pixels = {s.probe: s.value for s in result.scores if (s.features, s.metric) == ("raw pixels", "accuracy")}
    assert all(0.75 < pixels[probe] < 0.97 for probe in probes[:3])
    assert 0.4 < pixels["few-shot"] < 0.85
    assert [(c.probe, c.against, c.units) for c in result.comparisons] == [("linear", s, 300) for s in sets[1:]]
    for each in result.comparisons:
        assert each.difference == pytest.approx(each.value - each.reference)
        assert each.low <= each.difference <= each.high
    Console(file=(shown := io.StringIO()), width=200).print(result)
    assert all(f"{100 * value:.1f}" in shown.getvalue() for value in values(result).values())
    assert " ".join(shown.getvalue().split()).startswith(result.verdict)
    Console(file=(shown := io.StringIO()), width=80).print(result)
    assert len(shown.getvalue().splitlines()) < 25  # of ten classes


def test_the_result_survives_the_file(result, tmp_path):
    result.save(tmp_path / "scores.json")
    assert read_evaluations(tmp_path / "scores.json") == [result]
    with pytest.raises(UserError, match="exists"):
        result.save(tmp_path / "scores.json")


def test_only_the_untrained_backbone_is_calibrated_and_a_network_equals_itself(halves, preprocess):
    found = score(*halves, preprocess, probes=("knn",), others=[("twin", small_network)])
    generator = torch.Generator().manual_seed(0)
    cpu = Device(accelerator="cpu")
    network = calibrate_batchnorm(small_network(), halves[0], preprocess, generator=generator, device=cpu)
    for features, each in (("untrained backbone", network), ("backbone", small_network())):
        (X, y), (X_test, y_test) = ((f.X, f.labels) for f in (extract_features(each, h, preprocess) for h in halves))
        expected = (knn(X, y, X_test).logits.argmax(1) == y_test).double().mean().item()
        assert found.find("knn", features=features).value == expected
    twin = next(each for each in found.comparisons if each.against == "twin")
    assert (twin.difference, twin.low, twin.high) == (0, 0, 0)


def test_all_probes_have_plausible_scores_and_the_seed_matters(few, halves, preprocess):
    probes = ("linear-imagenet", "svm", "fractions")
    flat = {"network": nn.Flatten, "baselines": False}
    found = values(score(*halves, preprocess, probes=probes, protocols=SMALL, **flat))
    adam, svm, one, ten = found.values()
    assert min(adam, svm) > 0.6
    assert 0.3 < one < ten < 0.9
    runs = [values(score(*few, preprocess, probes=("few-shot",), seed=seed, **flat)) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def test_the_numbers_of_a_protocol_reach_the_probe(few, preprocess):
    """Any number changes the predictions, so that no flag is without effect."""

    def usual(**numbers):
        numbers = {"epochs": 3, "lr": [0.5], "decay": [], "batch_size": 20, "standardize": False} | numbers
        options = {"network": nn.Flatten, "baselines": False, "probes": ("linear-sgd",)}
        found = score(*few, preprocess, protocols={"linear-sgd": numbers}, **options)
        return found.find("linear-sgd").confusion

    changes: list[dict] = [{"epochs": 1}, {"lr": [1e-3]}, {"batch_size": 60}, {"momentum": 0.0}, {"views": 1}]
    changes += [{"weight_decay": 1.0}, {"standardize": True}, {"decay": [1], "decay_factor": 0.0}, {"limit_lr": True}]
    plain = usual()
    assert [change for change in changes if usual(**change) == plain] == []


def test_augmented_passes_score_every_feature_set(few, preprocess):
    numbers, lines = {"epochs": 4, "batch_size": 10, "views": 2, "crop": [0.5, 1.0]}, []
    found = score(*few, preprocess, probes=("linear-sgd",), protocols={"linear-sgd": numbers}, progress=lines.append)
    assert {name for _, name in values(found)} == {"linear (SGD), epochs 4, batch size 10, views 2, crop 0.5 1"}
    assert len([line for line in lines if "augmented" in line]) == 3 * 2
    assert found.find("linear-sgd", features="raw pixels").value > 0.3  # many flipped digits are not digits


def test_dimensions_equal_a_network_with_only_these_outputs(few, preprocess):
    part = lambda: nn.Sequential(small_network(), Slice())  # noqa: E731
    found = score(*few, preprocess, probes=("knn",), dimensions="8:40")
    expected = score(*few, preprocess, probes=("knn",), network=part)
    names = {"backbone": "backbone[8:40]", "untrained backbone": "untrained backbone[8:40]"}
    assert values(found) == {(names.get(f, f), name): value for (f, name), value in values(expected).items()}


class Slice(nn.Module):
    """Keeps some of the features."""

    def forward(self, X):
        return X[:, 8:40]


def test_groups_of_test_images_are_the_units(halves, preprocess):
    test = replace(halves[1], groups=halves[1].labels.clone())
    found = score(halves[0], test, preprocess, probes=("knn",))
    assert {(each.units, each.grouped) for each in found.comparisons} == {(10, True)}
    assert "10 groups of test images are too few" in found.verdict


def test_unlabelled_images_are_reported_and_not_counted_as_errors(halves, preprocess):
    train, test = (half.labels.clone() for half in halves)
    train[:7], test[:250] = -1, -1
    images, flat = replace(halves[0], labels=train), {"network": nn.Flatten, "baselines": False, "probes": ("knn",)}
    found = score(images, replace(halves[1], labels=test), preprocess, **flat)
    assert found.left_out == ("7 of 300 training images: unlabelled", "250 of 300 test images: unlabelled")
    known = halves[1].subset(range(250, 300))
    assert values(found) == values(score(images, known, preprocess, **flat))
    assert found.chance == pytest.approx(known.labels.bincount().max().item() / 50)


def test_unreadable_images_are_left_out_and_counted(tmp_path, preprocess):
    rng = np.random.default_rng(0)
    for i in range(30):
        (tmp_path / f"{i % 2}").mkdir(exist_ok=True)
        values = rng.integers(0, 128, (8, 8), dtype=np.uint8) + 100 * np.uint8(i % 2)
        Image.fromarray(values).save(tmp_path / f"{i % 2}" / f"{i:02}.png")
    (tmp_path / "0" / "99.png").write_text("no image")
    images = open_images(str(tmp_path))["all"]
    found = score(images, images, preprocess, network=nn.Flatten, baselines=False, probes=("knn",))
    assert (found.train_images, found.test_images) == (30, 30)
    assert found.left_out == ("1 images: unreadable",)
    for i in range(8):
        (tmp_path / "0" / f"broken{i}.png").write_text("no image")
    with pytest.raises(UserError, match="could not be read"):
        fullrank.evaluate("timm-untrained:test_resnet", str(tmp_path), **KNN)


@pytest.mark.parametrize("labels", [[], [0] * 60, [0, 1] * 3])  # none, of a single class, six
def test_labels_that_score_nothing_are_a_user_error(few, labels):
    labels = labels + [-1] * (60 - len(labels))
    with pytest.raises(UserError, match="nothing can be scored"):
        fullrank.evaluate("timm-untrained:test_resnet", (few[0].pixels, labels), **KNN)


def test_several_labels_an_image_are_scored_with_the_supervised_network(digits):
    few = digits.subset(range(80))
    labels = torch.stack([few.labels < 4, few.labels % 2 == 0], 1).long()
    options = {"supervised": True, "protocols": {"supervised": {"epochs": 1}, "linear": {"penalties": [0.01]}}}
    found = fullrank.evaluate("timm-untrained:test_resnet", (few.pixels, labels), **options)
    main = [s for s in found.scores if s.metric == "mean average precision"]
    sets = {"backbone", "raw pixels (32 px)", "untrained backbone", "supervised baseline"}
    assert {s.features for s in main} == sets
    assert {each.against for each in found.comparisons} == sets - {"backbone"}
    assert all(s.low <= s.value <= s.high and set(s.per_class) == set(s.positives) for s in main)
    assert found.find("linear", features="raw pixels (32 px)").value > 0.8 > found.chance
    assert any(line.startswith("few-shot") for line in found.left_out)
    for wrong in ({"probes": ["svm"]}, {"probes": []}, {"probes": ["kn"]}, {"probes": "knn"}, {"dimensions": "x"}):
        with pytest.raises(UserError):
            fullrank.evaluate("timm-untrained:test_resnet", (few.pixels, labels), **wrong)
    with pytest.raises(UserError, match="several labels"):
        fullrank.finetune("timm-untrained:test_resnet", (few.pixels, labels))


def test_scores_on_other_images_and_probes_stay_in_the_file_of_a_run(copy, few):
    first, other = (few[0], {}), (replace(few[0], pixels=255 - few[0].pixels), {})
    again = (first[0], {"protocols": {"knn": {"k": 3}}})
    lines = []
    for images, options in (first, other, again, first):
        fullrank.evaluate(copy, images, notify=lines.append, **KNN | options)
    entries = Run(copy).evaluations
    assert [len({s.name for s in entry.scores if s.metric == "accuracy"}) for entry in entries] == [1, 2]
    assert len({entry.data for entry in entries}) == 2
    assert sum("replaced" in line for line in lines) == 1
    before = (copy / FILE).read_bytes()
    fullrank.evaluate(copy, dimensions=":8", **KNN)
    fullrank.evaluate(f"{copy}@6", **KNN)
    fullrank.evaluate(copy, store=False, **KNN)
    assert (copy / FILE).read_bytes() == before


def test_models_are_compared_on_the_same_images_as_the_first(copy):
    other = f"{copy}@6"
    found, alone = fullrank.evaluate(copy, against=[other], **KNN), fullrank.evaluate(other, **KNN)
    assert [(c.against, c.reference) for c in found.comparisons] == [(other, alone.find("knn").value)]
    assert Run(copy).evaluations[-1].verdict == found.verdict != ""
    fullrank.evaluate(copy, **KNN, protocols={"knn": {"k": 3}})
    assert [c.against for c in Run(copy).evaluations[-1].comparisons] == [other]
    for wrong in ([other, other], other):
        with pytest.raises(UserError):
            fullrank.evaluate(copy, against=wrong, **KNN)


def test_another_run_that_held_out_other_images_is_named(copy, tmp_path):
    shutil.copytree(copy, other := tmp_path / "other")
    recipe = json.loads((other / "recipe.json").read_text())
    (other / "recipe.json").write_text(json.dumps(recipe | {"seed": 7}))
    lines: list[str] = []
    verdict = fullrank.evaluate(copy, against=[other], probes=["knn"], store=False, notify=lines.append).verdict
    assert f"{other} held out other images" in verdict
    assert any("learned from some of the test images" in line for line in lines)
    assert "held out other" not in fullrank.evaluate(copy, against=[f"{copy}@6"], probes=["knn"], store=False).verdict


@pytest.mark.parametrize(("named", "seed", "expected"), [("", 7, True), ("[train]", 7, True), ("", 0, False)])
def test_a_run_learned_from_the_held_out_fifth_of_another_seed(run, named, seed, expected):
    images = replace(open_images("digits")["all"], source=f"digits{named}")
    splits = LabelledSplits(images, images, "digits (held out)", "")
    assert trained_on_held_out(fullrank.load(run.path), splits, seed) == expected
    assert not trained_on_held_out(fullrank.load(run.path), replace(splits, test=replace(images, source="b")), 7)


def test_labelled_images_from_another_place_count_their_overlap_and_give_a_curve(run):
    some = open_images("digits")["all"].subset(range(300))  # its held-out images are other ones than those of the run
    options = {"baselines": False, "store": False, "protocols": {"few-shot": {"draws": 2}}}
    found = fullrank.evaluate(run.path, labelled=some, probes=["few-shot"], **options)
    assert [s.settings["labels"] for s in found.scores if s.metric == "accuracy"] == [1, 2, 5, 10]
    count, total = found.statement.split("; ")[-1].split(" test images are also among the ")[0].split(" of ")
    assert 0 < int(count) < int(total) == found.test_images
    judged = fullrank.evaluate(run.path, labelled=some, probes=["knn"], store=False)
    assert f"Note: {count} of the test images are images of pretraining" in judged.verdict
    with pytest.raises(UserError, match="give one of them"):
        fullrank.evaluate(run.path, some, labelled=some)


def test_a_network_trained_with_the_labels_alone_is_an_alternative(run):
    numbers = {"supervised": {"epochs": 1}}
    found = fullrank.evaluate(run.path, supervised=True, protocols=numbers, store=False, **KNN)
    alone = found.find("supervised", features="supervised baseline")
    assert alone.settings["epochs"] == 1
    (against,) = [(c.probe, c.against, c.reference) for c in found.comparisons]
    assert against == ("knn", "supervised baseline", alone.value)


def test_the_supervised_network_sees_the_pixels_of_the_probes(few, preprocess, monkeypatch):
    seen = []
    monkeypatch.setattr(SupervisedTraining, "run", lambda self, network, **_: seen.append(self.train.pixels) or 1 / 0)
    for resize in (None, 16):
        with pytest.raises(ZeroDivisionError):
            score(*few, preprocess, supervised=True, resize=resize, **KNN)
    assert torch.equal(seen[0], few[0].pixels)
    assert torch.equal(seen[1], load_images(as_images(few[0]), channels=1, size=16).pixels[:, :, 4:12, 4:12])


def test_a_run_that_began_with_given_weights_is_compared_with_them(run, small, train):
    started = train(replace(small, init=str(run.path), epochs=1))
    found = fullrank.evaluate(started, probes=["knn"], store=False)
    before = fullrank.evaluate(run.path, store=False, **KNN)
    assert (found.comparisons[0].against, found.comparisons[0].reference) == ("initial weights", before.main.value)
    some = fullrank.evaluate(started, probes=["knn"], dimensions=":8", store=False)
    assert "initial weights[:8]" in {score.features for score in some.scores}


@pytest.mark.parametrize("hostile", ["\xff", '{"evaluations": [{"model": "a"}]}', '{"evaluations": [' + "[" * 5000])
def test_a_damaged_evaluation_json_is_a_user_error_before_the_work(copy, hostile):
    (copy / FILE).write_bytes(hostile.encode("latin-1"))
    lines = []
    for function in (fullrank.evaluate, fullrank.finetune):
        with pytest.raises(UserError, match=FILE):
            function(copy, notify=lines.append)
    assert lines == []
    assert (copy / FILE).read_bytes() == hostile.encode("latin-1")


def test_the_accuracy_during_training_is_that_of_the_last_probe_and_never_stops_an_evaluation(copy):
    log, model = copy / "metrics.jsonl", fullrank.load(str(copy))
    rows = [{"accuracy": 0.1, "images": 359}, {"accuracy": 0.6, "images": 20, "probe": "linear"}]
    rows = [{"kind": "online", "step": k, "epoch": float(k)} | row for k, row in enumerate(rows, start=1)]
    lines = [json.dumps(row) for row in rows]
    log.write_text("\n".join(lines) + "\n")
    assert accuracy_during_training(model) == ({2.0: 0.6}, 20)
    for damaged in ('{"online"}', '{"kind": "online"}', '{"kind": "online", "step": "x"}', '{"kind": "online", "st'):
        log.write_text("\n".join([damaged, *lines]) + "\n")
        assert accuracy_during_training(model) in (({}, 0), ({2.0: 0.6}, 20))
