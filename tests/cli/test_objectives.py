"""Every objective, from the command line to the report."""

import json
from dataclasses import replace

import pytest

from fullrank.cli import main
from fullrank.objectives import OBJECTIVES
from fullrank.recipes import to_dict
from fullrank.run import Run


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_trains_and_its_report_shows_each_term(name, small, tmp_path, capsys):
    recipe = tmp_path / "recipe.json"
    recipe.write_text(json.dumps(to_dict(replace(small, epochs=1, checkpoints=1))))
    half = ["--hyper.d0", "8"] if name.startswith("directclr") else []  # of the backbone's 16 dimensions
    path = tmp_path / "run"
    assert main(["pretrain", str(recipe), "--objective", name, *half, "--out", str(path)]) == 0
    run = Run(path)
    terms = [row["terms"] for row in run.metrics if row["kind"] == "train"]
    assert len(terms) == 11
    assert run.recipe.objective == name
    page = (path / "report.html").read_text(encoding="utf-8")
    assert all(term in page for term in terms[0])
    assert main(["evaluate", str(path)]) == 0 if name == "dino" else True
    capsys.readouterr()
