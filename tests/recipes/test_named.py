"""Functions by name."""

from dataclasses import replace

import pytest
import torch

from fullrank.errors import UserError
from fullrank.recipes import RECIPES, assemble
from fullrank.recipes.named import function_named


def test_finds_a_function_of_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "my_steps_for_a_test.py").write_text("def twice(x):\n    return 2 * x\n")
    monkeypatch.chdir(tmp_path)
    assert function_named("my_steps_for_a_test:twice")(3) == 6


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("blur", r"'blur' names no function; expected package\.module:function"),
        ("no_such_module:f", r"No module named 'no_such_module'"),
        ("math:sqroot", r"module math has no function sqroot; perhaps you meant 'sqrt'\?"),
    ],
)
def test_a_wrong_name_is_one_clear_line(name, message):
    with pytest.raises(UserError, match=message):
        function_named(name)


def test_an_extra_step_of_a_recipe_changes_its_views(tmp_path, monkeypatch):
    (tmp_path / "my_black_for_a_test.py").write_text("def black(x, generator):\n    return 0 * x\n")
    monkeypatch.chdir(tmp_path)
    data = replace(RECIPES["digits"].data, mean=(0.5,), std=(0.25,))
    views = assemble(replace(RECIPES["digits"], data=data, extra=("my_black_for_a_test:black",))).views
    (x,) = views(torch.full((4, 1, 8, 8), 200, dtype=torch.uint8), views.draw(0, 0, 4))
    torch.testing.assert_close(x, torch.full_like(x, -2.0))
