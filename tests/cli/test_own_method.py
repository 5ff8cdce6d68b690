"""The user's own objective, state and method, as in docs/objectives.md: trained, resumed and loaded."""

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import fullrank as library
from fullrank.errors import UserError
from fullrank.recipes import Recipe, functions, import_code, to_dict, with_objective
from fullrank.run import Run, resume_command

PAGE = Path(__file__).parents[2].joinpath("docs/objectives.md").read_text(encoding="utf-8")


@pytest.fixture
def my_module(tmp_path, monkeypatch):
    """The working directory holds the modules of the page, in one."""
    blocks = re.findall(r"```python\n# my_module.py\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 3
    blocks.append("def build_nothing(make_encoder, objective, views):\n    return None\n")
    (tmp_path / "module_of_docs.py").write_text("\n".join(blocks))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(os.getcwd())
    return "module_of_docs"


@pytest.fixture
def flags(my_module):
    return ["--objective", f"{my_module}:my_two_head_loss", "--method-builder", f"{my_module}:build_two_heads"]


def test_a_users_method_is_trained_and_resumed(my_module, flags, small, fullrank, refused, assert_same, monkeypatch):
    Path("recipe.json").write_text(json.dumps(to_dict(replace(small, checkpoints=2))))
    status, _, error = fullrank("pretrain", "recipe.json", *flags, "--method.dimensions", "16", "--out", "run")
    assert status == 0, error
    run = Run(Path("run"))
    assert (run.recipe.method_builder, run.recipe.method) == (f"{my_module}:build_two_heads", {"dimensions": 16})
    assert run.checkpoint().weights()["head.0.weight"].shape == (16, 24)
    shutil.copytree("run", "stopped")
    shutil.rmtree(Run(Path("stopped")).checkpoint().path)
    assert resume_command(Path("stopped")) == "fullrank pretrain --resume stopped --trust"
    monkeypatch.setattr(functions, "_imported", {})  # as in a new process
    assert "--trust" in refused("pretrain", "--resume", "stopped")
    status, _, error = fullrank("pretrain", "--resume", "stopped", "--trust")
    assert status == 0, error
    assert f"imports {my_module}:my_two_head_loss from " in error
    assert_same("run", "stopped")


def test_a_run_is_loaded_without_its_builder(my_module, small, train):
    recipe = with_objective(small, f"{my_module}:my_two_head_loss", method_builder=f"{my_module}:build_two_heads")
    run = train(replace(recipe, epochs=1, checkpoints=1))
    stored = json.loads((run.path / "recipe.json").read_text())
    stored |= {"objective": "no_such_module:loss", "method_builder": "no_such_module:build"}
    (run.path / "recipe.json").write_text(json.dumps(stored))
    assert library.load(run.path).recipe.method == {"dimensions": 32}


def test_a_users_stateful_objective_is_trained(my_module, small, train):
    run = train(replace(with_objective(small, f"{my_module}:my_centred_loss"), epochs=1, checkpoints=1))
    assert run.checkpoint().weights()["state.mean"].norm() > 0


def test_an_invalid_builder_is_refused(my_module, flags, small, refused, fullrank):
    with pytest.raises(UserError, match="no_builder"):
        import_code(replace(small, method_builder=f"{my_module}:no_builder"), trust=True)
    with pytest.raises(UserError, match="hyperparameter 'width'"):
        import_code(Recipe(method_builder=f"{my_module}:build_two_heads", method={"width": 3}), trust=True)
    assert "--method.dimensions" in refused("pretrain", "digits", *flags, "--method.dimension", "3")
    builder = f"{my_module}:build_nothing"
    status, _, error = fullrank("pretrain", "digits", "--method-builder", builder, "--out", "run")
    assert (status, len(error.splitlines())) == (2, 2)
    assert error.startswith(f"imports {builder} from ")
    assert "expected a fullrank.methods.Method" in error
