"""`fullrank reproduce`: stored results, a synthetic figure, and a synthetic campaign of two runs."""

import json
import shutil
import signal
import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import ModuleType

import pytest

from fullrank.cli import main
from fullrank.errors import Interrupted, ProcessFailed, UserError
from fullrank.plot_style import subplots
from fullrank.recipes import DataConfig, with_objective
from fullrank.sweep import Cell, EvaluationPlan, Jobs, Row, identify
from fullrank_papers import cli
from fullrank_papers.figures import FIGURES, CampaignRuns, Result, load_committed, load_figure, reproduce
from fullrank_papers.figures.figure import verdict
from fullrank_papers.figures.result import round_numbers
from fullrank_papers.plot_style import to_svg

METHODS = ("frossl", "vicreg")


@dataclass(frozen=True)
class Size:
    recipe: object = None
    seeds: int = 1
    methods: list = field(default_factory=lambda: list(METHODS))


def plan(size, *, data=None, transfer=()):
    def cell(name, seed):
        recipe = replace(with_objective(size.recipe, name), seed=seed)
        return Cell(f"{name}-seed{seed}", recipe, {"method": name}, EvaluationPlan(probes=("knn",)))

    return lambda rows: [cell(name, seed) for name in size.methods for seed in range(size.seeds)]


def plot(rows):
    figure, axes = subplots(1, 2)
    axes[0, 0].plot(rows.get("x", [0.0]))
    return figure


def judge_figure(rows):
    x = rows["x"][0]
    return {
        "third": verdict(f"{x:.3f}", abs(x - 1 / 3) < 1e-5, n=3),
        "seventh": verdict("0.333", False),
        "ninth": verdict("0.333", None),
        "seed: 1": verdict("0.333", True),
    }


def judge_campaign(rows):
    methods = {row["settings"]["method"] for row in rows["rows"]}
    return {"both": verdict(str(len(methods)), len(methods) == 2 or None)}


def text(statement, expected, kind="claim"):
    return {"kind": kind, "statement": statement, "expected": expected}


TOYS = {
    "toys/one": {
        "third": text("x is 1/{n}", "0.333"),
        "seventh": text("x is 1/7", "0.143"),
        "ninth": text("x is 1/9", "0.111"),
        "seed": text("x is seed / 3", "{rows[x][0]:.3f}", "correction"),
    },
    "toys/table": {"images": "digits", "both": text("both methods were measured", "{figure.METHODS}")},
}


@pytest.fixture
def toys(monkeypatch, small):
    """A figure without images and a campaign, as modules of a paper `toys`."""

    def add(name, **content):
        module = ModuleType(f"fullrank_papers.figures.toys.{name}")
        vars(module).update({"plot": plot, **content})
        monkeypatch.setitem(sys.modules, module.__name__, module)
        texts = {"title": "Fig. 0", "claim": "x is a third"} | TOYS[f"toys/{name}"]
        monkeypatch.setitem(FIGURES, f"toys/{name}", texts)

    recipe = replace(small, epochs=1, checkpoints=1, batch_size=64, data=replace(small.data, subset=256))
    monkeypatch.setitem(sys.modules, "fullrank_papers.figures.toys", ModuleType("fullrank_papers.figures.toys"))
    sizes = {"smoke": Size(), "small": Size(), "paper": Size()}
    one = {"compute": lambda size, *, data, seed: {"x": [seed / 3] * 2}, "evaluate_claims": judge_figure}
    add("one", SIZES=sizes, **one)
    table = {"plan": plan, "evaluate_claims": judge_campaign, "markdown": lambda rows: f"| {len(rows['rows'])} |"}
    add("table", SIZES={"smoke": Size(recipe)}, METHODS=METHODS, **table)


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Run `fullrank reproduce` in an empty folder; return status, output and errors, each on one line."""
    monkeypatch.chdir(tmp_path)

    def command(*arguments):
        capsys.readouterr()
        status = main(["reproduce", *map(str, arguments)])
        return status, *(" ".join(text.split()) for text in capsys.readouterr())

    return command


# The results that come with the library.


def comparable(settings):
    """Return settings of which recipes have only what decides the figure: fields may be added to them later."""
    nested = {"comparison": comparable(settings["comparison"])} if "comparison" in settings else {}
    decisive = ("name", "objective", "hyper", "epochs", "batch_size")
    recipe = {"recipe": {key: settings["recipe"][key] for key in decisive}} if "recipe" in settings else {}
    chosen = dict.fromkeys(("seeds", "methods")) if "methods" in settings else {}  # --seeds and --only
    return settings | nested | recipe | chosen


def test_every_committed_result_matches_its_figure_and_draws():
    for name, size in [(figure, size) for figure in FIGURES for size in load_figure(figure).SIZES]:
        if (result := load_committed(name, size)) is None:
            continue
        assert (result.name, result.size) == (name, size)
        expected = json.loads(json.dumps(asdict(load_figure(name).SIZES[size])))
        assert comparable(result.settings) == comparable(expected), f"{name} was computed with other settings"
        assert result.claims
        assert result.environment["commit"]
        assert result.draw().axes


def test_without_a_name_it_lists_every_figure_with_verdict_and_time(command):
    status, out, _ = command()
    assert status == 0
    for name in FIGURES:
        result = load_committed(name)
        assert name in out
        missing = "not computed yet" if "small" in load_figure(name).SIZES else "no size small"
        assert (f"{result.seconds:.0f} s" if result else missing) in out
    assert "checks of the corrections are about our own statements" in out


# A figure that is computed.


def test_a_result_survives_its_file_and_its_caption_has_every_verdict(toys, tmp_path):
    result = reproduce("toys/one", size="smoke", seed=1)
    result.write(tmp_path / "a.json")
    again = Result.read(tmp_path / "a.json")
    assert again == result
    assert to_svg(again.draw()) == to_svg(result.draw())
    svg, _, png = again.save_drawing(tmp_path)
    assert (svg.relative_to(tmp_path).as_posix(), png.suffix) == ("toys/one-smoke.svg", ".png")
    for line in ("✓ Claim, holds: x is 1/3", "✗ Claim, does not hold: x is 1/7", "? Claim, inconclusive at this size"):
        assert line in svg.read_text()
    assert "✓ Check of a correction, holds: x is seed / 3" in svg.read_text()
    (tmp_path / "a.json").write_text('{"name": "toys/one"}')
    for path, message in (("a.json", "does not contain the rows of a figure"), ("b.json", "does not exist")):
        with pytest.raises(UserError, match=message):
            Result.read(tmp_path / path)
    with pytest.raises(AssertionError):
        round_numbers({"x": [float("nan")]})
    assert load_committed("toys/one") is None


def test_a_figure_is_computed_once_and_drawn_again(toys, command, tmp_path, monkeypatch):
    options = ("toys/one", "--size", "smoke", "--out", "out")
    status, out, err = command(*options, "--seed", "1")
    path = tmp_path / "out" / "toys" / "one-smoke.json"
    assert (status, "out/toys/one-smoke.json" in err) == (0, True)
    assert "claims: 1 of 3 hold, 1 inconclusive at this size; checks of the corrections: 1 of 1" in out
    status, _, err = command(*options)
    assert (status, "exists already" in err) == (2, True)
    path.with_suffix(".svg").unlink()
    monkeypatch.setattr(cli, "compute", None)  # calling it would be a TypeError
    assert "computed with seed 1" in command(*options, "--redraw")[2]
    assert path.with_suffix(".svg").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["toys/two"], "unknown figure 'toys/two'"),
        (["toys/one", "--size", "big"], "unknown size of toys/one 'big'"),
        (["toys/one", "--data", "digits"], "toys/one uses no images"),
        (["toys/one", "--seed", "-1"], "seed -1 is negative"),
        (["toys/one", "--seeds", "3"], "remove the flags of campaigns"),
        (["toys", "--list"], "need one campaign"),
        (["toys/table", "--size", "huge"], "unknown size of toys/table 'huge'"),
        (["toys/table", "--size", "smoke", "--only", "vicregg"], "unknown method of toys/table 'vicregg'"),
        (["toys/table", "--size", "smoke", "--seed", "3"], "give --seeds"),
        (["toys/table", "--size", "smoke", "--seeds", "0"], "expected the number of seeds"),
    ],
)
def test_a_wrong_option_is_an_error(toys, command, tmp_path, arguments, message):
    status, _, err = command(*arguments)
    assert (status, message in err) == (2, True), err
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


# A campaign.


def test_a_campaign_runs_what_is_missing_and_draws_what_is_done(toys, command, tmp_path, monkeypatch):
    monkeypatch.setattr("fullrank_papers.figures.result.Jobs", lambda parallel: Jobs(cluster="debug"))
    options = ("toys/table", "--size", "smoke", "--out", "out")
    assert command(*options, "--only", "vicreg")[0] == 0
    path = tmp_path / "out" / "toys" / "table-smoke.json"
    (first,) = json.loads(path.read_text())["rows"]["rows"]
    partial = CampaignRuns("toys/table", "smoke").collect()
    assert partial.runs == "1 of 2 runs"
    assert [claim.verdict for claim in partial.claims] == ["inconclusive at this size"]
    assert any("1 of 2 runs" in text.get_text() for text in partial.draw().texts)

    assert command(*options)[0] == 0
    result = Result.read(path)
    assert [row["settings"]["method"] for row in result.rows["rows"]] == ["frossl", "vicreg"]
    assert result.rows["rows"][1] == first  # taken, not trained again
    assert (result.data, result.seed, bool(result.environment["commit"])) == ("digits", 0, True)
    assert "| 2 |" in command(*options, "--redraw")[1]
    assert {file.suffix for file in path.parent.iterdir()} == {".json", ".svg", ".pdf", ".png", ".md"}

    before = path.read_text()
    status, out, err = command(*options, "--only", "vicreg")  # two runs are not replaced by one
    assert (status, "| 1 |" in out, path.read_text()) == (0, True, before)
    assert "has 2 runs, more than these 1, and was kept" in err
    listed = "1 done fullrank reproduce toys/table --size smoke --out out --cell vicreg-seed0"
    assert listed in command(*options, "--list")[1]

    shutil.rmtree("runs")
    assert listed in command(*options, "--list")[1]
    assert command(*options, "--cell", "vicreg-seed0")[0] == 0
    assert command(*options)[0] == 0
    assert json.loads(path.read_text())["rows"] == json.loads(before)["rows"]  # taken from the stored result
    assert not Path("runs").exists()


@pytest.fixture
def rows():
    """Two rows of the toy campaign on the digits."""
    name, images = identify(DataConfig(source="digits"))
    row = Row(cell="", recipe="r", objective="frossl", seed=0, status="done", data=name, images=images)
    return [replace(row, cell=name, settings={"method": name}, scores={name: {"knn": 0.5}}) for name in METHODS]


@pytest.mark.parametrize("done", [1, 0])
def test_nothing_replaces_an_interruption(toys, rows, command, tmp_path, monkeypatch, done):
    def stop(self, **_):
        raise Interrupted(signal.SIGINT, "stopped: the same command goes on")

    def collect(self):
        if not done:
            raise UserError("the rows are damaged")
        return self.result(rows[:done], 2)

    campaign = CampaignRuns("toys/table", "smoke")
    path = campaign.result(rows, 2).path(tmp_path)
    path.parent.mkdir()
    campaign.result(rows, 2).write(path)
    monkeypatch.setattr(CampaignRuns, "run", stop)
    monkeypatch.setattr(CampaignRuns, "collect", collect)
    status, _, err = command("toys/table", "--size", "smoke", "--out", tmp_path)
    assert status == 128 + signal.SIGINT
    assert ("has 2 runs, more than these 1" if done else "were not drawn: the rows are damaged") in err
    assert err.endswith("stopped: the same command goes on")


def test_results_and_rows_of_other_images_are_refused(toys, rows, command, tmp_path, monkeypatch):
    campaign, others = CampaignRuns("toys/table", "smoke"), [replace(row, data="photos", images="b2") for row in rows]
    path = campaign.result(others, 2).path(tmp_path)
    path.parent.mkdir()
    campaign.result(others, 2).write(path)
    monkeypatch.setattr(CampaignRuns, "run", lambda self, **_: (self.result(rows, 2), rows))
    status, _, err = command("toys/table", "--size", "smoke", "--out", tmp_path)
    assert (status, "has other images" in err) == (2, True)
    assert command("toys/table", "--size", "smoke", "--out", tmp_path, "--overwrite")[0] == 0
    with pytest.raises(UserError, match="would mix the data sets"):
        campaign.result([rows[0], replace(rows[1], images="b2")], 2)


def test_failed_runs_of_one_campaign_do_not_end_the_others(command, monkeypatch):
    def fail(runs, *_, **__):
        raise ProcessFailed(f"runs of {runs.name} failed")

    monkeypatch.setattr(cli, "FIGURES", {name: FIGURES[name] for name in ("frossl/table2", "frossl/table3")})
    monkeypatch.setattr(cli, "reproduce_campaign", fail)
    status, _, err = command("frossl", "--size", "smoke")
    assert status == 1
    assert "runs of frossl/table2 failed" in err
    assert "runs of frossl/table3 failed" in err


def test_all_figures_of_a_paper_leaves_out_those_without_the_size(command, monkeypatch):
    monkeypatch.setattr(cli, "FIGURES", {name: FIGURES[name] for name in ("frossl/table2", "frossl/benchmark")})
    asked = []
    monkeypatch.setattr(cli, "reproduce_campaign", lambda runs, *_, **__: asked.append(runs.name))
    status, _, err = command("frossl")
    assert (status, asked, "without size small: frossl/table2" in err) == (0, ["frossl/benchmark"], True)
    assert command("frossl/table2")[0] == 2
