"""The grid of a sweep: combinations, names, seeds, and the two stages of a choice."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fullrank.cli.sweep import read_values, value_of
from fullrank.errors import UserError
from fullrank.recipes import DataConfig, Recipe
from fullrank.recipes.recipe import is_folder_name
from fullrank.sweep import EvaluationPlan, Row
from fullrank.sweep.grid import CHOICE, STAGE, cell_names, combinations, grid_plan, seeds_of
from fullrank.sweep.table import choice_columns
from fullrank.training.config import OptimizerConfig

NAMES = ("objective", "optimizer.lr", "projector.widths", "hyper.invariance")
TEXT = st.text("aAé.-_/:,= \\", min_size=1, max_size=8)
VALUES = st.one_of(st.integers(-99, 99), st.floats(-10, 10), TEXT, st.booleans())
AXES = st.dictionaries(st.sampled_from(NAMES), st.lists(VALUES, min_size=1, max_size=4, unique_by=repr), max_size=4)


def build(values):
    return Recipe(
        objective=values.get("objective", "frossl"), optimizer=OptimizerConfig(lr=values.get("optimizer.lr", 0.1))
    )


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


@pytest.mark.parametrize("seeds", [[0], [-1, 2], [1, 1], []])
def test_wrong_seeds_are_refused(seeds):
    with pytest.raises(UserError, match="seed"):
        seeds_of(seeds)


def score(cell, accuracy):
    return Row(
        cell=cell.name,
        recipe="recipe",
        objective=cell.recipe.objective,
        seed=cell.recipe.seed,
        status="done",
        settings=dict(cell.settings),
        data="digits",
        scores={"digits": {"linear": accuracy}},
    )


def test_a_choice_is_made_on_held_out_images_with_a_seed_that_is_not_used_again():
    axes = {"objective": ["frossl", "vicreg"], "optimizer.lr": [0.1, 0.3]}
    plan = grid_plan(axes, build, seeds=(0, 1), evaluate=EvaluationPlan(), chosen="optimizer.lr")
    choices = plan([])
    assert len(choices) == 4
    assert {cell.recipe.seed for cell in choices} == {2}
    assert all(cell.recipe.data.validation == 0.1 and cell.settings[STAGE] == CHOICE for cell in choices)
    accuracy: dict[tuple, float] = {
        ("frossl", 0.1): 0.5,
        ("frossl", 0.3): 0.6,
        ("vicreg", 0.1): 0.7,
        ("vicreg", 0.3): 0.2,
    }
    rows = [score(cell, accuracy[cell.settings["objective"], cell.settings["optimizer.lr"]]) for cell in choices]
    assert plan(rows[:3]) == choices  # nothing is chosen before all values are known
    cells = plan(rows)
    assert cells[:4] == choices
    final = [
        (cell.recipe.objective, cell.recipe.optimizer.lr, cell.recipe.seed, cell.recipe.data.validation)
        for cell in cells[4:]
    ]
    assert final == [("frossl", 0.3, 0, 0.0), ("frossl", 0.3, 1, 0.0), ("vicreg", 0.1, 0, 0.0), ("vicreg", 0.1, 1, 0.0)]


def test_the_runs_that_are_compared_are_never_scored_on_the_images_of_the_choice():
    def with_validation(values):
        return replace(build(values), data=DataConfig(source="digits", validation=0.3))

    plan = grid_plan({"optimizer.lr": [0.1, 0.3]}, with_validation, evaluate=EvaluationPlan(), chosen="optimizer.lr")
    choices = plan([])
    (final,) = plan([score(cell, 0.5) for cell in choices])[2:]
    assert [cell.recipe.data.validation for cell in (*choices, final)] == [0.3, 0.3, 0.0]


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
