"""Objectives from the command line to the report: the library's, and a user's own, as in docs/own-objective.md."""

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import fullrank as library
from fullrank.recipes import to_dict, user_code, with_objective
from fullrank.run import Run

PAGE = Path(__file__).parents[2].joinpath("docs/own-objective.md").read_text(encoding="utf-8")


def test_an_objective_trains_and_its_report_shows_each_term(small, tmp_path, fullrank):
    recipe, path = tmp_path / "recipe.json", tmp_path / "run"
    recipe.write_text(json.dumps(to_dict(replace(small, epochs=1, checkpoints=1))))
    flags = ("--objective", "directclr", "--hyper.d0", "8")  # of the backbone's 16 dimensions
    status, _, err = fullrank("pretrain", recipe, *flags, "--out", path)
    assert status == 0, err
    run = Run(path)
    assert (run.recipe.objective, len(run.metrics.train)) == ("directclr", 11)
    page = (path / "report.html").read_text(encoding="utf-8")
    assert all(term in page for term in run.metrics.train[0].terms)


@pytest.fixture
def my_module(tmp_path, monkeypatch):
    """The working directory holds the modules of the page, in one."""
    blocks = re.findall(r"```python\n# my_module.py\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 4
    blocks.append("def build_nothing(make_encoder, objective, views):\n    return None\n")
    (tmp_path / "module_of_docs.py").write_text("\n".join(blocks))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(os.getcwd())
    return "module_of_docs"


def test_a_users_method_trains_resumes_and_loads(my_module, small, fullrank, refused, assert_same, monkeypatch):
    flags = ["--objective", f"{my_module}:my_two_head_loss", "--method-builder", f"{my_module}:build_two_heads"]
    Path("recipe.json").write_text(json.dumps(to_dict(replace(small, checkpoints=2))))
    status, _, error = fullrank("pretrain", "recipe.json", *flags, "--method.dimensions", "16", "--out", "run")
    assert status == 0, error
    assert f"imports {my_module}:my_two_head_loss from " in error
    run = Run(Path("run"))
    assert (run.recipe.method_builder, run.recipe.method) == (f"{my_module}:build_two_heads", {"dimensions": 16})
    assert run.checkpoint().weights()["head.0.weight"].shape == (16, 24)
    shutil.copytree("run", "stopped")
    shutil.rmtree(Run(Path("stopped")).checkpoint().path)
    monkeypatch.setattr(user_code, "_imported", {})  # as in a new process
    assert "--trust" in refused("pretrain", "--resume", "stopped")
    assert library.load("run").recipe.method == {"dimensions": 16}  # needs no code of the user's
    status, _, error = fullrank("pretrain", "--resume", "stopped", "--trust")
    assert status == 0, error
    assert_same("run", "stopped")
    assert "--method.dimensions" in fullrank("pretrain", "digits", *flags, "--method.dimension", "3")[2]


def test_a_users_stateful_objective_is_trained(my_module, small, train):
    run = train(replace(with_objective(small, f"{my_module}:my_centred_loss"), epochs=1, checkpoints=1))
    assert run.checkpoint().weights()["state.mean"].norm() > 0


def test_a_users_objective_with_labels_is_trained_and_measured_on_held_out_images(my_module, small, train):
    run = train(replace(with_objective(small, f"{my_module}:supervised_contrastive"), epochs=1, checkpoints=1))
    assert run.metrics.train[-1].terms.keys() == {"contrast"}
    assert run.metrics.spectrum[-1].held_out_loss is not None


def test_an_invalid_builder_is_refused(my_module, fullrank):
    status, _, error = fullrank("pretrain", "digits", "--method-builder", f"{my_module}:build_nothing", "--out", "run")
    assert status == 2
    assert "expected a fullrank.methods.Method" in error
