import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from torch import nn

from fullrank.errors import UserError
from fullrank.evaluation import (
    Evaluation,
    calibrate_batchnorm,
    evaluate_backbone,
    extract_features,
    knn,
    score_tables,
    state_hash,
)
from fullrank.evaluation.names import flag_name
from fullrank.evaluation.protocol import DEFAULT_PROBES, KnnProtocol
from fullrank.images import Preprocess, open_images

SCORES = ["linear (full batch)", "linear (SGD)", "kNN", "linear, 2 labels per class"]


def small_network():
    """Return a small untrained network for digits, with the initial statistics of BatchNorm."""
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
    return evaluate_backbone(
        small_network(), small_network(), preprocess, *halves, model="runs/digits", statement="300 train, 300 test"
    )


def test_result_is_the_content_of_evaluation_json(result):
    assert (result.model, result.train_images, result.test_images) == ("runs/digits", 300, 300)
    assert (result.statement, result.left_out) == ("300 train, 300 test", ())
    assert Evaluation.from_json(json.loads(json.dumps(result.to_json()))) == result
    for score in result.scores:
        assert 0 <= score.accuracy <= 1
        assert (score.n, score.sd is None) == ((20, False) if "labels" in score.probe else (1, True))


def test_every_probe_scores_every_feature_set(result):
    pairs = [(score.features, score.probe) for score in result.scores]
    assert pairs == [
        (features, probe) for features in ("backbone", "raw pixels", "untrained backbone") for probe in SCORES
    ]
    assert tuple(flag_name(probe) for probe in SCORES) == DEFAULT_PROBES


def test_raw_pixels_of_digits_have_a_plausible_accuracy(result):
    scores = {score.probe: score.accuracy for score in result.scores if score.features == "raw pixels"}
    assert all(0.75 < scores[probe] < 0.97 for probe in SCORES[:3])
    assert 0.4 < scores[SCORES[3]] < 0.85


def test_only_the_untrained_backbone_is_calibrated(halves, preprocess):
    backbone, untrained = small_network(), small_network()
    before = state_hash(backbone)
    result = evaluate_backbone(backbone, untrained, preprocess, *halves, probes=("knn",))
    assert state_hash(backbone) == before
    expected = calibrate_batchnorm(
        small_network(), halves[0], preprocess, batch_size=512, generator=torch.Generator().manual_seed(0)
    )
    assert state_hash(untrained) == state_hash(expected) != before
    scores = {score.features: score.accuracy for score in result.scores}
    features = [extract_features(expected, images, preprocess) for images in halves]
    assert (
        scores["untrained backbone"] == knn(*(tensor for half in features for tensor in (half.X, half.labels))).accuracy
    )


def test_evaluation_is_a_function_of_the_seed(halves, preprocess):
    def run(seed):
        return evaluate_backbone(
            small_network(), small_network(), preprocess, *halves, seed=seed, probes=("linear", "knn", "few-shot")
        ).scores

    assert run(1) == run(1) != run(2)


def test_probes_and_baselines_are_selected(halves, preprocess):
    lines = []
    scores = evaluate_backbone(
        nn.Flatten(), None, preprocess, *halves, probes=("knn",), baselines=False, progress=lines.append
    ).scores
    assert [(score.features, score.probe) for score in scores] == [("backbone", "kNN")]
    assert lines == ["features of the backbone", "knn: backbone"]


def test_an_unknown_probe_raises(halves, preprocess):
    with pytest.raises(UserError, match="unknown probe 'kn'; choose from few-shot, fractions, knn, linear,"):
        evaluate_backbone(nn.Flatten(), None, preprocess, *halves, probes=("kn",))


def test_without_an_untrained_backbone_that_baseline_is_left_out(halves, preprocess):
    result = evaluate_backbone(nn.Flatten(), None, preprocess, *halves, probes=("knn",))
    assert {score.features for score in result.scores} == {"backbone", "raw pixels"}
    (note,) = result.left_out
    assert note.startswith("untrained backbone")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda train, test: (unlabelled(train), test), "training images have no labels"),
        (lambda train, test: (train, unlabelled(test)), "test images have no labels"),
        (lambda train, test: (replace(train, labels=torch.zeros_like(train.labels)), test), "same class"),
    ],
)
def test_an_evaluation_that_scores_nothing_is_an_error(halves, preprocess, change, reason):
    with pytest.raises(UserError, match=reason):
        evaluate_backbone(nn.Flatten(), None, preprocess, *change(*halves))


def test_an_evaluation_without_probes_is_an_error(halves, preprocess):
    with pytest.raises(UserError, match="no probe, expected at least one of"):
        evaluate_backbone(nn.Flatten(), None, preprocess, *halves, probes=())


def test_the_majority_rate_is_that_of_the_labelled_test_images(halves, preprocess):
    train, test = halves
    labels = test.labels.clone()
    labels[:100], labels[100:160], labels[160:] = -1, 3, test.labels[160:] % 3
    result = evaluate_backbone(
        nn.Flatten(), None, preprocess, train, replace(test, labels=labels), probes=("knn",), baselines=False
    )
    assert result.majority == pytest.approx(max((labels == c).sum().item() for c in range(4)) / 200)
    console = Console(width=200)
    with console.capture() as capture:
        console.print(*score_tables(result, width=200))
    assert f"{result.majority:.1%}" in capture.get()


def test_unlabelled_images_are_reported_and_not_counted_as_errors(halves, preprocess):
    train, test = halves
    options = {"probes": ("linear", "knn", "few-shot"), "baselines": False}
    partial = evaluate_backbone(
        nn.Flatten(), None, preprocess, unlabelled(train, slice(0, 7)), unlabelled(test, slice(0, 250)), **options
    )
    assert partial.left_out == ("7 of 300 training images: unlabelled", "250 of 300 test images: unlabelled")
    labelled = replace(
        test, pixels=test.pixels[250:], labels=test.labels[250:], names=test.names[250:], groups=test.groups[250:]
    )
    whole = evaluate_backbone(nn.Flatten(), None, preprocess, unlabelled(train, slice(0, 7)), labelled, **options)
    for a, b in zip(partial.scores, whole.scores, strict=True):
        assert a.accuracy == pytest.approx(b.accuracy)
    assert partial.scores[1].accuracy > 0.7


def test_the_name_of_resized_raw_pixels_has_their_size(halves):
    scores = evaluate_backbone(nn.Flatten(), None, Preprocess(1, 40, (0.3,), (0.4,)), *halves, probes=("knn",)).scores
    assert [score.features for score in scores] == ["backbone", "raw pixels (32 px)"]


def test_top_five_is_a_separate_score_for_many_classes(halves, preprocess):
    train, test = (replace(images, labels=images.labels + 10 * (torch.arange(300) % 2)) for images in halves)
    scores = evaluate_backbone(
        nn.Flatten(), None, preprocess, train, test, probes=("linear", "knn"), baselines=False
    ).scores
    found = {score.probe: score.accuracy for score in scores}
    assert list(found) == ["linear (full batch)", "linear (full batch), top 5", "kNN", "kNN, top 5"]
    assert found["kNN"] < 0.7 < 0.85 < found["kNN, top 5"]  # each digit has two random labels


def test_unreadable_images_are_left_out_and_counted(tmp_path):
    rng = np.random.default_rng(0)
    for i in range(30):
        folder = tmp_path / f"{i % 2}"
        folder.mkdir(exist_ok=True)
        Image.fromarray(rng.integers(0, 128, (8, 8), dtype=np.uint8) + 100 * np.uint8(i % 2)).save(
            folder / f"{i:02}.png"
        )
    (tmp_path / "0" / "99.png").write_text("no image")
    images = open_images(str(tmp_path))["all"]
    preprocess = Preprocess(1, 8, (0.5,), (0.5,))
    result = evaluate_backbone(nn.Flatten(), None, preprocess, images, images, probes=("knn",), baselines=False)
    assert (result.train_images, result.test_images) == (30, 30)
    assert result.left_out == ("1 images: unreadable",)


def test_the_table_has_a_row_per_probe_and_a_column_per_feature_set(result):
    console = Console(width=200)
    with console.capture() as capture:
        console.print(*score_tables(result, width=200))
    text = capture.get()
    assert all(name in text for name in (*SCORES, "backbone", "raw pixels", "untrained backbone"))
    assert "± " in text
    assert "n = 20 repetitions" in text
    assert f"{result.scores[0].accuracy:.1%}" in text


@pytest.mark.parametrize("width", [80, 120])
def test_every_number_of_every_alternative_is_whole_in_a_terminal(result, width):
    long = "the weights begun with: timm:resnet18.a1_in1k"
    pixels = [
        replace(score, features=name)
        for name in (long, "run B")
        for score in result.scores
        if score.features == "raw pixels"
    ]
    console = Console(width=width)
    with console.capture() as capture:
        console.print(*score_tables(replace(result, scores=(*result.scores, *pixels)), width))
    text = capture.get()
    assert max(map(len, text.splitlines())) <= width
    for score in result.scores:
        assert f"{score.accuracy:.1%}" in text
        assert score.sd is not None or score.low is None or f"[{100 * score.low:.1f} {100 * score.high:.1f}]" in text
    assert "timm:resnet18.a1_in1k" in text


def test_dimensions_equal_a_network_with_only_these_outputs(halves, preprocess):
    class Part(nn.Module):
        def __init__(self, network, dimensions):
            super().__init__()
            self.network, self.dimensions = network, dimensions

        def forward(self, images):
            return self.network(images)[:, self.dimensions]

    for dimensions, name in ((slice(40), "[:40]"), (slice(40, None), "[40:]"), (slice(8, 40), "[8:40]")):
        found = evaluate_backbone(small_network(), small_network(), preprocess, *halves, dimensions=dimensions).scores
        expected = evaluate_backbone(
            Part(small_network(), dimensions), Part(small_network(), dimensions), preprocess, *halves
        ).scores
        names = {"backbone": f"backbone{name}", "untrained backbone": f"untrained backbone{name}"}
        assert [score.features for score in found] == [names.get(score.features, "raw pixels") for score in expected]
        assert [replace(score, features="") for score in found] == [replace(score, features="") for score in expected]


@pytest.mark.parametrize(
    ("dimensions", "words"),
    [
        (slice(65), ":65"),
        (slice(64, None), "64:"),
        (slice(5, 5), "5:5"),
        (slice(-3, None), "-3:"),
        (slice(None, None, 2), "::2"),
    ],
)
def test_invalid_dimensions_raise(halves, preprocess, dimensions, words):
    with pytest.raises(UserError, match=f"^dimensions is {words}, .*range within 0:64"):
        evaluate_backbone(nn.Flatten(), None, preprocess, *halves, dimensions=dimensions)


def test_the_new_probes_score_every_feature_set(halves, preprocess):
    probes, protocols = (
        ("linear-imagenet", "svm", "fractions"),
        {"linear-imagenet": {"epochs": 30}, "fractions": {"draws": 2}},
    )
    scores = evaluate_backbone(
        nn.Flatten(), small_network(), preprocess, *halves, probes=probes, protocols=protocols
    ).scores
    found = {(score.features, score.probe): score for score in scores}
    names = [
        "linear (Adam), epochs 30",
        "SVM",
        "linear, 1 % of the labels, draws 2",
        "linear, 10 % of the labels, draws 2",
    ]
    assert list(found) == [
        (features, name) for features in ("backbone", "raw pixels", "untrained backbone") for name in names
    ]
    assert [flag_name(name).split(",")[0] for name in names] == [
        "linear-imagenet",
        "svm",
        "fractions 1 %",
        "fractions 10 %",
    ]
    assert 0.6 < found["raw pixels", names[0]].accuracy < found["raw pixels", names[1]].accuracy < 0.97
    assert 0.3 < found["raw pixels", names[2]].accuracy < found["raw pixels", names[3]].accuracy < 0.85
    assert [(found["backbone", name].n, found["backbone", name].sd is None) for name in names] == [(1, True)] * 2 + [
        (2, False)
    ] * 2


def test_scores_have_the_numbers_of_their_protocol_and_what_was_chosen(few, preprocess):
    protocols = {
        "knn": KnnProtocol(k=5, temperature=0.5),
        "linear": {"penalties": [0.1, 0.01]},
        "few-shot": {"labels": [1, 3], "draws": 3},
    }
    options = {"baselines": False, "probes": ("linear", "knn", "few-shot"), "protocols": protocols}
    result = evaluate_backbone(nn.Flatten(), None, preprocess, *few, **options)
    linear, near, one, three = result.scores
    assert (linear.probe, linear.chosen["penalty"] in (0.1, 0.01)) == ("linear (full batch), penalties 0.1 0.01", True)
    assert (near.probe, near.protocol) == ("kNN, k 5, temperature 0.5", {"k": 5, "temperature": 0.5})
    X, y, X_test, y_test = (tensor for half in few for tensor in (half.pixels.flatten(1), half.labels))
    X, X_test = (preprocess.normalize(x.view(-1, 1, 8, 8)).flatten(1) for x in (X, X_test))
    assert near.accuracy == knn(X, y, X_test, y_test, k=5, temperature=0.5).accuracy
    assert (one.probe, one.protocol["labels"]) == ("linear, 1 label per class, draws 3", 1)
    assert (three.probe, three.protocol["labels"], three.n) == ("linear, 3 labels per class, draws 3", 3, 3)
    assert Evaluation.from_json(json.loads(json.dumps(result.to_json()))) == result


def test_the_numbers_of_a_protocol_reach_the_probe(few, preprocess):
    """Any number changes the predictions, so that no flag is without effect."""
    options = {"baselines": False, "probes": ("linear-sgd",)}

    def score(**numbers):
        numbers = {"epochs": 3, "lr": [0.5], "decay": [], "batch_size": 20, "standardize": False, **numbers}
        return (
            evaluate_backbone(nn.Flatten(), None, preprocess, *few, **options, protocols={"linear-sgd": numbers})
            .scores[0]
            .accuracy
        )

    usual = score()
    changes = (
        {"epochs": 1},
        {"lr": [1e-3]},
        {"batch_size": 60},
        {"momentum": 0.0},
        {"weight_decay": 1.0},
        {"standardize": True},
    )
    changes += ({"decay": [1], "decay_factor": 0.0}, {"views": 1}, {"limit_lr": True})
    assert [change for change in changes if score(**change) == usual] == []


def test_an_unknown_number_of_a_protocol_raises(few, preprocess):
    with pytest.raises(UserError, match="knn: there is no field 'neighbours'"):
        evaluate_backbone(nn.Flatten(), None, preprocess, *few, probes=("knn",), protocols={"knn": {"neighbours": 3}})


def test_augmented_passes_score_every_feature_set(few, preprocess):
    numbers, lines = {"epochs": 4, "batch_size": 10, "views": 2, "crop": [0.5, 1.0]}, []
    options = {"probes": ("linear-sgd",), "protocols": {"linear-sgd": numbers}, "progress": lines.append}
    scores = evaluate_backbone(small_network(), small_network(), preprocess, *few, **options).scores
    assert [score.features for score in scores] == ["backbone", "raw pixels", "untrained backbone"]
    assert {score.probe for score in scores} == {"linear (SGD), epochs 4, batch size 10, views 2, crop 0.5 1"}
    assert scores[1].accuracy > 0.3  # many flipped digits are no digits
    assert [line for line in lines if "augmented" in line and "raw" in line] == [
        f"features of augmented images: raw pixels, pass {number}" for number in (1, 2)
    ]


def test_intervals_contain_the_accuracies_and_comparisons_pair_the_feature_sets(result):
    for score in result.scores:
        assert 0 <= score.low <= score.accuracy <= score.high <= 1
    accuracies = {score.features: score.accuracy for score in result.scores if score.probe == SCORES[0]}
    assert [(each.probe, each.against) for each in result.comparisons] == [
        (SCORES[0], "raw pixels"),
        (SCORES[0], "untrained backbone"),
    ]
    for each in result.comparisons:
        assert each.difference == pytest.approx(accuracies["backbone"] - accuracies[each.against])
        assert each.low <= each.difference <= each.high
        assert each.units == 300
    assert result.verdict.split(":")[0] in ("Better", "Worse", "Undecided")


def test_classes_are_scored_one_by_one(result):
    score = next(score for score in result.scores if (score.features, score.probe) == ("raw pixels", "kNN"))
    assert sum(map(sum, score.confusion)) == 300
    assert sum(score.confusion[k][k] for k in range(10)) / 300 == pytest.approx(score.accuracy)
    assert score.balanced_accuracy == pytest.approx(sum(score.per_class.values()) / 10)
    assert 0.95 < score.auroc <= 1


def test_groups_of_test_images_widen_the_intervals(halves, preprocess):
    train, test = halves
    by_class = replace(test, groups=test.labels.clone())
    alone, grouped = (
        evaluate_backbone(nn.Flatten(), small_network(), preprocess, train, images, probes=("knn",))
        for images in (test, by_class)
    )
    assert [each.units for each in grouped.comparisons] == [10, 10]
    assert all(each.grouped for each in grouped.comparisons)
    assert grouped.scores[0].accuracy == alone.scores[0].accuracy
    assert grouped.scores[0].high - grouped.scores[0].low != alone.scores[0].high - alone.scores[0].low
    assert "10 groups of test images are too few" in grouped.verdict


def test_identical_features_are_undecided(halves, preprocess):
    result = evaluate_backbone(
        small_network(), None, preprocess, *halves, probes=("knn",), references={"twin": (small_network(), preprocess)}
    )
    twin = next(each for each in result.comparisons if each.against == "twin")
    assert (twin.difference, twin.low, twin.high) == (0, 0, 0)
