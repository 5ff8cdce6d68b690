"""The ablations: their cells and their verdicts on hand-made rows."""

import pytest
from handmade import answer, as_result, row

from fullrank.errors import UserError
from fullrank.reproduce.frossl import ablations
from fullrank.reproduce.frossl.ablations import ABLATIONS, FIGURE, accuracies, plan, read_points
from fullrank.reproduce.frossl.comparison import plan as comparison_plan
from fullrank.reproduce.frossl.comparison import read_rows
from fullrank.reproduce.frossl.sizes import SMALL_SIZE

SMALL = FIGURE.sizes["small"]
NOISE = (0.000, 0.002, -0.001)
UNCHANGED = {"invariance": 2.0, "dimension": 256, "batch": 128, "views": 2}


def campaign(accuracy=lambda settings: 0.4, *, diverged=lambda settings: False):
    """Return a result in which the accuracy of a run follows from its settings."""
    rows = [
        row(name, seed, accuracy({}) + noise) for name in ("frossl", "nologs", "simclr", "corinfomax") for seed, noise in enumerate(NOISE)
    ]
    for name, values in SMALL.values.items():
        for method in ABLATIONS[name].methods:
            for value in values:
                settings = {"ablation": name, "value": value, **({"unchanged": UNCHANGED[name]} if name in UNCHANGED else {})}
                rows += [
                    row(method, seed, accuracy(settings) - noise, stage="ablation", diverged=diverged(settings), **settings)
                    for seed, noise in enumerate(NOISE)
                ]
    return as_result(rows)


def verdicts(rows):
    return [claim.holds for claim in FIGURE.claims(rows)]


def test_ablations_start_from_the_runs_of_the_tables():
    cells, _ = answer(plan(SMALL, seeds=1), lambda cell: 0.5)
    names = {cell.name.removeprefix("cifar10-compared-"): cell for cell in cells}
    table, _ = answer(comparison_plan(SMALL_SIZE, seeds=1, only=["simclr", "corinfomax", "nologs", "frossl"]), lambda cell: 0.5)
    assert all(names[cell.name.removeprefix("cifar10-compared-")] == cell for cell in table)
    ablated = [cell for cell in cells if cell.settings["stage"] == "ablation"]
    assert {cell.settings.get("unchanged") for cell in ablated} == {None, *UNCHANGED.values()}
    assert {cell.recipe.optimizer.lr for cell in ablated if cell.settings["ablation"] == "dimension"} == {0.001}, "the chosen rate"
    recipe = names["corinfomax-20epochs-lr0.00141421-epsilon1e-06-seed0"].recipe
    assert (recipe.batch_size, recipe.projector.widths[-1], recipe.hyper["epsilon"], recipe.hyper["invariance"]) == (256, 256, 1e-6, 500.0)
    assert sum(view.count for view in names["frossl-20epochs-lr0.001-views8-seed0"].recipe.views) == 8
    assert names["simclr-20epochs-lr0.0005-batch32-seed0"].recipe.batch_size == 32
    assert names["frossl-20epochs-lr0.001-invariance8-seed0"].recipe.hyper["invariance"] == 8.0


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
    assert list(read_points(read_rows(rows), "epsilon", "corinfomax")) == sorted(SMALL.values["epsilon"]), "its recipe has another N and D"


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


def test_a_better_invariance_weight_contradicts_no_tuning():
    assert verdicts(campaign())[2] is True
    assert verdicts(campaign(lambda settings: 0.4 + 0.1 * (settings.get("ablation") == "invariance")))[2] is False


def test_all_panels_have_data():
    rows = campaign()
    drawing = FIGURE.plot(rows)
    drawing.canvas.draw()
    assert all(axis.has_data() for axis in drawing.axes)
    lines = ablations.markdown(rows).splitlines()[2:]
    points = sum(len(read_points(read_rows(rows), name, method)) for name, ablation in ABLATIONS.items() for method in ablation.methods)
    assert len(lines) == points + 2  # and the two lines of the logarithms
