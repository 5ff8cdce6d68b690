"""Tables 2 and 3 and Fig. 4 on hand-made rows: numbers, verdicts, drawings."""

import statistics
from dataclasses import replace

import pytest
from handmade import as_result, row

from fullrank_papers.figures import Campaign, load_figure
from fullrank_papers.figures.frossl import fig4, table2, table3
from fullrank_papers.figures.frossl.contenders import CONTENDERS
from fullrank_papers.figures.frossl.sizes import SMALL_SIZE

NOISE = (0.000, 0.002, -0.001)
MARKS = SMALL_SIZE.marks


def verdict_texts(figure, rows, kind="comparison"):
    return [claim.measured for claim in figure.FIGURE.claims(rows) if claim.kind == kind]


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
            online = [(mark, accuracy * mark / (mark + 1), *((0.9,) if top5 else ())) for mark in MARKS]
            found = row(name, seed, accuracy, online=online, diverged=name in diverged, **fields)
            rows.append(
                replace(found, **runs, scores={runs["data"]: found.scores.get("CIFAR-10", {})}) if runs else found
            )
    return as_result(rows)


def verdicts(figure, rows, kind="comparison"):
    return [claim.holds for claim in figure.FIGURE.claims(rows) if claim.kind == kind]


def test_the_papers_numbers():
    column = {name: numbers["cifar10"] for name, numbers in table2.PAPER.items()}
    assert len(column) == 12
    assert set(column) <= set(CONTENDERS)
    averages = {
        "simclr": 81.2,
        "swav": 78.9,
        "moco": 82.0,
        "simsiam": 81.7,
        "byol": 83.9,
        "dino": 78.4,
        "vicreg": 82.2,
        "barlow_twins": 82.7,
        "wmse": 76.7,
        "nologs": 77.9,
        "frossl": 83.6,
    }
    for name, average in averages.items():  # printed beside the three columns
        assert statistics.fmean(table2.PAPER[name].values()) == pytest.approx(average, abs=0.06)
    assert table2.paper_gap("cifar10", "nologs") == pytest.approx(3.9)
    # "For the first 30 epochs, FroSSL outperforms all other SSL methods shown" is true of the paper's own table …
    assert all(
        table3.PAPER["frossl"][i] > max(row[i] for name, row in table3.PAPER.items() if name != "frossl")
        for i in range(3)
    )
    # … and "outperforms all other dimension-contrastive methods" is true of it except at epoch 50.
    behind = [
        i
        for i in range(5)
        for name in table3.DIMENSION_CONTRASTIVE
        if table3.PAPER[name][i] > table3.PAPER["frossl"][i]
    ]
    assert [table3.PAPER_MARKS[i] for i in behind] == [50.0]


@pytest.mark.parametrize(
    ("frossl", "nologs", "expected"),
    [(0.45, 0.40, [True, True]), (0.30, 0.40, [False, False]), (0.381, 0.381, [None, None])],
)
def test_verdicts_of_table_2(frossl, nologs, expected):
    levels = {"frossl": frossl, "nologs": nologs}
    assert verdicts(table2, campaign(levels)) == expected
    assert verdicts(table2, campaign(levels, runs=PAPER_RUNS[table2]), "claim") == expected


@pytest.mark.parametrize("figure", [table2, table3, fig4])
def test_the_papers_claims_are_undecidable_at_another_size(figure):
    size, levels = PAPER_RUNS[figure], {"frossl": 0.5, "barlow_twins": 0.49}
    assert True in verdicts(figure, campaign(levels, runs=size), "claim")
    for other in ({"data": "MNIST"}, {"train_images": 5000}, {"epochs": 20.0}):
        assert set(verdicts(figure, campaign(levels, runs=size | other), "claim")) == {None}


def test_a_missing_method_leaves_the_claim_about_all_methods_undecidable():
    assert verdicts(table2, campaign({"frossl": 0.5}, diverged=("wmse",))) == [None, True]


def test_table_2_in_markdown():
    header, rule, *lines = table2.markdown(campaign({"frossl": 0.45, "moco": 0.6}, diverged=("wmse",))).splitlines()
    cells = {line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[1:-1]] for line in lines}
    assert len({line.count("|") for line in (header, rule, *lines)}) == 1
    assert list(cells) == [contender.label for contender in CONTENDERS.values()]
    assert cells["FroSSL"][1:4] == ["92.8", "45.0 ± 0.2 (3)", ""]
    assert cells["SimCLR"][1:5] == ["91.8", "40.0 ± 0.2 (3)", "+5.1 ± 0.8", "✓"]
    assert cells["MoCo v2"][4] == "✗"
    assert cells["TiCo"][1] == "", "the paper has no number"
    assert "order" not in header
    assert cells["W-MSE 2"][1:3] == ["91.6", "3 diverged"]


def test_the_order_is_compared_with_the_papers_only_at_its_size():
    header, _, *lines = table2.markdown(campaign({"frossl": 0.45, "moco": 0.6}, runs=PAPER_RUNS[table2])).splitlines()
    place = [title.strip() for title in header.split("|")].index("order as in the paper")
    order = {line.split("|")[1].strip(): line.split("|")[place].strip() for line in lines}
    assert (order["SimCLR"], order["MoCo v2"], order["TiCo"], order["FroSSL"]) == ("✓", "✓", "", "")


def test_runs_that_diverged_are_counted_beside_the_mean_of_the_others():
    rows = campaign({})
    failed = row("vicreg", 3, 0.0, diverged=True)
    choice = row(
        "byol", 1000, 0.0, stage="choice", diverged=True
    )  # one learning rate; the compared runs of BYOL are done
    rows["rows"] += as_result([failed, choice])["rows"]
    for figure in (table2, table3):
        lines = {line.split("|")[1].strip(): line for line in figure.markdown(rows).splitlines()}
        assert "(3), 1 diverged |" in lines["VICReg"]
        assert "diverged" not in lines["BYOL"]
    only = as_result([choice, row("byol", 1000, 0.3, stage="choice", rate=0.03)])
    assert "diverged" not in table2.markdown(only), "another learning rate may be better"


def test_recipes_are_named_if_they_differ():
    assert "recipe" not in table2.markdown(campaign({})).splitlines()[0]
    rows = campaign({})
    for each in rows["rows"]:
        each["recipe"] = f"cifar10-{each['settings']['method']}"
    assert "| cifar10-byol |" in table2.markdown(rows)


def test_table_2_says_when_a_learning_rate_is_at_the_edge_of_its_grid():
    choices = [row("frossl", 1000, 0.4, stage="choice", rate=rate) for rate in (0.003, 0.01)]
    choices += [row("simclr", 1000, 0.4, stage="choice", rate=rate) for rate in (0.003, 0.01, 0.03)]
    rows = campaign({})
    rows["rows"] += as_result(choices)["rows"]
    header, _, *lines = (line.split(" | ") for line in table2.markdown(rows).splitlines())
    rates = {
        line[0].strip("| "): line[[title.strip("| ") for title in header].index("learning rate")].strip(" |")
        for line in lines
    }
    assert (rates["FroSSL"], rates["SimCLR"], rates["BYOL"]) == ("0.01 (largest of 2)", "0.01", "0.01")


def test_images_that_the_paper_does_not_have_are_not_compared_with_its_numbers():
    rows = campaign({"frossl": 0.45})
    for found in rows["rows"]:
        found["data"], found["scores"] = "MNIST", {"MNIST": found["scores"]["CIFAR-10"]}
    table = table2.markdown(rows)
    assert "45.0 ± 0.2 (3)" in table
    assert "CIFAR" not in table
    assert "92.8" not in table


def test_transfer_has_a_column():
    scores = {"CIFAR-10": {"linear": 0.4, "knn": 0.3}, "mnist": {"linear": 0.9}}
    table = table2.markdown(campaign({}, scores=scores))
    assert "transfer to mnist, %" in table
    assert "90.0 ± 0.0 (3)" in table


@pytest.mark.parametrize(("frossl", "expected"), [(0.5, True), (0.3, False), (0.4, None)])
def test_verdicts_of_table_3(frossl, expected):
    assert verdicts(table3, campaign({"frossl": frossl})) == [expected] * 3
    assert verdicts(table3, campaign({"frossl": frossl}, runs=PAPER_RUNS[table3]), "claim") == [expected] * 4


def test_one_better_method_contradicts_ahead_of_all():
    rows = campaign({"frossl": 0.5, "vicreg": 0.6, "tico": 0.7})
    assert verdicts(table3, rows) == [False, False, True]
    assert verdicts(table3, campaign({"frossl": 0.5, "vicreg": 0.6})) == [False, True, True]
    assert verdicts(table3, campaign({"frossl": 0.5, "tico": 0.7})) == [
        True,
        False,
        True,
    ]  # TiCo is not in the paper's table
    text = table3.FIGURE.claims(rows)[2].measured
    assert "ahead of 9 of 10, behind 1; least lead, over VICReg: -7.9 ± 0.6" in text
    assert "ahead of 8 of 9, behind 1" in verdict_texts(table3, rows)[0]


def test_table_3_in_markdown():
    header, *_ = lines = table3.markdown(campaign({"frossl": 0.5})).splitlines()
    assert len({line.count("|") for line in lines}) == 1
    assert "| area to epoch 10, % |" in header
    frossl = next(line for line in lines if line.startswith("| FroSSL |"))
    assert "| 25.0 ± 0.1 (3) | 37.5 ± 0.1 (3) |" in frossl  # 0.5 · mark/(mark + 1) at the marks 1 and 3
    assert frossl.endswith("44.8 56.9 64.8 67.1 72.0 |")


def test_table_3_has_the_time_to_accuracies_that_a_run_reaches():
    assert "seconds to" not in table3.markdown(campaign({}))
    header, _, *lines = table3.markdown(campaign({"frossl": 0.9})).splitlines()
    assert "| seconds to 80 % | seconds to 85 % | paper" in header
    (frossl,) = (line for line in lines if line.startswith("| FroSSL |"))
    assert (
        "| 30 ± 0 (3) | 63 ± 1 (3) |" in frossl
    )  # of 70 s for 20 epochs: epochs 8.7 and 18.1, between the marks 5, 10 and 20


def test_claims_of_fig_4():
    assert verdicts(fig4, campaign({"frossl": 0.5, "barlow_twins": 0.495})) == [None, True]
    assert verdicts(fig4, campaign({"frossl": 0.6})) == [True, False]
    assert "| 90.0 ± 0.0 (3) |" in fig4.markdown(campaign({}, top5=True))


@pytest.mark.parametrize("name", ["table2", "table3", "fig4", "ablations"])
def test_a_campaign_without_rows_can_be_drawn(name):
    figure = load_figure(f"frossl/{name}")
    assert isinstance(figure, Campaign)
    assert figure.markdown is not None
    rows = {"rows": [], "cells": 0}
    figure.plot(rows).canvas.draw()
    assert all(claim.holds is None for claim in figure.claims(rows))
    assert figure.markdown(rows).count("\n") == 1, "only the header"


@pytest.mark.parametrize("figure", [table2, table3, fig4], ids=lambda module: module.__name__.rsplit(".", 1)[-1])
def test_campaigns_are_drawn(figure):
    rows = campaign({"frossl": 0.5}, diverged=("wmse",), top5=True)
    drawing = figure.FIGURE.plot(rows)
    drawing.canvas.draw()
    assert all(axis.has_data() for axis in drawing.axes if axis.get_visible())
