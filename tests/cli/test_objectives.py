"""Every objective, from the command line to the report."""

import json
from dataclasses import replace

import pytest

from fullrank.cli import main
from fullrank.objectives import OBJECTIVES
from fullrank.recipes import to_dict, with_objective
from fullrank.run import Run


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_trains_and_its_report_shows_each_term(name, small, tmp_path):
    recipe = tmp_path / "recipe.json"
    recipe.write_text(json.dumps(to_dict(replace(small, epochs=1, checkpoints=1))))
    flags = ["--hyper.d0", "8"] if name.startswith("directclr") else []  # of the backbone's 16 dimensions
    path = tmp_path / "run"
    assert main(["pretrain", str(recipe), "--objective", name, *flags, "--out", str(path)]) == 0
    run = Run(path)
    terms = [row.terms for row in run.metrics.train]
    assert len(terms) == 11
    assert run.recipe.objective == name
    page = (path / "report.html").read_text(encoding="utf-8")
    assert all(term in page for term in terms[0])


def test_evaluate_uses_only_the_backbone_of_a_run_with_teacher_and_prototypes(small, train, capsys):
    run = train(replace(with_objective(small, "dino"), epochs=1, checkpoints=1))
    assert main(["evaluate", str(run.path)]) == 0
    assert "untrained backbone" in {score.features for score in run.evaluations[0].scores}
    capsys.readouterr()
