import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from torch import nn

from fullrank.errors import UserError
from fullrank.evaluation import Evaluation, calibrate_batchnorm, evaluate, extract_features, knn, state_hash, table
from fullrank.images import DecodeErrors, Preprocess, open_images

PROBE_NAMES = ["linear (full batch)", "linear (SGD)", "kNN", "linear, 2 labels a class"]


def small():
    """A little untrained network for digits, with statistics of BatchNorm as at its construction."""
    torch.manual_seed(0)
    first = nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()
    second = nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU()
    return nn.Sequential(*first, *second, nn.AdaptiveAvgPool2d(2), nn.Flatten())


def unlabelled(images, rows=slice(None)):
    labels = images.labels.clone()
    labels[rows] = -1
    return replace(images, labels=labels)


@pytest.fixture(scope="module")
def result(halves, preprocess):
    return evaluate(small(), small(), preprocess, *halves, model="runs/digits", statement="300 train, 300 test")


def test_result_is_the_content_of_evaluation_json(result):
    assert (result.model, result.train_images, result.test_images) == ("runs/digits", 300, 300)
    assert (result.statement, result.left_out) == ("300 train, 300 test", ())
    assert Evaluation.from_json(json.loads(json.dumps(result.to_json()))) == result
    for score in result.scores:
        assert 0 <= score.accuracy <= 1
        assert (score.n, score.sd is None) == ((20, False) if "labels" in score.probe else (1, True))


def test_every_probe_scores_every_kind_of_features(result):
    pairs = [(score.features, score.probe) for score in result.scores]
    assert pairs == [(features, probe) for features in ("backbone", "raw pixels", "untrained backbone") for probe in PROBE_NAMES]


def test_raw_pixels_of_digits_are_told_apart_well(result):
    scores = {score.probe: score.accuracy for score in result.scores if score.features == "raw pixels"}
    assert all(0.75 < scores[probe] < 0.97 for probe in PROBE_NAMES[:3])
    assert 0.4 < scores[PROBE_NAMES[3]] < 0.85


def test_the_untrained_backbone_is_calibrated_and_the_judged_one_is_not(halves, preprocess):
    judged, untrained = small(), small()
    before = state_hash(judged)
    result = evaluate(judged, untrained, preprocess, *halves, probes=("knn",))
    assert state_hash(judged) == before
    expected = calibrate_batchnorm(small(), halves[0], preprocess, batch=512, generator=torch.Generator().manual_seed(0))
    assert state_hash(untrained) == state_hash(expected) != before
    scores = {score.features: score.accuracy for score in result.scores}
    features = [extract_features(expected, images, preprocess) for images in halves]
    assert scores["untrained backbone"] == knn(*(tensor for half in features for tensor in (half.X, half.labels))).accuracy


def test_is_a_function_of_the_seed(halves, preprocess):
    def run(seed):
        return evaluate(small(), small(), preprocess, *halves, seed=seed, probes=("linear", "knn", "few-shot")).scores

    assert run(1) == run(1) != run(2)


def test_only_the_probes_and_features_that_are_asked_for(halves, preprocess):
    told = []
    scores = evaluate(nn.Flatten(), None, preprocess, *halves, probes=("knn",), baselines=False, progress=told.append).scores
    assert [(score.features, score.probe) for score in scores] == [("backbone", "kNN")]
    assert told == ["features of the backbone", "knn: backbone"]


def test_an_unknown_probe_is_answered_before_any_work(halves, preprocess):
    with pytest.raises(UserError, match="unknown probe 'kn'; choose from few-shot, knn, linear, linear-sgd"):
        evaluate(nn.Flatten(), None, preprocess, *halves, probes=("kn",))


def test_a_model_without_a_recipe_says_that_it_has_no_untrained_twin(halves, preprocess):
    result = evaluate(nn.Flatten(), None, preprocess, *halves, probes=("knn",))
    assert {score.features for score in result.scores} == {"backbone", "raw pixels"}
    (note,) = result.left_out
    assert note.startswith("untrained backbone")


def test_without_training_labels_everything_is_skipped_with_the_reason(halves, preprocess):
    train, test = halves
    result = evaluate(nn.Flatten(), None, preprocess, unlabelled(train), test)
    assert result.scores == ()
    assert result.left_out == ("all scores: the training images have no labels",)


def test_without_test_labels_everything_is_skipped_with_the_reason(halves, preprocess):
    train, test = halves
    assert evaluate(nn.Flatten(), None, preprocess, train, unlabelled(test)).left_out == ("all scores: the test images have no labels",)


def test_one_class_is_skipped_with_the_reason(halves, preprocess):
    train, test = halves
    one = replace(train, labels=torch.zeros_like(train.labels))
    assert "all of one class" in evaluate(nn.Flatten(), None, preprocess, one, test).left_out[0]


def test_unlabelled_images_are_named_and_not_counted_as_wrong(halves, preprocess):
    train, test = halves
    options = {"probes": ("linear", "knn", "few-shot"), "baselines": False}
    partly = evaluate(nn.Flatten(), None, preprocess, unlabelled(train, slice(0, 7)), unlabelled(test, slice(0, 250)), **options)
    assert partly.left_out == ("7 of 300 training images: they have no label", "250 of 300 test images: they have no label")
    rest = replace(test, pixels=test.pixels[250:], labels=test.labels[250:], names=test.names[250:])
    whole = evaluate(nn.Flatten(), None, preprocess, unlabelled(train, slice(0, 7)), rest, **options)
    for a, b in zip(partly.scores, whole.scores, strict=True):
        assert a.accuracy == pytest.approx(b.accuracy)
    assert partly.scores[1].accuracy > 0.7


def test_a_backbone_that_changes_itself_is_refused(halves, preprocess):
    class Drifts(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(64))

        def forward(self, images):
            self.mean.lerp_(images.flatten(1).mean(0), 0.1)
            return images.flatten(1) - self.mean

    with pytest.raises(AssertionError, match="Drifts changed its own"):
        evaluate(Drifts(), None, preprocess, *halves)


def test_raw_pixels_of_large_images_say_their_size(halves):
    scores = evaluate(nn.Flatten(), None, Preprocess(1, 40, (0.3,), (0.4,)), *halves, probes=("knn",)).scores
    assert [score.features for score in scores] == ["backbone", "raw pixels (32 px)"]


def test_top_five_is_a_score_of_its_own_where_there_are_many_classes(halves, preprocess):
    train, test = (replace(images, labels=images.labels + 10 * (torch.arange(300) % 2)) for images in halves)
    scores = evaluate(nn.Flatten(), None, preprocess, train, test, probes=("linear", "knn"), baselines=False).scores
    found = {score.probe: score.accuracy for score in scores}
    assert list(found) == ["linear (full batch)", "linear (full batch), top 5", "kNN", "kNN, top 5"]
    assert found["kNN"] < 0.7 < 0.85 < found["kNN, top 5"]  # each digit has two names, drawn by lot


def test_unreadable_images_are_counted_and_left_out(tmp_path):
    rng = np.random.default_rng(0)
    for i in range(30):
        folder = tmp_path / f"{i % 2}"
        folder.mkdir(exist_ok=True)
        Image.fromarray(rng.integers(0, 128, (8, 8), dtype=np.uint8) + 100 * np.uint8(i % 2)).save(folder / f"{i:02}.png")
    (tmp_path / "0" / "99.png").write_text("no image")
    images = open_images(str(tmp_path))["all"]
    preprocess = Preprocess(1, 8, (0.5,), (0.5,))
    result = evaluate(nn.Flatten(), None, preprocess, images, images, probes=("knn",), baselines=False, decode_errors=DecodeErrors())
    assert (result.train_images, result.test_images) == (30, 30)
    assert result.left_out == ("1 images: they cannot be read",)


def test_table_has_a_row_a_probe_and_a_column_a_kind_of_features(result):
    console = Console(width=200)
    with console.capture() as capture:
        console.print(table(result))
    text = capture.get()
    assert all(name in text for name in (*PROBE_NAMES, "backbone", "raw pixels", "untrained backbone"))
    assert "± " in text
    assert "n = 20 draws" in text
    assert f"{result.scores[0].accuracy:.1%}" in text


def test_a_part_of_the_features_is_judged_by_every_probe_as_a_network_of_just_that_part_would_be(halves, preprocess):
    class Part(nn.Module):
        def __init__(self, network, dimensions):
            super().__init__()
            self.network, self.dimensions = network, dimensions

        def forward(self, images):
            return self.network(images)[:, self.dimensions]

    for dimensions, name in ((slice(40), "[:40]"), (slice(40, None), "[40:]"), (slice(8, 40), "[8:40]")):
        found = evaluate(small(), small(), preprocess, *halves, dimensions=dimensions).scores
        wanted = evaluate(Part(small(), dimensions), Part(small(), dimensions), preprocess, *halves).scores
        parted = {"backbone": f"backbone{name}", "untrained backbone": f"untrained backbone{name}"}
        assert [score.features for score in found] == [parted.get(score.features, "raw pixels") for score in wanted]
        assert [replace(score, features="") for score in found] == [replace(score, features="") for score in wanted]


@pytest.mark.parametrize(
    ("dimensions", "words"),
    [(slice(65), ":65"), (slice(64, None), "64:"), (slice(5, 5), "5:5"), (slice(-3, None), "-3:"), (slice(None, None, 2), "::2")],
)
def test_dimensions_that_the_features_have_not_are_refused(halves, preprocess, dimensions, words):
    with pytest.raises(UserError, match=f"^dimensions {words} of features that have 64; give a range within 0:64, such as :16$"):
        evaluate(nn.Flatten(), None, preprocess, *halves, dimensions=dimensions)
