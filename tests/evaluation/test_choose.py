"""`fullrank.choose` on models whose order is known, and its intervals against simulation."""

import csv
import io
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from scipy.stats import kendalltau
from torch import nn

import fullrank
from fullrank.errors import UserError
from fullrank.evaluation.choice import MEASURES, graph_stability, margin
from fullrank.evaluation.choose import embed_views, random_halves, sample_parts
from fullrank.images import DecodeErrors, Device, MemoryImages, Preprocess, Reading
from fullrank.methods import BackboneConfig
from fullrank.models import Model


class Brightness(nn.Module):
    """Features of the mean brightness alone, which views change little; a rotation changes no measure."""

    def __init__(self, *, rotated=False):
        super().__init__()
        random = torch.randn(20, 20, generator=torch.Generator().manual_seed(0))
        self.basis = torch.linalg.qr(random)[0] if rotated else torch.eye(20)

    def forward(self, images):
        return torch.exp(-(((images.mean((1, 2, 3))[:, None] - torch.linspace(0, 1, 20)) / 0.1) ** 2)) @ self.basis


class Chaos(nn.Module):
    """Features that change completely when a pixel changes a little."""

    def forward(self, images):
        X = images.flatten(1)
        return torch.sin(1e4 * X @ torch.randn(X.shape[1], 20, generator=torch.Generator().manual_seed(0)))


class Constant(nn.Module):
    """Features that are equal for all images."""

    def __init__(self, value):
        super().__init__()
        self.value = value

    def forward(self, images):
        return torch.full((len(images), 20), self.value)


def model(name, network):
    return Model(name, network, Preprocess(1, 8, (0.0,), (1.0,)), BackboneConfig())


STABLE, CHAOS = model("stable", Brightness()), model("<chaos>", Chaos())
AGAIN = model("stable again", Brightness(rotated=True))


@pytest.fixture(scope="module")
def images():
    """Images of one grey each, labelled dark or bright."""
    levels = torch.rand(400, generator=torch.Generator().manual_seed(0))
    pixels = (20 + 220 * levels).byte()[:, None, None, None].expand(400, 1, 8, 8).contiguous()
    return MemoryImages(pixels, (levels > 0.5).long(), tuple(f"{i}.png" for i in range(400)), ("dark", "bright"))


@pytest.fixture(scope="module")
def choice(images):
    return fullrank.choose([CHAOS, STABLE, AGAIN], images, labelled=images, images=200)


def test_graph_stability_counts_common_neighbours():
    X, Y = torch.randn(2, 50, 6, generator=torch.Generator().manual_seed(0))
    cosines = [torch.nn.functional.cosine_similarity(Z[:, None], Z[None], dim=2).fill_diagonal_(-9) for Z in (X, Y)]
    sets = [[set(row.topk(7).indices.tolist()) for row in S] for S in cosines]
    expected = np.mean([len(a & b) / 7 for a, b in zip(*sets, strict=True)])
    assert graph_stability(X, Y, k=7) == pytest.approx(expected)
    assert graph_stability(X, X + 1e-6 * Y, k=7) > 0.98
    with pytest.raises(UserError):
        graph_stability(X, Y, k=50)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_equal_features_have_the_stability_of_independent_graphs(value):
    X = torch.full((434, 20), value)
    assert graph_stability(X, X, k=10) == pytest.approx(10 / 433, rel=0.2)


def test_intervals_of_halves_cover_the_mean_and_do_not_split_groups():
    rng, covered = np.random.default_rng(0), 0
    for seed in range(300):
        x = rng.standard_normal(60)
        values = np.array([x[half].mean() for half in random_halves(np.full(60, -1), seed=seed)])
        covered += abs(x.mean()) < margin(values - values.mean())
    assert 0.90 < covered / 300 < 0.985
    for half in random_halves(np.repeat(np.arange(10), 4)):
        assert half.sum() == 20
        assert set(half.reshape(10, 4).sum(1)) <= {0, 4}
    assert {int(half.sum()) for half in random_halves(np.repeat(np.arange(3), 2))} == {2, 4}


def test_stable_features_rank_above_chaos_and_equal_ones_are_tied(choice, images):
    for key in ("graph_stability", "agreement"):
        assert choice.ranks(key) == [(3, 3), (1, 2), (1, 2)]
    assert choice.chosen is None
    assert "does not differ from" in choice.verdict
    found = fullrank.choose([CHAOS, STABLE], images, images=200)
    assert (found.chosen, found.labelled) == ("stable", None)
    assert "By RankMe, <chaos> is better." in found.remarks


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_a_collapsed_network_never_wins(images, value):
    found = fullrank.choose([model("dead", Constant(value)), CHAOS], images, images=200)
    assert found.chosen != "dead"
    assert found.candidates[0].values["graph_stability"] < 0.2


def test_all_models_receive_the_same_views_whatever_the_batch(images):
    parts = sample_parts({"train": images, "test": replace(images, groups=torch.arange(400) // 10)}, 120, seed=3)
    devices = (Device(batch_size=size, accelerator="cpu") for size in (500, 7))
    how = {"seed": 1, "notify": print}
    (whole, groups), (pieces, _) = (embed_views(STABLE, parts, each, DecodeErrors(), **how) for each in devices)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(whole, pieces, strict=True))
    assert len(groups) == len(whole.X) == 120
    assert not torch.equal(whole.first, whole.second)


def test_labels_check_the_order(choice, images):
    order, expected = choice.labelled, fullrank.evaluate(STABLE, images, probes=["linear", "knn"], baselines=False)
    stable = [score for score in order.scores if score.features == "stable"]
    assert [(s.probe, s.value) for s in stable] == [(p, expected.find(p).value) for p in ("linear", "knn")]
    assert all(score.low <= score.value <= score.high for score in order.scores)
    assert "<chaos>" not in order.best
    accuracies = [next(s.value for s in order.scores if s.features == name) for name in choice.names]
    stability = [each.values["graph_stability"] for each in choice.candidates]
    assert order.tau == pytest.approx(kendalltau(stability, accuracies).statistic)
    assert "Kendall's τ" in choice.verdict


def test_the_files_and_the_table_have_all_numbers(choice, tmp_path):
    for name in ("choice.json", "choice.csv"):
        choice.save(tmp_path / name)
        with pytest.raises(UserError, match="exists"):
            choice.save(tmp_path / name)
    tree = json.loads((tmp_path / "choice.json").read_text())
    assert tree["verdict"] == choice.verdict
    assert len(tree["labelled"]["scores"]) == 6
    rows = list(csv.DictReader((tmp_path / "choice.csv").read_text().splitlines()))
    assert len(rows) == len(tree["measures"]) == 3 * len(MEASURES)
    assert all(float(row["low"]) <= float(row["value"]) <= float(row["high"]) for row in rows)
    Console(file=(shown := io.StringIO()), width=120).print(choice)
    assert all(f"{each.values[key]:.3g}" in shown.getvalue() for each in choice.candidates for key in MEASURES)
    with pytest.raises(UserError, match="expected"):
        choice.save(tmp_path / "choice.png")


@pytest.mark.parametrize(
    ("models", "arguments", "problem"),
    [
        ([STABLE], {}, "two or more"),
        ("timm:resnet18", {}, "two or more"),
        ([STABLE, STABLE], {}, "given twice"),
        ([STABLE, CHAOS], {"images": 10}, "images is 10"),
        ([STABLE, CHAOS], {"data": torch.zeros(20, 1, 8, 8, dtype=torch.uint8)}, "20 readable images"),
        ([STABLE, model("nan", Constant(torch.nan))], {}, "not finite"),
    ],
)
def test_bad_arguments_are_user_errors(images, models, arguments, problem):
    with pytest.raises(UserError, match=problem):
        fullrank.choose(models, **({"data": images, "images": 70} | arguments))


def test_groups_that_leave_a_half_without_images_are_refused(images):
    one_large = replace(images, groups=torch.tensor([0] * 380 + list(range(1, 21))))
    with pytest.raises(UserError, match="in few groups"):
        fullrank.choose([CHAOS, STABLE], one_large)


def test_splits_of_labelled_images_are_those_of_the_probes(images, tmp_path):
    for i, (pixels, label) in enumerate(zip(images.pixels, images.labels, strict=True)):
        folder = tmp_path / ("train", "val")[i % 2] / images.classes[int(label)]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[0].numpy()).save(folder / f"{i}.png")
    reading = Reading(train="val", test="train")
    found = fullrank.choose([CHAOS, STABLE], labelled=tmp_path, reading=reading, images=200)
    assert "val" in found.labelled.data
