"""Tables 2 and 3 and Fig. 4 on hand-made rows: plans, numbers, verdicts, drawings."""

import statistics
from dataclasses import asdict, replace

import pytest

from fullrank.recipes import ProbeConfig
from fullrank.sweep import OnlineScore, Row
from fullrank_papers.figures import load_figure
from fullrank_papers.figures.figure import evaluate
from fullrank_papers.figures.frossl import comparison as c
from fullrank_papers.figures.frossl import fig4, table2, table3
from fullrank_papers.figures.frossl.contenders import CONTENDERS
from fullrank_papers.figures.frossl.sizes import GPU_SIZE, LIGHTLY_SIZE, LONG, SMOKE_SIZE

NOISE = (0.000, 0.002, -0.001)
MARKS = (1.0, 3.0, 5.0, 10.0, 20.0)


def row(method, seed, accuracy, *, online=(), diverged=False):
    """Return the row of a run."""
    return Row(
        cell=f"{method}-{seed}",
        settings={"method": method},
        recipe="cifar10",
        objective=method,
        seed=seed,
        status="failed" if diverged else "done",
        diverged=diverged,
        error="the loss is not finite" if diverged else "",
        data="CIFAR-10",
        epochs=20.0,
        train_images=5000,
        seconds=70.0,
        scores={} if diverged else {"CIFAR-10": {"linear": accuracy, "knn": accuracy}},
        effective_rank={"backbone": 20.0, "projector": 80.0},
        online=tuple(OnlineScore(*score) for score in online),
    )


def as_result(rows):
    """Return the rows of a result."""
    found = [asdict(row) for row in rows]
    return {"rows": found, "cells": len(found)}


def campaign(levels, *, default=0.4, diverged=(), top5=False, runs=None):
    """Return a result in which each method has its level, and FroSSL another noise of the seeds than the others."""
    rows = []
    for name in CONTENDERS:
        for seed, noise in enumerate(NOISE):
            accuracy = levels.get(name, default) + noise * (1 if name == "frossl" else -1)
            online = [(mark, accuracy * mark / (mark + 1), *((0.9,) if top5 else ())) for mark in MARKS]
            found = row(name, seed, accuracy, online=online, diverged=name in diverged)
            scores = {"scores": {runs["data"]: found.scores.get("CIFAR-10", {})}} if runs else {}
            rows.append(replace(found, **(runs or {}), **scores))
    return as_result(rows)


def verdicts(figure, rows):
    return [each.holds for each in figure.evaluate_claims(rows).values()]


def lines_of(table):
    """Return method → heading → cell of a table in Markdown."""
    header, _, *lines = ([cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines())
    return {line[0]: dict(zip(header, line, strict=True)) for line in lines}


# The plan.


def test_each_method_has_its_published_recipe():
    cells = c.plan(replace(GPU_SIZE, seeds=2), data="here")([])
    assert [cell.settings["method"] for cell in cells[: 2 * len(LONG) : 2]] == list(LONG)
    assert len(cells) == 2 * len(CONTENDERS)
    assert {(cell.recipe.epochs, cell.settings["method"] in LONG) for cell in cells} == {(200, True), (100, False)}
    assert {cell.recipe.data.source for cell in cells} == {"here"}


def test_the_benchmark_of_lightly_has_eight_recipes():
    recipes = [cell.recipe for cell in c.plan(LIGHTLY_SIZE)([])]
    names = ("simclr", "swav", "moco", "simsiam", "byol", "dino", "barlow_twins", "frossl")
    assert [recipe.name for recipe in recipes] == [f"cifar10-{name}-lightly" for name in names]
    assert {(recipe.epochs, recipe.batch_size, recipe.probe.epochs[-1]) for recipe in recipes} == {(200, 512, 200.0)}


def test_at_size_smoke_and_in_fig_4_all_methods_have_one_recipe():
    for size in (SMOKE_SIZE, fig4.IMAGENET_SIZE):
        recipes = [cell.recipe for cell in c.plan(size)([])]
        assert len({(recipe.optimizer, recipe.projector, recipe.views) for recipe in recipes}) == 1
    by_name = {cell.settings["method"]: cell.recipe for cell in c.plan(SMOKE_SIZE)([])}
    assert (by_name["nologs"].hyper["log"], by_name["frossl"].hyper.get("log", True)) == (False, True)
    assert by_name["simclr"].objective == "simclr"


@pytest.mark.parametrize("folder", ["smoke", "gpu", "paper"])
def test_two_runs_of_one_name_in_one_folder_have_one_recipe(folder):
    known = {}
    for figure in (table2, table3, fig4):
        for name, size in figure.SIZES.items():
            for cell in c.plan(size)([]) if name.partition("-")[0] == folder else ():
                recipe = replace(cell.recipe, probe=ProbeConfig())  # where it is scored does not change the run
                assert known.setdefault(cell.name, recipe) == recipe


# Numbers of runs.


def test_runs_are_paired_by_seed_and_length():
    rows = [row("frossl", seed, 0.5 + 0.1 * seed) for seed in range(3)]
    rows += [row("simclr", seed, 0.4 + 0.1 * seed) for seed in (1, 2)]
    runs = c.read_runs(rows)
    values = c.values_of(runs, c.probe_accuracy)
    gap = c.compare(runs, values, "frossl", "simclr")
    assert (gap.n, round(gap.mean, 6)) == (2, 0.1)
    longer = c.read_runs([*rows[:3], *(replace(each, epochs=40.0) for each in rows[3:])])
    assert c.compare(longer, values, "frossl", "simclr") is None


# The tables and Fig. 4.


def test_the_papers_numbers():
    column = {name: numbers["cifar10"] for name, numbers in table2.PAPER.items()}
    assert (len(column), set(column) <= set(CONTENDERS)) == (12, True)
    averages = {"simclr": 81.2, "swav": 78.9, "moco": 82.0, "simsiam": 81.7, "byol": 83.9, "dino": 78.4}
    averages |= {"vicreg": 82.2, "barlow_twins": 82.7, "wmse": 76.7, "nologs": 77.9, "frossl": 83.6}
    for name, average in averages.items():  # printed beside the three columns
        assert statistics.fmean(table2.PAPER[name].values()) == pytest.approx(average, abs=0.06)
    assert column["frossl"] - column["nologs"] == pytest.approx(3.9)
    # "For the first 30 epochs, FroSSL outperforms all other SSL methods shown" is true of the paper's own table …
    ours = table3.PAPER["frossl"]
    assert all(ours[i] > max(table3.PAPER[name][i] for name in table3.OTHERS) for i in range(3))
    # … and "outperforms all other dimension-contrastive methods" is true of it except at epoch 50.
    behind = {i for i in range(5) for name in table3.DIMENSION_CONTRASTIVE if table3.PAPER[name][i] > ours[i]}
    assert [table3.PAPER_MARKS[i] for i in behind] == [50.0]


@pytest.mark.parametrize(
    ("frossl", "nologs", "expected"),
    [(0.45, 0.40, [True, True]), (0.30, 0.40, [False, False]), (0.381, 0.381, [None, None])],
)
def test_verdicts_of_table_2(frossl, nologs, expected):
    levels = {"frossl": frossl, "nologs": nologs}
    assert verdicts(table2, campaign(levels)) == expected


@pytest.mark.parametrize(("name", "images"), [("table2", 50_000), ("table3", 105_000), ("fig4", 1_281_167)])
def test_the_papers_claims_are_decided_only_by_runs_of_its_size(name, images):
    for size, count, decided in (("paper", images, True), ("paper", 5000, False), ("gpu", images, False)):
        rows = campaign({"frossl": 0.5, "barlow_twins": 0.49}, runs={"data": "CIFAR-10", "train_images": count})
        claims = [each for each in evaluate(f"frossl/{name}", rows, size) if each.kind == "claim"]
        assert any(claim.holds for claim in claims) is decided


def test_table_2_in_markdown():
    rows = campaign({"frossl": 0.45, "moco": 0.6}, diverged=("wmse",))
    rows["rows"] += as_result([row("vicreg", 3, 0.0, diverged=True)])["rows"]
    cells = lines_of(table2.markdown(rows))
    assert list(cells) == [contender.label for contender in CONTENDERS.values()]
    assert list(cells["FroSSL"].values())[1:4] == ["92.8", "45.0 ± 0.2 (3)", ""]
    assert list(cells["SimCLR"].values())[1:5] == ["91.8", "40.0 ± 0.2 (3)", "+5.1 ± 0.8", "✓"]
    assert cells["MoCo v2"]["FroSSL ahead"] == "✗"
    assert cells["TiCo"]["paper, CIFAR-10, %"] == "", "the paper has no number"
    assert list(cells["W-MSE 2"].values())[1:3] == ["91.6", "3 diverged"]
    assert cells["VICReg"]["ours, linear, %"].endswith("(3), 1 diverged")
    assert "recipe" not in cells["FroSSL"]


def test_table_2_has_the_papers_numbers_of_the_same_images_only():
    table = table2.markdown(campaign({"frossl": 0.45}, runs={"data": "MNIST"}))
    assert "45.0 ± 0.2 (3)" in table
    assert "92.8" not in table


@pytest.mark.parametrize(("frossl", "expected"), [(0.5, True), (0.3, False), (0.4, None)])
def test_verdicts_of_table_3(frossl, expected):
    assert verdicts(table3, campaign({"frossl": frossl})) == [expected] * 4


def test_one_better_method_contradicts_ahead_of_all():
    rows = campaign({"frossl": 0.5, "vicreg": 0.6, "tico": 0.7}, runs={"data": "STL-10", "epochs": 500.0})
    assert verdicts(table3, rows) == [False, False, False, True]
    text = table3.evaluate_claims(rows)["area"].measured
    assert "ahead of 9 of 10, behind 1; least lead, over VICReg: -8.6 ± 0.7" in text
    rows = campaign({"frossl": 0.5, "tico": 0.7})
    assert verdicts(table3, rows) == [True] * 4  # TiCo is not in the paper's table


def test_table_3_in_markdown():
    cells = lines_of(table3.markdown(campaign({"frossl": 0.9})))["FroSSL"]
    assert (cells["epoch 1, %"], cells["epoch 3, %"]) == ("45.0 ± 0.1 (3)", "67.5 ± 0.1 (3)")  # 0.9 · mark/(mark + 1)
    assert "area to epoch 10, %" in cells
    assert list(cells.values())[-1] == "44.8 56.9 64.8 67.1 72.0"


def test_claims_of_fig_4():
    assert verdicts(fig4, campaign({"frossl": 0.5, "barlow_twins": 0.495})) == [None, True]
    assert verdicts(fig4, campaign({"frossl": 0.6})) == [True, False]
    assert "| 90.0 ± 0.0 (3) |" in fig4.markdown(campaign({}, top5=True))


# All of them.


@pytest.mark.parametrize("name", ["table2", "table3", "fig4"])
def test_campaigns_are_drawn_with_and_without_rows(name):
    figure, empty = load_figure(f"frossl/{name}"), {"rows": [], "cells": 0}
    assert all(claim.holds is None for claim in evaluate(f"frossl/{name}", empty))
    assert figure.markdown(empty).count("\n") == 1, "only the header"
    figure.plot(empty).canvas.draw()
    rows = campaign({"frossl": 0.5}, diverged=("wmse",), top5=True)
    drawing = figure.plot(rows)
    drawing.canvas.draw()
    assert all(axis.has_data() for axis in drawing.axes if axis.get_visible())
    assert len(figure.markdown(rows).splitlines()) > 3
