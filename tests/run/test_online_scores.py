"""The online probe scored on all test images at `probe.epochs`, and runs on a subset with validation images."""

from dataclasses import replace

import pytest
import torch
from rich.console import Console

import fullrank
from fullrank.evaluation import extract_features, measure_spectrum
from fullrank.images import Images, train_and_test
from fullrank.models import load
from fullrank.recipes import ProbeConfig

QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def scored(small, train):
    """The run of `small` with scores after 6, 11 and 22 steps; the last mark is after its end."""
    return train(replace(small, probe=ProbeConfig(epochs=(0.5, 1.0, 2.0, 3.5))))


@pytest.fixture
def opened(monkeypatch):
    """The names of the digits that were opened."""
    found, original = set(), Images.open
    monkeypatch.setattr(Images, "open", lambda self, index: found.add(self.name(index)) or original(self, index))
    return found


def names(images):
    return {images.name(i) for i in range(len(images))}


def test_the_scores_come_after_the_epochs_and_those_after_the_end_are_left_out(scored):
    found = [(row.step, row.epoch, row.images, row.top5) for row in scored.metrics.online]
    assert found == [(step, round(step / 11, 4), 359, None) for step in (6, 11, 22)]


def test_the_score_is_that_of_the_stored_probe_on_all_test_images(scored):
    model, state = load(scored), scored.checkpoint().state()["probe"]
    features = extract_features(model.backbone, train_and_test("digits", seed=0).test, model.preprocess)
    mean, variance = (state[f"norm.running_{name}"].double() for name in ("mean", "var"))
    logits = (features.X.double() - mean) / (variance + 1e-8).sqrt() @ state["W"].double().T + state["b"].double()
    correct = (logits.argmax(1) == features.labels).double().mean().item()
    # Float32 may decide one image otherwise.
    assert scored.metrics.online[-1].accuracy == pytest.approx(correct, abs=1.01 / 359)
    assert len(logits.argmax(1).unique()) > 3


def test_scores_change_neither_the_weights_nor_the_probe_nor_the_other_rows(run, scored, assert_same_but_scores):
    assert_same_but_scores(run, scored)


def test_five_largest_logits_count_with_more_than_ten_classes(small, tmp_path):
    pixels = torch.randint(0, 256, (220, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    images = torch.utils.data.TensorDataset(pixels, torch.arange(220) % 11)
    probe = ProbeConfig(epochs=(1.0,), lr=0.0)
    run = fullrank.pretrain(replace(small, epochs=1, probe=probe), images, out=tmp_path / "run", console=QUIET)
    (row,) = run.metrics.online
    assert (row.images, row.accuracy) == (44, 4 / 44)  # an untrained probe has equal logits: the first class
    assert row.top5 == pytest.approx(5 / 11)


@pytest.fixture(scope="module")
def reduced(small):
    data = replace(small.data, subset=300, validation=0.1)
    return replace(small, epochs=1, data=data, probe=ProbeConfig(epochs=(1.0,)))


def test_a_run_with_validation_opens_no_test_image_and_no_other_training_image(reduced, train, opened):
    parts = train_and_test("digits", validation=0.1, subset=300)
    run = train(replace(reduced, seed=5))
    assert opened == names(parts.train) | names(parts.test)  # the same for every seed
    (row,) = run.metrics.online
    assert row.images == len(parts.test) == 144
    assert run.metrics.spectrum[-1].probe_images <= 144


@pytest.fixture(scope="module")
def reduced_run(reduced, train):
    return train(reduced)


def test_evaluation_and_spectrum_of_a_run_use_its_validation_images(reduced_run, opened):
    run = reduced_run
    rest = train_and_test("digits", validation=0.1)
    opened.clear()
    evaluation = fullrank.evaluate(run, probes=["knn"], baselines=False)
    assert opened == names(rest.train) | names(rest.test)
    assert (evaluation.train_images, evaluation.test_images) == (1294, 144)
    assert "144 of 1,438 training images held out for validation; the test images are not used" in evaluation.statement
    assert "the backbone was trained on 300 images, the probes on all 1,294" in evaluation.statement
    opened.clear()
    assert measure_spectrum(run)["backbone"].n == 144
    assert opened == names(rest.test)
    subset = fullrank.evaluate(run, probes=["knn"], baselines=False, train_subset=True)
    test = fullrank.evaluate(run, "digits", probes=["knn"], baselines=False)
    assert (subset.train_images, subset.test_images) == (300, 144)
    assert (test.train_images, test.test_images) == (1438, 359)
