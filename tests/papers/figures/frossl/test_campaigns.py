"""Tables 2 and 3, Fig. 4 and the ablations on hand-made rows: plans, numbers, verdicts, drawings."""

import statistics
from dataclasses import replace

import pytest
from handmade import answer, as_result, row

from fullrank.errors import UserError
from fullrank_papers.figures import load_figure
from fullrank_papers.figures.figure import evaluate
from fullrank_papers.figures.frossl import ablations, fig4, table2, table3
from fullrank_papers.figures.frossl import comparison as c
from fullrank_papers.figures.frossl.ablations import ABLATIONS
from fullrank_papers.figures.frossl.contenders import CONTENDERS
from fullrank_papers.figures.frossl.sizes import GPU_SIZE, LONG, SMALL_SIZE

NOISE = (0.000, 0.002, -0.001)
TWO = c.plan(SMALL_SIZE, only=["frossl", "byol"])
SMALL = ablations.SIZES["small"]
UNCHANGED = {"invariance": 2.0, "dimension": 256, "batch": 128, "views": 2}
PAPER_RUNS = {  # the data set, the number of images and of epochs of the paper's runs
    table2: {"data": "CIFAR-10", "train_images": 50_000, "epochs": 1000.0},
    table3: {"data": "STL-10", "train_images": 105_000, "epochs": 500.0},
    fig4: {"data": "hf:ILSVRC/imagenet-1k", "train_images": 1_281_167, "epochs": 100.0},
}


def campaign(levels, *, default=0.4, diverged=(), top5=False, runs=None, **fields):
    """Return a result in which each method has its level, and FroSSL another noise of the seeds than the others."""
    rows = []
    for name in CONTENDERS:
        for seed, noise in enumerate(NOISE):
            accuracy = levels.get(name, default) + noise * (1 if name == "frossl" else -1)
            online = [(mark, accuracy * mark / (mark + 1), *((0.9,) if top5 else ())) for mark in SMALL_SIZE.marks]
            found = row(name, seed, accuracy, online=online, diverged=name in diverged, **fields)
            scores = {"scores": {runs["data"]: found.scores.get("CIFAR-10", {})}} if runs else {}
            rows.append(replace(found, **(runs or {}), **scores))
    return as_result(rows)


def verdicts(figure, rows, *, ours=True):
    return [each.holds for key, each in figure.evaluate_claims(rows).items() if key.startswith("our_") is ours]


def lines_of(table):
    """Return method → heading → cell of a table in Markdown."""
    header, _, *lines = ([cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines())
    return {line[0]: dict(zip(header, line, strict=True)) for line in lines}


# The plan.


def test_the_rate_is_chosen_on_validation_images_with_a_seed_of_its_own():
    cells, rows = answer(TWO, lambda cell: 0.5 - abs(cell.settings[c.RATE] - 0.01))
    choice = [cell for cell in cells if cell.settings["stage"] == "choice"]
    rates = ("0.001", "0.003", "0.01", "0.03")
    expected = {f"cifar10-compared-{name}-20epochs-lr{r}-choice" for name in ("frossl", "byol") for r in rates}
    assert {cell.name for cell in choice} == expected
    assert all(cell.recipe.seed == c.CHOICE_SEED and cell.recipe.data.validation > 0 for cell in choice)
    compared = [cell for cell in cells if cell.settings["stage"] == "compared"]
    found = [(cell.settings["method"], cell.recipe.seed, cell.recipe.optimizer.lr) for cell in compared]
    assert found == [(name, seed, 0.01) for name in ("frossl", "byol") for seed in range(3)]
    assert all(cell.recipe.data.validation == 0 and cell.recipe.probe.epochs == SMALL_SIZE.marks for cell in compared)
    # What is known of one method is enough for its runs; what is known of two of four rates is not.
    of_frossl = [found for found in rows[:8] if found.settings["method"] == "frossl"]
    stages = {(cell.settings["method"], cell.settings["stage"]) for cell in TWO(of_frossl)}
    assert stages == {("frossl", "choice"), ("frossl", "compared"), ("byol", "choice")}
    assert {cell.settings["stage"] for cell in TWO(of_frossl[:2])} == {"choice"}


def test_a_rate_at_which_training_diverges_is_not_chosen():
    _, rows = answer(TWO, lambda cell: cell.settings[c.RATE], diverged=lambda cell: cell.settings[c.RATE] > 0.02)
    assert {found.settings[c.RATE] for found in rows if found.settings["stage"] == "compared"} == {0.01}
    _, rows = answer(TWO, lambda cell: 0.0, diverged=lambda cell: True)
    assert {found.settings["stage"] for found in rows} == {"choice"}
    assert c.count_diverged(as_result(rows)) == {"frossl": 4, "byol": 4}


def test_published_recipes_need_no_choice():
    cells = c.plan(GPU_SIZE, data="here", seeds=2)([])
    assert [cell.settings["method"] for cell in cells[: 2 * len(LONG) : 2]] == list(LONG)
    assert len(cells) == 2 * len(CONTENDERS)
    assert {(cell.recipe.epochs, cell.settings["method"] in LONG) for cell in cells} == {(200, True), (100, False)}
    assert {cell.recipe.data.source for cell in cells} == {"here"}
    with pytest.raises(UserError, match=r"unknown method 'vicregg'.*vicreg"):
        c.plan(SMALL_SIZE, only=["vicregg"])


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
    assert table2.paper_gap("cifar10", "nologs") == pytest.approx(3.9)
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
    assert verdicts(table2, campaign(levels, runs=PAPER_RUNS[table2]), ours=False) == expected


@pytest.mark.parametrize("figure", [table2, table3, fig4])
def test_the_papers_claims_are_inconclusive_at_another_size(figure):
    size, levels = PAPER_RUNS[figure], {"frossl": 0.5, "barlow_twins": 0.49}
    assert True in verdicts(figure, campaign(levels, runs=size), ours=False)
    for other in ({"data": "MNIST"}, {"train_images": 5000}, {"epochs": 20.0}):
        assert set(verdicts(figure, campaign(levels, runs=size | other), ours=False)) == {None}


def test_table_2_in_markdown():
    rows = campaign({"frossl": 0.45, "moco": 0.6}, diverged=("wmse",))
    choices = [row("frossl", 1000, 0.4, stage="choice", rate=rate) for rate in (0.003, 0.01)]
    choices += [row("simclr", 1000, 0.4, stage="choice", rate=rate) for rate in (0.003, 0.01, 0.03)]
    rows["rows"] += as_result([*choices, row("vicreg", 3, 0.0, diverged=True)])["rows"]
    cells = lines_of(table2.markdown(rows))
    assert list(cells) == [contender.label for contender in CONTENDERS.values()]
    assert list(cells["FroSSL"].values())[1:4] == ["92.8", "45.0 ± 0.2 (3)", ""]
    assert list(cells["SimCLR"].values())[1:5] == ["91.8", "40.0 ± 0.2 (3)", "+5.1 ± 0.8", "✓"]
    assert cells["MoCo v2"]["FroSSL ahead"] == "✗"
    assert cells["TiCo"]["paper, CIFAR-10, %"] == "", "the paper has no number"
    assert list(cells["W-MSE 2"].values())[1:3] == ["91.6", "3 diverged"]
    assert cells["VICReg"]["ours, linear, %"].endswith("(3), 1 diverged")
    rates = [cells[method]["learning rate"] for method in ("FroSSL", "SimCLR", "BYOL")]
    assert rates == ["0.01 (largest of 2)", "0.01", "0.01"]
    assert not {"recipe", "order as in the paper"} & set(cells["FroSSL"])


def test_table_2_compares_the_order_only_at_the_papers_size_and_no_other_images():
    cells = lines_of(table2.markdown(campaign({"frossl": 0.45, "moco": 0.6}, runs=PAPER_RUNS[table2])))
    order = [cells[method]["order as in the paper"] for method in ("SimCLR", "MoCo v2", "TiCo", "FroSSL")]
    assert order == ["✓", "✓", "", ""]
    table = table2.markdown(campaign({"frossl": 0.45}, runs={"data": "MNIST"}))
    assert "45.0 ± 0.2 (3)" in table
    assert "92.8" not in table


@pytest.mark.parametrize(("frossl", "expected"), [(0.5, True), (0.3, False), (0.4, None)])
def test_verdicts_of_table_3(frossl, expected):
    assert verdicts(table3, campaign({"frossl": frossl})) == [expected] * 3
    assert verdicts(table3, campaign({"frossl": frossl}, runs=PAPER_RUNS[table3]), ours=False) == [expected] * 4


def test_one_better_method_contradicts_ahead_of_all():
    rows = campaign({"frossl": 0.5, "vicreg": 0.6, "tico": 0.7})
    assert verdicts(table3, rows) == [False, False, True]
    assert verdicts(table3, campaign({"frossl": 0.5, "tico": 0.7})) == [True, False, True]  # not in the paper's table
    text = table3.evaluate_claims(rows)["our_paper"].measured
    assert "ahead of 8 of 9, behind 1; least lead, over VICReg: -7.9 ± 0.6" in text


def test_table_3_in_markdown():
    cells = lines_of(table3.markdown(campaign({"frossl": 0.9})))["FroSSL"]
    assert (cells["epoch 1, %"], cells["epoch 3, %"]) == ("45.0 ± 0.1 (3)", "67.5 ± 0.1 (3)")  # 0.9 · mark/(mark + 1)
    # 70 s for 20 epochs: epochs 8.7 and 18.1, between the marks 5, 10 and 20
    assert (cells["seconds to 80 %"], cells["seconds to 85 %"]) == ("30 ± 0 (3)", "63 ± 1 (3)")
    assert "area to epoch 10, %" in cells
    assert list(cells.values())[-1] == "44.8 56.9 64.8 67.1 72.0"


def test_claims_of_fig_4():
    assert verdicts(fig4, campaign({"frossl": 0.5, "barlow_twins": 0.495})) == [None, True]
    assert verdicts(fig4, campaign({"frossl": 0.6})) == [True, False]
    assert "| 90.0 ± 0.0 (3) |" in fig4.markdown(campaign({}, top5=True))


# The ablations.


def ablated(accuracy=lambda settings: 0.4, *, diverged=lambda settings: False):
    """Return a result in which the accuracy of a run follows from its settings."""
    methods = ("frossl", "nologs", "simclr", "corinfomax")
    rows = [row(name, seed, accuracy({}) + noise) for name in methods for seed, noise in enumerate(NOISE)]
    for name, values in SMALL.values.items():
        for method, balanced in ABLATIONS[name].curves:
            for value in values:
                settings = {"ablation": name, "value": value} | ({"balanced": True} if balanced else {})
                settings |= {"unchanged": UNCHANGED[name]} if name in UNCHANGED else {}
                fields = {"stage": "ablation", "diverged": diverged(settings), **settings}
                rows += [row(method, k, accuracy(settings) - noise, **fields) for k, noise in enumerate(NOISE)]
    return as_result(rows)


def judge(rows, claim):
    return ablations.evaluate_claims(rows)[claim].holds


def test_ablations_start_from_the_runs_of_the_tables():
    cells, _ = answer(ablations.plan(SMALL, seeds=1), lambda cell: 0.5)
    names = {cell.name.removeprefix("cifar10-compared-"): cell for cell in cells}
    methods = ["simclr", "corinfomax", "nologs", "frossl"]
    table, _ = answer(c.plan(SMALL_SIZE, seeds=1, only=methods), lambda cell: 0.5)
    assert all(names[cell.name.removeprefix("cifar10-compared-")] == cell for cell in table)
    changed = [cell for cell in cells if cell.settings["stage"] == "ablation"]
    assert {cell.settings.get("unchanged") for cell in changed} == {None, *UNCHANGED.values()}
    recipe = names["corinfomax-20epochs-lr0.00141421-epsilon1e-06-seed0"].recipe
    assert (recipe.batch_size, recipe.projector.widths[-1], recipe.hyper["epsilon"]) == (256, 256, 1e-6)
    assert sum(view.count for view in names["frossl-20epochs-lr0.001-views8-seed0"].recipe.views) == 8
    assert names["simclr-20epochs-lr0.0005-batch32-seed0"].recipe.batch_size == 32
    assert names["frossl-20epochs-lr0.001-dimension64-seed0"].recipe.hyper["invariance"] == 2.0
    only, _ = answer(ablations.plan(SMALL, seeds=1, only=["views"]), lambda cell: 0.5)
    assert {(cell.settings["method"], cell.settings.get("ablation")) for cell in only} == {
        ("frossl", None),
        ("frossl", "views"),
    }


def test_the_balanced_weight_follows_batch_dimension_and_views():
    cells, _ = answer(ablations.plan(SMALL, seeds=1), lambda cell: 0.5)
    balanced = [cell for cell in cells if cell.settings.get("balanced")]
    weights = {
        (cell.settings["ablation"], cell.settings["value"]): cell.recipe.hyper["invariance"] for cell in balanced
    }
    expected = {
        **{("dimension", 64): 8.0, ("dimension", 1024): 0.5, ("views", 4): 2 / 6**0.5, ("views", 8): 2 / 28**0.5},
        **{("batch", 32): 0.5, ("batch", 64): 1.0, ("batch", 256): 4.0},
    }
    assert weights == pytest.approx(expected)
    for size in ablations.SIZES.values():  # the unchanged recipes have this weight: they are points of the curve
        recipe = c.compared_cell(size.comparison, "frossl", None, 0, None).recipe
        assert ablations.with_balance(recipe).hyper["invariance"] == pytest.approx(recipe.hyper.get("invariance", 1.0))


@pytest.mark.parametrize(("loss", "expected"), [(0.0, True), (0.1, False), (0.02, None)])
def test_verdicts_of_the_ablations(loss, expected):
    assert judge(ablated(lambda settings: 0.4 - loss * (settings.get("ablation") == "batch")), "batches") is expected
    assert judge(ablated(lambda settings: 0.4 - loss * (settings.get("value") == 1.0)), "papers_weight") is expected
    assert judge(ablated(lambda settings: 0.4 - loss * settings.get("balanced", False)), "balance") is expected
    better = ablated(lambda settings: 0.4 + loss * (settings.get("ablation") == "invariance"))
    assert judge(better, "weights") is expected


def test_epsilon_is_critical_if_accuracies_differ_or_runs_diverge():
    assert judge(ablated(lambda settings: 0.4 + 0.1 * (settings.get("value") == 1e-2)), "epsilon") is True
    assert judge(ablated(), "epsilon") is False
    rows = ablated(diverged=lambda settings: settings.get("value") == 1e-8)
    assert judge(rows, "epsilon") is True
    rows["rows"] = [each for each in rows["rows"] if each["seed"] == 0]
    assert judge(rows, "epsilon") is None


# All of them.


@pytest.mark.parametrize("name", ["table2", "table3", "fig4", "ablations"])
def test_campaigns_are_drawn_with_and_without_rows(name):
    figure, empty = load_figure(f"frossl/{name}"), {"rows": [], "cells": 0}
    assert all(claim.holds is None for claim in evaluate(f"frossl/{name}", empty))
    assert figure.markdown(empty).count("\n") == 1, "only the header"
    figure.plot(empty).canvas.draw()
    rows = ablated() if name == "ablations" else campaign({"frossl": 0.5}, diverged=("wmse",), top5=True)
    drawing = figure.plot(rows)
    drawing.canvas.draw()
    assert all(axis.has_data() for axis in drawing.axes if axis.get_visible())
    assert len(figure.markdown(rows).splitlines()) > 3
