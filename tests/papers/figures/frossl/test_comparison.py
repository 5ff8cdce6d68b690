"""The plan of the comparison, and the numbers that are read from its rows."""

from dataclasses import replace
from pathlib import Path

import pytest
from handmade import answer, as_result, row
from rich.console import Console

from fullrank.errors import UserError
from fullrank.sweep.run_cell import run_cell
from fullrank_papers.figures import Campaign, load_figure
from fullrank_papers.figures.frossl.comparison import (
    CHOICE_SEED,
    RATE,
    compare,
    count_diverged,
    early_area,
    early_end,
    plan,
    probe_accuracy,
    read_runs,
    values_of,
)
from fullrank_papers.figures.frossl.contenders import CONTENDERS
from fullrank_papers.figures.frossl.sizes import GPU_SIZE, LONG, SMALL_SIZE, SMOKE_SIZE
from fullrank_papers.figures.frossl.table2 import FIGURE

TWO = plan(SMALL_SIZE, only=["frossl", "byol"])


def best_at(rate):
    return lambda cell: 0.5 - abs(cell.settings[RATE] - rate)


def test_the_rate_is_chosen_on_validation_images_with_a_seed_of_its_own():
    cells, rows = answer(TWO, best_at(0.01))
    choice = [cell for cell in cells if cell.settings["stage"] == "choice"]
    assert {cell.name for cell in choice} == {
        f"cifar10-compared-{name}-20epochs-lr{rate}-choice"
        for name in ("frossl", "byol")
        for rate in ("0.001", "0.003", "0.01", "0.03")
    }
    assert all(cell.recipe.seed == CHOICE_SEED and cell.recipe.data.validation > 0 for cell in choice)
    compared = [cell for cell in cells if cell.settings["stage"] == "compared"]
    assert [(cell.settings["method"], cell.recipe.seed, cell.recipe.optimizer.lr) for cell in compared] == [
        (name, seed, 0.01) for name in ("frossl", "byol") for seed in range(3)
    ]
    assert all(cell.recipe.data.validation == 0 and cell.recipe.probe.epochs == SMALL_SIZE.marks for cell in compared)
    assert len({cell.name for cell in cells}) == len(cells) == len(rows)
    # What is known of one method is enough for its runs; what is known of two of four rates is not.
    of_frossl = [found for found in rows[:8] if found.settings["method"] == "frossl"]
    stages = {(cell.settings["method"], cell.settings["stage"]) for cell in TWO(of_frossl)}
    assert stages == {("frossl", "choice"), ("frossl", "compared"), ("byol", "choice")}
    assert {cell.settings["stage"] for cell in TWO(of_frossl[:2])} == {"choice"}


def test_a_rate_at_which_training_diverges_is_not_chosen():
    _, rows = answer(TWO, lambda cell: cell.settings[RATE], diverged=lambda cell: cell.settings[RATE] > 0.02)
    assert {found.settings[RATE] for found in rows if found.settings["stage"] == "compared"} == {0.01}
    _, rows = answer(TWO, lambda cell: 0.0, diverged=lambda cell: True)
    assert {found.settings["stage"] for found in rows} == {"choice"}
    assert count_diverged(as_result(rows)) == {"frossl": 4, "byol": 4}


def test_published_recipes_need_no_choice():
    cells = plan(GPU_SIZE, data="here", seeds=2)([])
    assert [cell.settings["method"] for cell in cells[: 2 * len(LONG) : 2]] == list(LONG)
    assert len(cells) == 2 * len(CONTENDERS)
    assert {cell.recipe.epochs for cell in cells if cell.settings["method"] in LONG} == {200}
    assert {cell.recipe.epochs for cell in cells if cell.settings["method"] not in LONG} == {100}
    assert {cell.recipe.data.source for cell in cells} == {"here"}


def test_an_unknown_method_raises():
    with pytest.raises(UserError, match=r"unknown method 'vicregg'.*vicreg"):
        plan(SMALL_SIZE, only=["vicregg"])


def rows_of(**accuracies):
    """Return the result of compared runs with these accuracies, one per seed."""
    return as_result(
        row(name, seed, accuracy) for name, found in accuracies.items() for seed, accuracy in enumerate(found)
    )


def test_runs_are_paired_by_seed():
    rows = rows_of(frossl=(0.5, 0.6, 0.7), simclr=(0.4, 0.5, 0.6))
    rows["rows"] = [
        found for found in rows["rows"] if not (found["settings"]["method"] == "simclr" and found["seed"] == 0)
    ]
    runs = read_runs(rows)
    gap = compare(runs, values_of(runs, probe_accuracy), "frossl", "simclr")
    assert gap is not None
    assert (gap.n, round(gap.mean, 9)) == (2, 0.1)
    assert compare(runs, values_of(runs, probe_accuracy), "frossl", "vicreg") is None


def test_runs_of_different_length_are_not_compared():
    rows = rows_of(frossl=(0.5, 0.6, 0.7), simclr=(0.4, 0.5, 0.6))
    for found in rows["rows"]:
        if found["settings"]["method"] == "simclr":
            found["epochs"] = 10.0
    runs = read_runs(rows)
    assert compare(runs, values_of(runs, probe_accuracy), "frossl", "simclr") is None


def test_the_papers_protocol_comes_first():
    assert probe_accuracy(row("frossl", 0, 0.0, scores={"CIFAR-10": {"linear": 0.1, "linear-sgd": 0.2}})) == 0.2
    assert probe_accuracy(row("frossl", 0, 0.0, scores={"CIFAR-10": {"knn": 0.1}})) is None


def test_early_area_is_the_mean_of_the_curve():
    flat = row("frossl", 0, 0.0, online=[(1.0, 0.3), (3.0, 0.3), (5.0, 0.3), (20.0, 0.9)])
    assert early_area(flat, 10.0) == pytest.approx(0.3)
    line = row("frossl", 0, 0.0, online=[(1.0, 0.1), (3.0, 0.3), (10.0, 1.0), (20.0, 0.0)])
    assert early_area(line, 10.0) == pytest.approx((0.1 + 1.0) / 2)  # a straight line has the mean of its ends
    assert early_area(line, 2.0) is None
    assert early_end({"frossl": {0: line}}) == 10.0  # half of 20 epochs
    long = row("frossl", 0, 0.0, online=[(mark, 0.5) for mark in (10.0, 30.0, 50.0)])
    assert early_end({"frossl": {0: replace(long, epochs=500.0)}}) == 30.0
    assert early_end({"frossl": {0: replace(line, epochs=5.0)}}) == 1.0  # the last mark in the first half


def test_smoke_campaign_trains_chooses_and_compares(tmp_path: Path):
    campaign, rows = plan(SMOKE_SIZE, seeds=1, only=["nologs"]), []
    while missing := campaign(rows)[len(rows) :]:
        rows += [run_cell(cell, tmp_path, console=Console(quiet=True)) for cell in missing]
    assert [found.status for found in rows] == ["done"] * 3
    choice = {found.settings[RATE]: found.score("linear") or 0.0 for found in rows[:2]}
    compared = read_runs(as_result(rows))["nologs"][0]
    assert choice[compared.settings[RATE]] == max(choice.values())
    assert [score.epoch for score in compared.online] == [0.5, 1.0, 2.0]
    assert set(compared.scores["digits"]) == {"linear", "knn"}
    assert compared.train_images == 256
    assert FIGURE.plot(as_result(rows)).axes


def test_tables_of_one_size_share_runs_and_never_a_name():
    cells = {}
    for figure in ("table2", "table3", "fig4", "ablations"):
        campaign = load_figure(f"frossl/{figure}")
        assert isinstance(campaign, Campaign)
        for name, size in campaign.sizes.items():
            if name in ("gpu", "paper"):
                for cell in campaign.plan(size, seeds=1)([]):
                    assert cells.setdefault((name, cell.name), cell.recipe) == cell.recipe
    assert len(cells) > 2 * len(CONTENDERS)
