"""`fullrank.choose` on models whose order is known, its intervals against simulation, and the command."""

import csv
import io
import json

import numpy as np
import pytest
import torch
from scipy.stats import kendalltau
from torch import nn

import fullrank
from fullrank.choosing import MEASURES, choose
from fullrank.choosing.choose import _embed_views, _sample
from fullrank.choosing.halves import deviations, margin, random_halves
from fullrank.errors import UserError
from fullrank.images import MemoryImages, Preprocess, load_images, open_images
from fullrank.loading import Model
from fullrank.methods import BackboneConfig
from fullrank.report.choosing import render, summary_tables, write_choice


class Chaos(nn.Module):
    """Features that change completely when a pixel changes a little."""

    def forward(self, images):
        X = images.flatten(1)
        return torch.sin(1e4 * X @ torch.randn(X.shape[1], 20, generator=torch.Generator().manual_seed(0)))


def model(name, network):
    return Model(name, network, Preprocess(1, 8, (0.0,), (1.0,)), BackboneConfig(), untrained=nn.Flatten)


PIXELS, CHAOS = model("pixels", nn.Flatten()), model("<chaos>", Chaos())
AGAIN = model("pixels again", nn.Sequential(nn.Flatten(), nn.Linear(64, 64)))
with torch.no_grad():  # a rotation changes no measure
    AGAIN.backbone[1].weight.copy_(torch.linalg.qr(torch.randn(64, 64, generator=torch.Generator().manual_seed(0)))[0])
    AGAIN.backbone[1].bias.zero_()


@pytest.fixture(scope="module")
def digits():
    return load_images(open_images("digits")["all"].subset(range(400)), channels=1)


@pytest.fixture(scope="module")
def choice(digits):
    return choose([CHAOS, PIXELS, AGAIN], digits, labelled=digits, images=150)


def test_intervals_of_halves_cover_the_mean():
    generator, covered = np.random.default_rng(0), 0
    groups = np.full(60, -1)
    for i in range(300):
        x = generator.standard_normal(60)
        covered += abs(x.mean()) < margin(deviations(lambda half, x=x: x[half].mean(), groups, seed=i))
    assert 0.90 < covered / 300 < 0.985


def test_a_half_does_not_split_a_group():
    groups = np.repeat(np.arange(10), 4)
    for half in random_halves(groups, halves=20):
        assert half.sum() == 20
        assert set(half.reshape(10, 4).sum(axis=1)) <= {0, 4}


def test_stable_features_rank_above_chaos_and_equal_ones_are_tied(choice):
    assert choice.names == ["<chaos>", "pixels", "pixels again"]
    assert choice.ranks("graph_stability") == [(3, 3), (1, 2), (1, 2)]
    assert choice.ranks("agreement") == [(3, 3), (1, 2), (1, 2)]
    assert choice.chosen is None
    assert "not told apart from" in choice.verdict


def test_a_clear_winner_is_chosen(digits):
    found = choose([CHAOS, PIXELS], digits, images=150)
    assert found.chosen == "pixels"
    assert "the next, <chaos>" in found.verdict
    assert found.labelled is None
    assert any("dimensions" in remark for remark in found.remarks)


def test_all_models_receive_the_same_views_whatever_the_batch(digits):
    parts = _sample({"train": digits, "test": digits}, 120, seed=3)
    assert sum(map(len, parts.values())) == 120
    whole, groups = _embed_views(PIXELS, parts, torch.device("cpu"), seed=1, batch_size=500, decode_errors=None)
    pieces, _ = _embed_views(PIXELS, parts, torch.device("cpu"), seed=1, batch_size=7, decode_errors=None)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(whole, pieces, strict=True))
    assert len(groups) == 120
    assert not torch.equal(whole.first, whole.second)


def test_equal_features_have_a_difference_of_nothing(digits):
    found = choose([PIXELS, model("copy", nn.Flatten())], digits, images=100)
    assert all(found.difference(key, 0, 1) == (0, 0) for key in MEASURES)
    assert found.chosen is None


def test_labels_check_the_order(choice, digits):
    order = choice.labelled
    expected = fullrank.evaluate(PIXELS, digits, probes=["linear", "knn"], baselines=False)
    accuracies = {probe: order.accuracies(probe) for probe in ("linear", "kNN")}
    assert [round(values[1], 6) for values in accuracies.values()] == [round(score.accuracy, 6) for score in expected.scores]
    assert all(low <= value <= high for value, (low, high) in zip(accuracies["linear"], order.intervals("linear"), strict=True))
    found = order.agreement(choice, "idest", "kNN")
    values = [-candidate.values["idest"] for candidate in choice.candidates]
    assert np.isclose(found.tau, kendalltau(values, accuracies["kNN"]).statistic)
    assert found.interval[0] <= found.interval[1]
    assert 0 not in order.best("linear")
    assert "Kendall's τ" in order.verdict(choice)


def test_groups_of_test_images_widen_the_intervals(digits):
    groups = torch.arange(400) // 8
    grouped = MemoryImages(digits.pixels, digits.labels, digits.names, digits.classes, groups)
    found = choose([PIXELS, AGAIN], grouped, labelled=grouped, images=100)
    assert len(set(found.labelled.groups.tolist())) < found.labelled.test_images


def test_page_json_and_table(choice, tmp_path):
    page = write_choice(choice, tmp_path / "choice.html").read_text()
    assert "<chaos>" not in page
    assert "data:image" not in page
    for section in ("Measures without labels", "With labels", "Spectra", "What these measures cannot say"):
        assert f"<h2>{section}</h2>" in page
    tree = json.loads(write_choice(choice, tmp_path / "choice.json").read_text())
    assert tree["models"][1]["measures"]["graph_stability"]["ranks"] == [1, 2]
    assert len(tree["models"][1]["eigenvalues"]) == 64
    rows = list(csv.DictReader(io.StringIO(choice.to_csv())))
    assert len(rows) == 3 * len(MEASURES)
    assert all(float(row["low"]) <= float(row["value"]) <= float(row["high"]) for row in rows)
    assert [len(table.rows) for table in summary_tables(choice)] == [3, 3]
    with pytest.raises(UserError, match="exists already"):
        write_choice(choice, tmp_path / "choice.json")
    assert "With labels</h2>" not in render(choose([CHAOS, PIXELS], choice_images(), images=64))


def choice_images():
    return load_images(open_images("digits")["all"].subset(range(70)), channels=1)


@pytest.mark.parametrize(
    ("models", "arguments", "problem"),
    [
        ([PIXELS], {}, "two or more"),
        ("timm:resnet18", {}, "two or more"),
        ([PIXELS, PIXELS], {}, "given twice"),
        ([PIXELS, CHAOS], {"images": 10}, "images is 10"),
        ([PIXELS, CHAOS], {"data": torch.zeros(20, 1, 8, 8, dtype=torch.uint8)}, "20 readable images"),
        ([PIXELS, model("nan", nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64, eps=float("nan"))))], {}, "not finite"),
    ],
)
def test_bad_arguments_are_user_errors(digits, models, arguments, problem):
    with pytest.raises(UserError, match=problem):
        choose(models, **({"data": digits, "images": 70} | arguments))


def test_the_command(run, tmp_path, capsys):
    from fullrank.cli import main

    first = f"{run.path}@{run.checkpoints[0].step}"
    command = ["choose", str(run.path), first, "--labelled", "digits", "--images", "100"]
    out = [str(tmp_path / name) for name in ("choice.html", "choice.json")]
    assert main([*command, "--out", *out]) == 0
    printed = capsys.readouterr().out
    assert json.loads((tmp_path / "choice.json").read_text())["verdict"] in printed
    assert "Kendall" in printed or "most accurate" in printed
    for wrong, problem in (
        (["choose", str(run.path)], "two or more"),
        ([*command, "--out", *out], "exists already"),
        ([*command, "--out", "a.png"], ".html, .json or .csv"),
        (["choose", str(run.path), "no/such/run"], "is no run directory"),
        ([*command, "--images", "5"], "images is 5"),
    ):
        assert main(wrong) == 2
        assert problem in capsys.readouterr().err
