"""The ablations: their cells and their verdicts on hand-made rows."""

import pytest
from handmade import answer, as_result, row

from fullrank.errors import UserError
from fullrank_papers.figures.frossl import ablations
from fullrank_papers.figures.frossl.ablations import ABLATIONS, FIGURE, accuracies, plan, read_points, with_balance
from fullrank_papers.figures.frossl.comparison import compared_cell, read_rows
from fullrank_papers.figures.frossl.comparison import plan as comparison_plan
from fullrank_papers.figures.frossl.sizes import SMALL_SIZE

SMALL = FIGURE.sizes["small"]
NOISE = (0.000, 0.002, -0.001)
UNCHANGED = {"invariance": 2.0, "dimension": 256, "batch": 128, "views": 2}


def campaign(accuracy=lambda settings: 0.4, *, diverged=lambda settings: False):
    """Return a result in which the accuracy of a run follows from its settings."""
    rows = [
        row(name, seed, accuracy({}) + noise)
        for name in ("frossl", "nologs", "simclr", "corinfomax")
        for seed, noise in enumerate(NOISE)
    ]
    for name, values in SMALL.values.items():
        for method, balanced in ABLATIONS[name].curves:
            for value in values:
                settings = {
                    "ablation": name,
                    "value": value,
                    **({"unchanged": UNCHANGED[name]} if name in UNCHANGED else {}),
                }
                settings |= {"balanced": True} if balanced else {}
                rows += [
                    row(
                        method,
                        seed,
                        accuracy(settings) - noise,
                        stage="ablation",
                        diverged=diverged(settings),
                        **settings,
                    )
                    for seed, noise in enumerate(NOISE)
                ]
    return as_result(rows)


def verdicts(rows):
    return [claim.holds for claim in FIGURE.claims(rows)]


def test_ablations_start_from_the_runs_of_the_tables():
    cells, _ = answer(plan(SMALL, seeds=1), lambda cell: 0.5)
    names = {cell.name.removeprefix("cifar10-compared-"): cell for cell in cells}
    table, _ = answer(
        comparison_plan(SMALL_SIZE, seeds=1, only=["simclr", "corinfomax", "nologs", "frossl"]), lambda cell: 0.5
    )
    assert all(names[cell.name.removeprefix("cifar10-compared-")] == cell for cell in table)
    ablated = [cell for cell in cells if cell.settings["stage"] == "ablation"]
    assert {cell.settings.get("unchanged") for cell in ablated} == {None, *UNCHANGED.values()}
    assert {cell.recipe.optimizer.lr for cell in ablated if cell.settings["ablation"] == "dimension"} == {0.001}, (
        "the chosen rate"
    )
    recipe = names["corinfomax-20epochs-lr0.00141421-epsilon1e-06-seed0"].recipe
    assert (recipe.batch_size, recipe.projector.widths[-1], recipe.hyper["epsilon"], recipe.hyper["invariance"]) == (
        256,
        256,
        1e-6,
        500.0,
    )
    assert sum(view.count for view in names["frossl-20epochs-lr0.001-views8-seed0"].recipe.views) == 8
    assert names["simclr-20epochs-lr0.0005-batch32-seed0"].recipe.batch_size == 32
    assert names["frossl-20epochs-lr0.001-invariance8-seed0"].recipe.hyper["invariance"] == 8.0
    assert names["frossl-20epochs-lr0.001-dimension64-seed0"].recipe.hyper["invariance"] == 2.0


def test_the_balanced_weight_follows_batch_dimension_and_views():
    cells, _ = answer(plan(SMALL, seeds=1), lambda cell: 0.5)
    weights = {
        (cell.settings["ablation"], cell.settings["value"]): cell.recipe.hyper["invariance"]
        for cell in cells
        if cell.settings.get("balanced")
    }
    assert weights == {
        ("dimension", 64): 8.0,
        ("dimension", 1024): 0.5,
        ("batch", 32): 0.5,
        ("batch", 64): 1.0,
        ("batch", 256): 4.0,
        ("views", 4): 2 / 3,
        ("views", 8): 2 / 7,
    }
    for (
        size
    ) in FIGURE.sizes.values():  # the unchanged recipes have this weight, so they are points of the balanced curve
        recipe = compared_cell(size.comparison, "frossl", None, 0, None).recipe
        assert with_balance(recipe).hyper["invariance"] == pytest.approx(recipe.hyper.get("invariance", 1.0))


def test_only_names_ablations():
    cells, _ = answer(plan(SMALL, seeds=1, only=["views"]), lambda cell: 0.5)
    assert {cell.settings["method"] for cell in cells} == {"frossl"}
    assert {cell.settings.get("ablation") for cell in cells} == {None, "views"}
    with pytest.raises(UserError, match="unknown ablation 'view'"):
        plan(SMALL, only=["view"])


def test_the_unchanged_recipe_is_a_point_of_its_ablation():
    rows = campaign(lambda settings: 0.3 if "ablation" in settings else 0.4)
    found = accuracies(read_points(read_rows(rows), "batch", "frossl"))
    assert list(found) == [32, 64, 128, 256]
    assert [round(min(by_seed.values()), 3) for by_seed in found.values()] == [0.298, 0.298, 0.399, 0.298]
    assert list(read_points(read_rows(rows), "epsilon", "corinfomax")) == sorted(SMALL.values["epsilon"]), (
        "its recipe has another N and D"
    )


@pytest.mark.parametrize(("loss", "expected"), [(0.0, True), (0.1, False), (0.02, None)])
def test_small_batches(loss, expected):
    assert verdicts(campaign(lambda settings: 0.4 - loss * (settings.get("ablation") == "batch")))[0] is expected


def test_epsilon_is_critical_if_accuracies_differ_or_runs_diverge():
    assert verdicts(campaign(lambda settings: 0.4 + 0.1 * (settings.get("value") == 1e-2)))[1] is True
    assert verdicts(campaign())[1] is False
    assert verdicts(campaign(diverged=lambda settings: settings.get("value") == 1e-8))[1] is True
    one_seed = campaign(diverged=lambda settings: settings.get("value") == 1e-8)
    one_seed["rows"] = [each for each in one_seed["rows"] if each["seed"] == 0]
    assert verdicts(one_seed)[1] is None


def test_a_better_invariance_weight_contradicts_4N_over_D():
    assert verdicts(campaign())[2] is True
    assert verdicts(campaign(lambda settings: 0.4 + 0.1 * (settings.get("ablation") == "invariance")))[2] is False


@pytest.mark.parametrize(("loss", "expected"), [(0.0, True), (0.1, False), (0.02, None)])
def test_weight_1_and_the_balanced_weight_are_compared_with_the_unchanged_recipe(loss, expected):
    assert verdicts(campaign(lambda settings: 0.4 - loss * (settings.get("value") == 1.0)))[3] is expected
    assert verdicts(campaign(lambda settings: 0.4 - loss * settings.get("balanced", False)))[4] is expected
    unbalanced = campaign(
        lambda settings: 0.4 - 0.1 * (settings.get("ablation") == "views" and not settings.get("balanced", False))
    )
    assert verdicts(unbalanced)[4] is True, "the runs with the unchanged weight are only shown beside"


def test_all_panels_have_data():
    rows = campaign()
    drawing = FIGURE.plot(rows)
    drawing.canvas.draw()
    assert all(axis.has_data() for axis in drawing.axes)
    lines = ablations.markdown(rows).splitlines()[2:]
    points = sum(
        len(read_points(read_rows(rows), name, method, balanced=balanced))
        for name, ablation in ABLATIONS.items()
        for method, balanced in ablation.curves
    )
    assert len(lines) == points + 2  # and the two lines of the logarithms
