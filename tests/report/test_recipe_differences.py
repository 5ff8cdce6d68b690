from dataclasses import replace

from fullrank.recipes import Recipe, to_file
from fullrank.report.recipe_differences import describe_differences, differing_entries


def recipe(objective="frossl", *, widths=(512, 512), seed=0, **rest):
    projector = {"kind": "mlp", "widths": list(widths), "batchnorm": True}
    return {
        "objective": objective,
        "hyper": {f"weight of {objective}": 1.0},
        "projector": projector,
        "seed": seed,
        **rest,
    }


def test_entries_that_follow_from_the_objective_are_omitted():
    assert describe_differences([recipe("frossl"), recipe("simclr"), recipe("vicreg")]) == [
        "frossl",
        "simclr",
        "vicreg",
    ]


def test_a_further_entry_describes_only_runs_that_are_equal_so_far():
    recipes = [recipe("frossl"), recipe("simclr"), recipe("simclr", widths=()), recipe("simclr", widths=(), seed=1)]
    expected = [
        "frossl",
        "simclr, projector 512-512",
        "simclr, projector none, seed 0",
        "simclr, projector none, seed 1",
    ]
    assert describe_differences(recipes) == expected


def test_projectors_of_equal_widths_differ_in_other_entries():
    one, other = recipe(), recipe()
    other["projector"]["batchnorm"] = False
    assert describe_differences([one, other]) == ["projector.batchnorm true", "projector.batchnorm false"]


def test_statistics_of_the_images_come_last():
    recipes = [recipe(seed=seed, data={"mean": [0.1 + seed], "std": [0.2 + seed]}) for seed in (0, 1)]
    assert describe_differences(recipes) == ["seed 0", "seed 1"]


def test_equal_recipes_have_empty_descriptions():
    assert describe_differences([recipe()]) == [""]
    assert describe_differences([recipe(), recipe()]) == ["", ""]


def test_an_entry_that_an_older_recipe_lacks_does_not_describe_it():
    older = recipe()
    del older["projector"]["batchnorm"]
    assert describe_differences([older, recipe()]) == ["", ""]
    assert differing_entries([older, recipe()]) == {"projector.batchnorm": [None, "true"]}


def test_the_format_of_the_file_is_no_difference():
    recipes = [to_file(replace(Recipe(), epochs=epochs)) | {"format": epochs} for epochs in (3, 100)]
    assert differing_entries(recipes) == {"epochs": ["3", "100"]}
