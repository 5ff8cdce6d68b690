import sys
from dataclasses import replace

import pytest
import torch

from fullrank.errors import UserError
from fullrank.objectives import frossl
from fullrank.recipes import DataConfig, Recipe
from fullrank.recipes.assemble import build_transform
from fullrank.recipes.named import import_function, resolve_objective


@pytest.fixture
def steps(tmp_path, monkeypatch):
    """A module of the user's own, in the working directory."""
    (tmp_path / "my_steps.py").write_text("def invert(x, generator):\n    return 1 - x\n\nNUMBER = 3\n")
    (tmp_path / "my_broken.py").write_text("import no_such_module_of_mine\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield "my_steps:invert"
    sys.modules.pop("my_steps", None)


def test_a_module_of_the_working_directory_is_found(steps):
    assert import_function(steps)(0.25, None) == 0.75


def test_an_installed_module_is_found():
    assert import_function("torch.nn.functional:relu") is torch.nn.functional.relu


@pytest.mark.parametrize("name", ["math.sqrt", ":sqrt", "math:", ""])
def test_another_form_is_refused(name):
    with pytest.raises(UserError, match=f"^'{name}' names no function; expected package.module:function$"):
        import_function(name)


def test_a_module_that_is_not_there_is_named(steps):
    with pytest.raises(UserError, match=r"'my_stepz:invert': No module named 'my_stepz'; expected package.module:function, importable"):
        import_function("my_stepz:invert")
    with pytest.raises(UserError, match="'my_broken:f': No module named 'no_such_module_of_mine'"):
        import_function("my_broken:f")


@pytest.mark.parametrize("name", ["inver", "NUMBERS"])
def test_a_function_that_is_not_there_suggests_the_nearest(steps, name):
    with pytest.raises(UserError, match=f"'my_steps:{name}': module my_steps has no function {name}"):
        import_function(f"my_steps:{name}")
    with pytest.raises(UserError, match=r"perhaps you meant 'invert'\?"):
        import_function("my_steps:inver")


def test_an_extra_step_of_a_recipe_changes_its_views(steps):
    recipe = Recipe(data=DataConfig(channels=1, mean=(0.0,), std=(1.0,)))
    images = torch.randint(0, 256, (3, 1, 40, 40), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    plain, inverted = (build_transform(each) for each in (recipe, replace(recipe, custom_transforms=(steps,))))
    draws = plain.make_params(0, 0, 3)
    torch.testing.assert_close(inverted(images, draws)[0], 1 - plain(images, draws)[0])


def test_an_objective_is_the_librarys_or_the_users_own(steps):
    assert resolve_objective("frossl") is frossl
    assert resolve_objective(steps)(0.25, None) == 0.75
    with pytest.raises(UserError, match=r"unknown objective 'invert'; .*; one of your own is named package.module:function$"):
        resolve_objective("invert")
    with pytest.raises(UserError, match="'my_steps:NUMBER': NUMBER of module my_steps is a int, expected a function"):
        resolve_objective("my_steps:NUMBER")


def test_a_recipe_names_an_objective_of_the_users_own(steps, tmp_path):
    (tmp_path / "my_loss.py").write_text("def loss(Z, *, weight=2.0):\n    return {'sum': weight * Z.sum()}\n")
    recipe = Recipe(objective="my_loss:loss", hyper={"weight": 3})
    assert (recipe.hyper, recipe.method) == ({"weight": 3.0}, {"shared": True})
    with pytest.raises(UserError, match="objective 'my_loss:loss' has no number 'wait'; it takes weight"):
        Recipe(objective="my_loss:loss", hyper={"wait": 3})
    sys.modules.pop("my_loss")
