"""The grid of a sweep: combinations, names, seeds, and the two stages of a choice."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fullrank.cli.sweep import read_values, value_of
from fullrank.errors import UserError
from fullrank.recipes import DataConfig, Recipe
from fullrank.recipes.recipe import is_folder_name
from fullrank.sweep import EvaluationPlan, Row, collect_rows
from fullrank.sweep.grid import CHOICE, STAGE, cell_names, combinations, grid_plan, seeds_of
from fullrank.sweep.table import choice_columns
from fullrank.training.config import OptimizerConfig

NAMES = ("objective", "optimizer.lr", "projector.widths", "hyper.invariance")
TEXT = st.text("aAé.-_/:,= \\", min_size=1, max_size=8)
VALUES = st.one_of(st.integers(-99, 99), st.floats(-10, 10), TEXT, st.booleans())
AXES = st.dictionaries(st.sampled_from(NAMES), st.lists(VALUES, min_size=1, max_size=4, unique_by=repr), max_size=4)


def build(values):
    optimizer = OptimizerConfig(lr=values.get("optimizer.lr", 0.1))
    return Recipe(objective=values.get("objective", "frossl"), optimizer=optimizer)


@given(axes=AXES)
def test_names_of_cells_are_different_folders_on_every_system(axes):
    found = combinations(axes)
    names = [f"{name}-seed0" if name else "seed0" for name in cell_names(found)]
    assert len({name.casefold() for name in names}) == len(names)
    assert all(is_folder_name(name) for name in names)


def test_words_of_the_command_line_are_values_of_fields():
    flags = read_values(["--objective", "vicreg", "frossl", "--projector.widths", "512,64", "64", "--hyper.no-log"])
    assert flags == {"objective": ["vicreg", "frossl"], "projector.widths": ["512,64", "64"], "hyper.log": ["False"]}
    assert [value_of("projector.widths", word) for word in flags["projector.widths"]] == [[512, 64], [64]]
    assert [value_of("x", word) for word in ("False", "-0.5", "inf", "a,b")] == [False, -0.5, "inf", "a,b"]
    assert read_values(["--no-trust", "--no-list"]) == {"no_trust": [], "no_list": []}  # options of the sweep
    for words, message in ((["frossl"], "follows no flag"), (["--seed", "3"], "give --seeds"), (["--x"] * 2, "--x")):
        with pytest.raises(UserError, match=message):
            read_values(words)


def test_a_value_given_twice_and_equal_recipes_are_refused():
    with pytest.raises(UserError, match="a list of different values"):
        grid_plan({"objective": ["frossl", "frossl"]}, build)
    with pytest.raises(UserError, match="are the same recipe"):
        grid_plan({"epochs": [1, 2]}, build)  # this `build` ignores the epochs
    with pytest.raises(UserError, match=r"--choose optimizer\.lr needs at least two values"):
        grid_plan({"objective": ["frossl", "vicreg"]}, build, chosen="optimizer.lr")


@pytest.mark.parametrize("seeds", [0, [-1, 2], [1, 1], []])
def test_wrong_seeds_are_refused(seeds):
    with pytest.raises(UserError, match="seed"):
        seeds_of(seeds)


def score(cell, accuracy):
    of_cell = {"cell": cell.name, "objective": cell.recipe.objective, "seed": cell.recipe.seed}
    scores = {"digits": {"knn": 1 - accuracy, "linear": accuracy}}
    plan = EvaluationPlan(probes=("knn", "linear"))  # another sweep has asked for kNN
    shared = {"recipe": "recipe", "status": "done", "settings": dict(cell.settings), "data": "digits"}
    return Row(**of_cell, **shared, scores=scores, evaluate=plan)


@pytest.mark.parametrize("validation", [0.0, 0.3])
def test_a_choice_is_made_on_held_out_images_with_a_seed_that_is_not_used_again(validation):
    def with_validation(values):
        return replace(build(values), data=DataConfig(source="digits", validation=validation))

    axes = {"objective": ["frossl", "vicreg"], "optimizer.lr": [0.1, 0.3]}
    plan = grid_plan(axes, with_validation, seeds=(0, 1), chosen="optimizer.lr")
    choices = plan([])
    found = {(cell.recipe.seed, cell.recipe.data.validation, cell.settings[STAGE]) for cell in choices}
    assert found == {(2, validation or 0.1, CHOICE)}
    rows = [score(cell, accuracy) for cell, accuracy in zip(choices, (0.5, 0.6, 0.7, 0.2), strict=True)]
    assert plan(rows[:3]) == choices  # nothing is chosen before all values are known
    cells = plan(rows)
    assert cells[:4] == choices
    compared = [(cell.recipe.objective, cell.recipe.optimizer.lr, cell.recipe.seed) for cell in cells[4:]]
    assert compared == [("frossl", 0.3, 0), ("frossl", 0.3, 1), ("vicreg", 0.1, 0), ("vicreg", 0.1, 1)]
    assert all(cell.recipe.data.validation == 0.0 for cell in cells[4:])


def test_of_equal_scores_the_first_value_wins_whichever_run_ends_first(tmp_path):
    plan = grid_plan({"optimizer.lr": [0.1, 0.3]}, build, chosen="optimizer.lr")
    slow, fast = plan([])
    _, cells = collect_rows(plan, tmp_path, [score(fast, 0.5), score(slow, 0.5)])
    assert [cell.recipe.optimizer.lr for cell in cells[2:]] == [0.1]


def test_a_choice_at_the_edge_of_its_values_is_marked():
    axes = {"objective": ["frossl", "vicreg"], "optimizer.lr": [0.1, 0.2, 0.3]}
    plan = grid_plan(axes, build, chosen="optimizer.lr")
    rows = [score(cell, accuracy) for cell, accuracy in zip(plan([]), (0.1, 0.2, 0.3, 0.1, 0.4, 0.2), strict=True)]
    rows += [score(cell, 0.5) for cell in plan(rows)[6:]]
    assert choice_columns(rows)["chosen"] == ["", "", "yes, the largest of 3", "", "yes", ""]


def test_a_diverged_value_is_not_chosen_and_a_failed_one_prevents_the_choice():
    axes = {"optimizer.lr": [0.1, 0.3]}
    plan = grid_plan(axes, build, evaluate=EvaluationPlan(), chosen="optimizer.lr")
    slow, fast = plan([])
    failed = replace(score(fast, 0.9), status="failed", scores={})
    assert [cell.recipe.optimizer.lr for cell in plan([score(slow, 0.2), replace(failed, diverged=True)])[2:]] == [0.1]
    assert plan([score(slow, 0.2), failed])[2:] == []
