"""Campaigns: runs are taken from their folder, partial results are drawn, and a result is not replaced by one with
fewer runs."""

import json
import signal
import sys
from dataclasses import dataclass, replace
from types import ModuleType

import pytest
from rich.console import Console

from fullrank.cli import main
from fullrank.errors import Interrupted, ProcessFailed, UserError
from fullrank.recipes import DataConfig, Recipe, with_objective
from fullrank.report.plot_style import subplots
from fullrank.sweep import Cell, EvaluationPlan, Row, identify
from fullrank_papers.figures import Campaign, campaign, collect_campaign, run_campaign
from fullrank_papers.figures import figure as figure_module
from fullrank_papers.figures.campaign import campaign_result, require_one_digest
from fullrank_papers.figures.figure import paper_claim

METHODS = ("frossl", "vicreg")
KNN = EvaluationPlan(probes=("knn",))


@dataclass(frozen=True)
class Size:
    recipe: Recipe
    seeds: int = 1


def plan(size, *, data=None, seeds=None, only=()):
    def cells(rows):
        return [
            Cell(
                f"{name}-seed{seed}",
                replace(with_objective(size.recipe, name), seed=seed),
                {"method": name},
                EvaluationPlan(probes=("knn",)),
            )
            for name in only or METHODS
            for seed in range(seeds or size.seeds)
        ]

    return cells


def plot(rows):
    figure, axes = subplots()
    axes[0, 0].plot([row["scores"]["digits"]["knn"] for row in rows["rows"]])
    return figure


def evaluate_claims(rows):
    methods = {row["settings"]["method"] for row in rows["rows"]}
    return {"both methods were measured": paper_claim("2", str(len(methods)), True if len(methods) == 2 else None)}


@pytest.fixture
def toy(monkeypatch, small):
    campaign = Campaign(
        title="Table 0",
        claim="both methods were measured",
        sizes={
            "smoke": Size(replace(small, epochs=1, checkpoints=1, batch_size=64, data=replace(small.data, subset=256)))
        },
        plan=plan,
        plot=plot,
        evaluate_claims=evaluate_claims,
        methods=METHODS,
        images="digits",
        markdown=lambda rows: f"| {len(rows['rows'])} |",
    )
    module = ModuleType("fullrank_papers.figures.toys.table")
    setattr(module, "FIGURE", campaign)  # noqa: B010  for type checkers
    monkeypatch.setitem(sys.modules, "fullrank_papers.figures.toys", ModuleType("fullrank_papers.figures.toys"))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(figure_module, "FIGURES", ("toys/table",))
    return "toys/table"


def command(*arguments):
    return main([str(argument) for argument in ("reproduce", *arguments)])


def test_a_campaign_runs_what_is_missing_and_draws_what_is_done(toy, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    options = (toy, "--size", "smoke", "--out", "out")
    assert command(*options, "--only", "vicreg") == 0
    path = tmp_path / "out" / "toys" / "table-smoke.json"
    assert len(json.loads(path.read_text())["rows"]["rows"]) == 1
    partial = collect_campaign(toy, size="smoke")
    assert (len(partial.rows["rows"]), partial.rows["cells"]) == (1, 2)
    assert [claim.verdict for claim in partial.claims] == ["undecidable at this size"]
    assert any("1 of 2 runs" in text.get_text() for text in partial.draw().texts)

    result, rows = run_campaign(toy, size="smoke", console=Console(quiet=True))
    assert [row.settings["method"] for row in rows] == ["frossl", "vicreg"]
    assert result.rows["rows"][1] == json.loads(path.read_text())["rows"]["rows"][0]  # taken, not trained again
    assert (result.data, result.seed) == ("digits", 0)
    assert result.environment["commit"]
    capsys.readouterr()
    assert command(*options, "--redraw") == 0
    assert "| 2 |" in capsys.readouterr().out
    assert {file.name for file in path.parent.iterdir()} == {
        f"table-smoke.{suffix}" for suffix in ("json", "svg", "png", "md")
    }

    before = path.read_text()
    assert command(*options, "--only", "vicreg") == 0  # two runs are not replaced by one
    printed = capsys.readouterr()
    assert "| 1 |" in printed.out
    assert "has 2 runs, more than these 1, and was kept" in " ".join(printed.err.split())
    assert path.read_text() == before
    assert command(toy, "--size", "smoke", "--list") == 0
    assert "1\tdone\tfullrank reproduce toys/table --size smoke --cell vicreg-seed0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--size", "huge"], "unknown size of toys/table 'huge'"),
        (["--size", "smoke", "--only", "vicregg"], "unknown method of toys/table 'vicregg'"),
        (["--size", "smoke", "--seed", "3"], "give --seeds"),
        (["--size", "smoke", "--seeds", "0"], "expected the number of seeds"),
        (["--size", "smoke", "--cell", "9"], "--cell 9 is neither a number from 0 to 1"),
    ],
)
def test_a_wrong_option_of_a_campaign_is_an_error(toy, tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert command(toy, *arguments) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_an_option_of_campaigns_is_an_error_for_a_figure_without_runs(capsys):
    assert command("dynamics/theorem3", "--size", "smoke", "--seeds", "3") == 2
    assert "has no --seeds" in capsys.readouterr().err


@pytest.fixture
def rows():
    """Two rows of the toy campaign on the digits."""
    name, images = identify(DataConfig(source="digits"))
    row = Row(
        cell="a",
        recipe="r",
        objective="frossl",
        seed=0,
        status="done",
        data=name,
        images=images,
        scores={name: {"knn": 0.5}},
    )
    return [replace(row, cell=method, settings={"method": method}) for method in METHODS]


def store(toy, folder, rows):
    """Write a result of the toy campaign, and return its path."""
    path = folder / "toys" / "table-smoke.json"
    path.parent.mkdir(parents=True)
    campaign_result(toy, "smoke", rows, 2).write(path)
    return path


def test_a_result_of_other_images_is_refused_before_the_first_run(toy, rows, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = store(toy, tmp_path / "out", [replace(row, data="photos", images="b2") for row in rows])
    before = path.read_text()
    assert command(toy, "--size", "smoke", "--out", "out") == 2
    assert "has runs of other images (photos b2) than those of this call (digits " in capsys.readouterr().err
    assert path.read_text() == before
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("done", "message"), [(1, "has 2 runs, more than these 1"), (0, "were not drawn: the rows are damaged")]
)
def test_nothing_replaces_an_interruption(toy, rows, tmp_path, monkeypatch, capsys, done, message):
    def stop(name, **_):
        raise Interrupted(signal.SIGINT, "stopped: the same command goes on")

    def collect(name, **_):
        if not done:
            raise UserError("the rows are damaged")
        return campaign_result(name, "smoke", rows[:done], 2)

    monkeypatch.setattr(campaign, "run_campaign", stop)
    monkeypatch.setattr(campaign, "collect_campaign", collect)
    store(toy, tmp_path, rows)
    assert command(toy, "--size", "smoke", "--out", tmp_path) == 128 + signal.SIGINT
    errors = " ".join(capsys.readouterr().err.split())
    assert message in errors
    assert errors.endswith("stopped: the same command goes on")


def test_a_result_has_the_machine_and_the_commits_of_its_runs(toy):
    environments = [
        {"commit": commit, "torch": "2.0", "hardware": {"cpu": "slow", "threads": threads}}
        for commit, threads in zip("ab", "12", strict=True)
    ]
    row = Row(cell="a", recipe="r", objective="frossl", seed=0, status="done", data="digits")
    found = campaign_result(toy, "smoke", [replace(row, environment=each) for each in environments], 2).environment
    assert (found["commit"], found["torch"], found["hardware"]) == ("a, b", "2.0", {"cpu": "slow", "threads": "1, 2"})


def test_rows_of_other_images_under_one_name_are_refused():
    row = Row(cell="a", recipe="r", objective="frossl", seed=0, status="done", data="CIFAR-10", images="a1")
    with pytest.raises(UserError, match="runs of 'CIFAR-10' have different images"):
        require_one_digest([row, replace(row, images="b2")])


def test_failed_runs_of_one_campaign_do_not_end_the_others(monkeypatch, capsys):
    from fullrank_papers import cli as command_line

    def fail(name, options, *, redraw):
        raise ProcessFailed(f"runs of {name} failed")

    monkeypatch.setattr(command_line, "FIGURES", ("frossl/table2", "frossl/table3"))
    monkeypatch.setattr(command_line, "reproduce_campaign", fail)
    assert command("frossl", "--size", "smoke") == 1
    errors = capsys.readouterr().err
    assert "runs of frossl/table2 failed" in errors
    assert "runs of frossl/table3 failed" in errors
