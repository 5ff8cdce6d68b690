"""`fullrank.choose` on models whose order is known, its intervals against simulation, and the command."""

import csv
import io
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console
from scipy.stats import kendalltau
from torch import nn

import fullrank
from fullrank.errors import UserError
from fullrank.evaluation.choosing import MEASURES, choose
from fullrank.evaluation.choosing.choose import _embed_views, _sample
from fullrank.evaluation.choosing.halves import deviations, margin, random_halves
from fullrank.evaluation.choosing.labelled import concordance
from fullrank.evaluation.graph_stability import graph_stability
from fullrank.images import MemoryImages, Preprocess
from fullrank.methods import BackboneConfig
from fullrank.models import Model
from fullrank.report.choosing import summary_tables, write_choice


class Brightness(nn.Module):
    """Features of the mean brightness alone, which views change little."""

    def forward(self, images):
        return torch.exp(-(((images.mean((1, 2, 3))[:, None] - torch.linspace(0, 1, 20)) / 0.1) ** 2))


class Chaos(nn.Module):
    """Features that change completely when a pixel changes a little."""

    def forward(self, images):
        X = images.flatten(1)
        return torch.sin(1e4 * X @ torch.randn(X.shape[1], 20, generator=torch.Generator().manual_seed(0)))


class Rotated(nn.Module):
    """The features of brightness in another basis, which no measure sees."""

    def forward(self, images):
        return (
            Brightness()(images) @ torch.linalg.qr(torch.randn(20, 20, generator=torch.Generator().manual_seed(0)))[0]
        )


class Broken(nn.Module):
    """Features that are not finite."""

    def forward(self, images):
        return images.flatten(1) / 0


def model(name, network):
    return Model(name, network, Preprocess(1, 8, (0.0,), (1.0,)), BackboneConfig(), untrained=nn.Flatten)


STABLE, CHAOS, AGAIN = model("stable", Brightness()), model("<chaos>", Chaos()), model("stable again", Rotated())


@pytest.fixture(scope="module")
def images():
    """Images of one grey each, labelled dark or bright."""
    levels = torch.rand(400, generator=torch.Generator().manual_seed(0))
    pixels = (20 + 220 * levels).byte()[:, None, None, None].expand(400, 1, 8, 8).contiguous()
    names = tuple(f"{i}.png" for i in range(400))
    return MemoryImages(pixels, (levels > 0.5).long(), names, ("dark", "bright"))


@pytest.fixture(scope="module")
def choice(images):
    return choose([CHAOS, STABLE, AGAIN], images, labelled=images, images=200)


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
    assert choice.names == ["<chaos>", "stable", "stable again"]
    for key in ("graph_stability", "agreement"):
        assert choice.ranks(key) == [(3, 3), (1, 2), (1, 2)]
    assert choice.chosen is None
    assert "not told apart from" in choice.verdict


def test_a_measure_of_which_less_is_better_ranks_the_lower_value_first(choice):
    values = [candidate.values["idest"] for candidate in choice.candidates]
    assert values[1] < 3 < values[0]
    assert choice.ranks("idest")[0] == (3, 3)


def test_a_clear_winner_is_chosen(images):
    found = choose([CHAOS, STABLE], images, images=200)
    assert found.chosen == "stable"
    assert "the next, <chaos>" in found.verdict
    assert found.labelled is None
    assert "By RankMe, <chaos> is better." in found.remarks


def test_all_models_receive_the_same_views_whatever_the_batch(images):
    parts = _sample({"train": images, "test": images}, 120, seed=3)
    assert sum(map(len, parts.values())) == 120
    whole, groups = _embed_views(
        STABLE, parts, torch.device("cpu"), separate=False, seed=1, batch_size=500, decode_errors=None
    )
    pieces, _ = _embed_views(
        STABLE, parts, torch.device("cpu"), separate=False, seed=1, batch_size=7, decode_errors=None
    )
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(whole, pieces, strict=True))
    assert len(groups) == 120
    assert not torch.equal(whole.first, whole.second)


def test_equal_features_have_a_difference_of_nothing(images):
    found = choose([STABLE, model("copy", Brightness())], images, images=100)
    assert all(found.difference(key, 0, 1) == (0, 0) for key in MEASURES)
    assert found.chosen is None


def test_labels_check_the_order(choice, images):
    order = choice.labelled
    expected = fullrank.evaluate(STABLE, images, probes=["linear", "knn"], baselines=False)
    assert order.train_images == 320
    accuracies = {probe: order.accuracies(probe) for probe in ("linear", "kNN")}
    assert [round(values[1], 6) for values in accuracies.values()] == [
        round(score.accuracy, 6) for score in expected.scores
    ]
    assert all(
        low <= value <= high for value, (low, high) in zip(accuracies["linear"], order.intervals("linear"), strict=True)
    )
    found = order.agreement(choice, "idest", "kNN")
    values = [-candidate.values["idest"] for candidate in choice.candidates]
    assert np.isclose(found.chance, kendalltau(values, accuracies["kNN"], alternative="greater").pvalue)
    x, y = np.random.default_rng(0).permuted(np.tile(np.arange(7.0), (2, 1)), axis=1)
    assert np.isclose(
        concordance(x[None], y[None])[0], kendalltau(x, y).statistic
    )  # without ties, all versions of τ agree
    assert found.interval[0] <= found.interval[1]
    assert order.best("linear")[0] != 0
    assert "Kendall's τ" in order.verdict(choice)


def test_groups_stay_with_their_test_images(images):
    groups = torch.arange(400) // 8
    grouped = MemoryImages(images.pixels, images.labels, images.names, images.classes, groups)
    found = choose([CHAOS, AGAIN], grouped, labelled=grouped, images=100).labelled
    assert len(set(found.groups.tolist())) < found.test_images


def test_page_json_and_table(choice, tmp_path):
    tree = json.loads(write_choice(choice, tmp_path / "choice.json").read_text())
    assert tree["models"][1]["measures"]["graph_stability"]["ranks"] == [1, 2]
    assert len(tree["models"][1]["eigenvalues"]) == 20
    rows = list(csv.DictReader(io.StringIO(choice.to_csv())))
    assert len(rows) == 3 * len(MEASURES)
    assert all(float(row["low"]) <= float(row["value"]) <= float(row["high"]) for row in rows)
    assert [len(table.rows) for table in summary_tables(choice)] == [3, 3, 3]
    shown = io.StringIO()
    for table in summary_tables(choice):
        Console(file=shown, width=80).print(table)
    words = shown.getvalue().replace("│", " ").replace("┃", " ").split()
    for key, measure in MEASURES.items():
        assert set(measure.name.split()) <= set(words), "names of measures are whole at 80 columns"
        assert all(f"{candidate.values[key]:.3g}" in words for candidate in choice.candidates)
    with pytest.raises(UserError, match="exists already"):
        write_choice(choice, tmp_path / "choice.json")


@pytest.mark.parametrize(
    ("models", "arguments", "problem"),
    [
        ([STABLE], {}, "two or more"),
        ("timm:resnet18", {}, "two or more"),
        ([STABLE, STABLE], {}, "given twice"),
        ([STABLE, CHAOS], {"images": 10}, "images is 10"),
        ([STABLE, CHAOS], {"data": torch.zeros(20, 1, 8, 8, dtype=torch.uint8)}, "20 readable images"),
        ([STABLE, model("nan", Broken())], {}, "not finite"),
    ],
)
def test_bad_arguments_are_user_errors(images, models, arguments, problem):
    with pytest.raises(UserError, match=problem):
        choose(models, **({"data": images, "images": 70} | arguments))


def test_the_command(run, tmp_path, capsys):
    from fullrank.cli import main

    first = f"{run.path}@{run.checkpoints[0].step}"
    command = ["choose", str(run.path), first, "--labelled", "digits", "--images", "100"]
    out = [str(tmp_path / name) for name in ("choice.csv", "choice.json")]
    assert main([*command, "--out", *out]) == 0
    printed = capsys.readouterr().out
    assert json.loads((tmp_path / "choice.json").read_text())["verdict"] in printed
    assert "Kendall" in printed or "most accurate" in printed
    for wrong, problem in (
        (["choose", str(run.path)], "two or more"),
        ([*command, "--out", *out], "exists already"),
        ([*command, "--out", "a.png"], ".json or .csv"),
        (["choose", str(run.path), "no/such/run"], "is no run directory"),
        ([*command, "--images", "5"], "images is 5"),
    ):
        assert main(wrong) == 2
        assert problem in capsys.readouterr().err


class Dead(nn.Module):
    """Features that are equal for all images."""

    def forward(self, images):
        return torch.zeros(len(images), 20)


def test_a_network_whose_features_are_all_equal_is_never_best(images):
    choice = choose([model("dead", Dead()), CHAOS], images, images=200)
    assert choice.chosen != "dead"
    assert choice.candidates[0].values["graph_stability"] < 0.2
    assert choice.ranks("idest")[1][0] == 1


@pytest.mark.parametrize("n", [200, 434, 930])
def test_equal_features_have_the_stability_of_independent_graphs(n):
    for X in (torch.zeros(n, 20), torch.ones(n, 20)):
        assert graph_stability(X, X, k=10) == pytest.approx(10 / (n - 1), rel=0.2)


def test_groups_that_leave_a_half_without_images_are_refused(images):
    one_large = replace(images, groups=torch.tensor([0] * 380 + list(range(1, 21))))
    with pytest.raises(UserError, match=r"a random half of the groups of .* has .* images, expected at least 32"):
        choose([CHAOS, STABLE], one_large)


def test_the_halves_of_an_odd_number_of_groups_take_turns():
    assert {int(half.sum()) for half in random_halves(np.repeat(np.arange(3), 2))} == {2, 4}


def test_groups_of_other_sources_are_other_groups(images):
    part = replace(images, groups=torch.arange(400) // 10)
    _, groups = _embed_views(
        STABLE, {"a": part, "b": part}, torch.device("cpu"), separate=True, seed=0, batch_size=500, decode_errors=None
    )
    assert len(np.unique(groups)) == 80
