from fullrank.report.differ import differing, flatten, telling


def recipe(objective="frossl", *, widths=(512, 512), seed=0, **rest):
    projector = {"kind": "mlp", "widths": list(widths), "batchnorm": True}
    return {"objective": objective, "hyper": {f"weight of {objective}": 1.0}, "projector": projector, "seed": seed, **rest}


def test_what_follows_from_the_objective_is_not_said():
    assert telling([recipe("frossl"), recipe("simclr"), recipe("vicreg")]) == ["frossl", "simclr", "vicreg"]


def test_a_further_entry_is_said_only_where_the_ones_before_are_equal():
    runs = [recipe("frossl"), recipe("simclr"), recipe("simclr", widths=()), recipe("simclr", widths=(), seed=1)]
    assert telling(runs) == ["frossl", "simclr, projector 512-512", "simclr, projector none, seed 0", "simclr, projector none, seed 1"]


def test_a_projector_of_the_same_widths_is_told_by_what_else_it_has():
    plain, other = recipe(), recipe()
    other["projector"]["batchnorm"] = False
    assert telling([plain, other]) == ["projector.batchnorm true", "projector.batchnorm false"]


def test_measured_statistics_of_the_images_come_last():
    runs = [recipe(seed=seed, data={"mean": [0.1 + seed], "std": [0.2 + seed]}) for seed in (0, 1)]
    assert telling(runs) == ["seed 0", "seed 1"]


def test_equal_recipes_and_a_single_one_say_nothing():
    assert telling([recipe()]) == [""]
    assert telling([recipe(), recipe()]) == ["", ""]


def test_an_entry_that_an_older_recipe_lacks_tells_nothing():
    older = recipe()
    del older["projector"]["batchnorm"]
    assert telling([older, recipe()]) == ["", ""]
    assert differing([older, recipe()]) == {"projector.batchnorm": [None, "true"]}


def test_lists_of_numbers_are_one_leaf_and_lists_of_objects_are_entered():
    assert flatten({"views": [{"scale": [0.2, 1.0]}], "extra": []}) == {"views.0.scale": "[0.2, 1.0]", "extra": "[]"}
