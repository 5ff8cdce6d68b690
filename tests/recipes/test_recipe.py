from dataclasses import fields, is_dataclass, replace

import docstring_parser
import numpy as np
import pytest

from fullrank import recipes
from fullrank.errors import UserError
from fullrank.methods import BackboneConfig, ProjectorConfig
from fullrank.objectives import OBJECTIVES
from fullrank.objectives.signature import hyperparameters
from fullrank.training import OptimizerConfig
from fullrank.views import CropConfig, ViewConfig


def test_a_recipe_survives_its_file(tmp_path):
    for recipe in recipes.RECIPES.values():
        assert recipes.from_dict(recipes.to_dict(recipe)) == recipe
        assert set(recipe.hyper) == set(hyperparameters(OBJECTIVES[recipe.objective]))
    (tmp_path / "recipe.json").write_text('{"epochs": 3, "views": [{"size": 16}]}')
    assert recipes.read_recipe(tmp_path / "recipe.json") == recipes.Recipe(epochs=3, views=(ViewConfig(size=16),))


def test_every_field_of_a_recipe_is_documented():
    kinds = [recipes.Recipe, ViewConfig]
    for kind in kinds:
        kinds += [type(value) for value in vars(kind()).values() if is_dataclass(value)]
        documented = {argument.arg_name for argument in docstring_parser.parse_from_object(kind).params}
        fields_to_document = {f.name for f in fields(kind) if not is_dataclass(getattr(kind(), f.name))}
        assert fields_to_document <= documented, kind
    assert len(kinds) > 8


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        (("epoch",), 3, "there is no field 'epoch'; did you mean 'epochs'?"),
        (("views", 0, "crop", "size"), 3, "recipe.views.0.crop: there is no field 'size'"),
        (("views", 0, "crop", "scale"), [1, 0.5], "recipe.views.0.crop.scale: "),
        (("epochs",), 1.5, "recipe.epochs: got 1.5, expected a valid integer"),
        (("objective",), "frosl", "did you mean 'frossl'?"),
        (("hyper", "invarianc"), 1.0, "there is no field 'invarianc'; did you mean 'invariance'?"),
        (("name",), "../elsewhere", "recipe.name: "),
        (("projector", "widths"), [65536, 65536], "recipe.projector.widths: "),
    ],
)
def test_the_error_of_a_wrong_field_names_it(path, value, expected):
    values = recipes.to_dict(recipes.RECIPES["digits"])
    parent = values
    for name in path[:-1]:
        parent = parent[name]
    parent[path[-1]] = value
    with pytest.raises(UserError) as caught:
        recipes.from_dict(values)
    assert expected in str(caught.value)


@pytest.mark.parametrize("text", ["{", "[]", "", "3", "[" * 10_000, '{"seed": NaN}'])
def test_a_damaged_file_is_an_error_that_names_the_file(tmp_path, text):
    path = tmp_path / "recipe.json"
    path.write_text(text)
    with pytest.raises(UserError, match=str(path)):
        recipes.read_recipe(path)


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(UserError, match=r"it has no recipe.json; give the folder"):
        recipes.read_recipe(tmp_path / "recipe.json")


def test_numbers_of_numpy_and_lists_are_taken_and_wrong_values_are_not():
    assert recipes.Recipe(views=[ViewConfig()], batch_size=int(np.int64(64))).views == (ViewConfig(),)
    for wrong in ({"seed": -1}, {"epochs": 0}, {"batch_size": 1}, {"epochs": True}, {"views": ()}, {"data": "digits"}):
        with pytest.raises(UserError, match=next(iter(wrong))):
            recipes.Recipe(**wrong)
    with pytest.raises(UserError, match="lr"):
        OptimizerConfig(lr=float("nan"))


CHANGES = {
    "epochs": {"epochs": 3},
    "hyper": {"hyper": {"invariance": 3.0}},
    "views": {"views": (ViewConfig(crop=CropConfig(scale=(0.5, 1.0))),)},
    "number of views": {"views": (ViewConfig(), ViewConfig())},
    "backbone": {"backbone": BackboneConfig(name="resnet50")},
    "projector": {"projector": ProjectorConfig(widths=(64,))},
    "optimizer": {"optimizer": OptimizerConfig(lr=0.1)},
    "streaming": {"data": recipes.DataConfig(storage="streaming")},
    "normalisation": {"data": recipes.DataConfig(mean=(0.5,) * 3)},
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_fingerprint_differs_for_what_decides_the_weights(change):
    assert recipes.Recipe(**CHANGES[change]).fingerprint != recipes.Recipe().fingerprint


# Objective → the fingerprint of its default recipe at commit 504a6892, whose checkpoints and rows stay usable.
EARLIER = {"frossl": "b4f12c40be35b0d9", "wmse": "4d5845c344ad8c61", "ivne": "c331da5fe3d9fbf4"}
EARLIER |= {"swav": "c2be918a6f530127"}


@pytest.mark.parametrize("objective", EARLIER)
def test_fields_that_came_later_leave_the_fingerprint_as_it_was(objective):
    recipe = recipes.with_objective(recipes.Recipe(), objective)
    assert recipe.fingerprint == EARLIER[objective]
    changed = {"wmse": {"whitening": "zca"}, "ivne": {"full": 1}}.get(objective, {})
    projector = replace(recipe.projector, output_iternorm=0 if changed else 2)
    assert replace(recipe, hyper=recipe.hyper | changed, projector=projector).fingerprint != recipe.fingerprint


def test_the_fingerprint_stays_for_other_names_logs_and_places():
    data, spectrum = recipes.DataConfig(source="x", workers=3), recipes.SpectrumConfig(every=3)
    other = recipes.Recipe(name="other", log_every=3, data=data, spectrum=spectrum, checkpoints=3)
    again = recipes.from_dict(recipes.to_dict(recipes.Recipe()))
    assert other.fingerprint == recipes.Recipe().fingerprint == again.fingerprint
    assert not recipes.decides_weights("data.reading.max_pixels")
    assert recipes.decides_weights("data.reading.label_column")
