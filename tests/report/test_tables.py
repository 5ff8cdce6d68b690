import re
from html.parser import HTMLParser

import pytest

from fullrank.report import read_run, tables
from fullrank.report.compare import comparison
from fullrank.report.figures import COLOURS, DASHES

HOSTILE = "<script>alert(1)</script>\"' & co"


class Cells(HTMLParser):
    """The text of each cell, row by row."""

    def __init__(self, html):
        super().__init__()
        self.rows = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data):
        if self.rows and self.rows[-1] and not data.startswith("Accuracy"):
            self.rows[-1][-1] += data


def cells(html):
    return [[" ".join(cell.split()) for cell in row] for row in Cells(html).rows]


def test_every_run_has_a_bar_of_its_own(make_record):
    n = len(COLOURS) * len(DASHES)
    assert len(tables.BARS) == len(DASHES)
    assert len({tables.named(i, make_record(label="run")) for i in range(n)}) == n


def test_the_summary_has_a_row_a_run(make_run):
    rows = cells(tables.summary_table([read_run(make_run("a")), read_run(make_run("b", recipe={"objective": "vicreg"}))]))
    assert [row[:2] for row in rows] == [["run", "objective"], ["a", "frossl"], ["b", "vicreg"]]


def test_the_evaluation_sets_the_backbone_beside_its_baselines(make_run):
    rows = cells(tables.evaluation_table([read_run(make_run("a"))]))
    assert rows[0] == ["probe", "backbone", "raw pixels", "untrained backbone"]
    assert rows[1] == ["linear (SGD)", "87.1 ± 0.4 % n = 3", "39.1 ± 0.2 % n = 3", "44.8 ± 0.6 % n = 3"]
    assert rows[2] == ["kNN", "84.2 %", "33.9 %", "–"]
    assert rows[3][:2] == ["linear, 2 labels a class", "51.3 ± 3.1 % n = 10"]


def test_the_evaluations_of_several_runs_stand_below_each_other(make_run):
    rows = cells(tables.evaluation_table([read_run(make_run("a")), read_run(make_run("b"))]))
    assert [row[:2] for row in rows[:4]] == [["probe", "run"], ["linear (SGD)", "a"], ["linear (SGD)", "b"], ["kNN", "a"]]


def test_without_an_evaluation_there_is_no_table(make_record):
    assert tables.evaluation_table([make_record()]) == tables.statements([make_record()]) == ""


def test_recipes_are_compared_entry_by_entry(make_record):
    a = make_record(label="a", recipe={"objective": "frossl", "hyper": {"log": True}, "views": [{"size": 32}], "seed": 0})
    b = make_record(label="b", recipe={"objective": "vicreg", "hyper": {}, "views": [{"size": 96}], "seed": 0})
    assert cells(tables.differences([a, b])) == [
        ["entry", "a", "b"],
        ["objective", '"frossl"', '"vicreg"'],
        ["hyper.log", "true", "–"],
        ["views.0.size", "32", "96"],
        ["hyper", "–", "{}"],
    ]
    assert tables.differences([a]) == tables.differences([a, a]) == ""


def test_what_is_true_of_all_runs_is_said_once_without_names(make_record):
    a, b = make_record(label="a", notes=("Both lack x.", "Only a.")), make_record(label="b", notes=("Both lack x.",))
    items = [re.sub("<[^>]+>", "", item) for item in re.findall("<li>(.*?)</li>", tables.limits([a, b]))]
    assert items == ["Both lack x.", "a: Only a."]


def test_alarms_are_listed_with_their_remedies(make_run, make_record):
    assert cells(tables.warnings([read_run(make_run(warnings=1))])) == [
        ["step", "what happened", "what to do"],
        ["900", "3 dimensions died", "lower the learning rate"],
    ]
    assert "No alarm" in tables.warnings([read_run(make_run("quiet"))])
    assert tables.warnings([make_record()]) == ""


@pytest.mark.parametrize(
    ("remedy", "flags"),
    [
        ("add one (--projector.widths)", ["--projector.widths"]),
        ("raise its weight among --hyper.{invariance,log}", ["--hyper.{invariance,log}"]),
        ("lower --optimizer.lr (now 0.3), or lengthen --schedule.warmup.", ["--optimizer.lr", "--schedule.warmup"]),
        ("lower the rate", []),
    ],
)
def test_the_flags_of_a_remedy_are_code(make_record, remedy, flags):
    html = tables.warnings([make_record(spectrum_rows=({"step": 5},), warnings=({"step": 5, "message": "x", "remedy": remedy},))])
    assert re.findall(r"<code[^>]*>(.*?)</code>", html) == flags


def test_the_kind_of_an_alarm_has_a_column_where_runs_know_it(make_record):
    known = {"step": 5, "epoch": 0.5, "alarm": "divergence", "message": "divergence, loss: 40, expected 4", "remedy": "lower the rate"}
    unknown = {"step": 7, "message": "x"}
    runs = [
        make_record(label=label, spectrum_rows=({"step": 5},), warnings=(warning,)) for label, warning in (("a", known), ("b", unknown))
    ]
    assert cells(tables.warnings(runs)) == [
        ["step", "epoch", "run", "alarm", "what happened", "what to do"],
        ["5", "0.5", "a", "divergence", "loss: 40, expected 4", "lower the rate"],
        ["7", "", "b", "", "x", ""],
    ]


def test_no_text_of_a_run_becomes_markup(make_record):
    score = {"features": HOSTILE, "probe": HOSTILE, "accuracy": 0.5, "sd": None, "n": 1}
    run = make_record(
        label=HOSTILE,
        recipe={
            "objective": HOSTILE,
            HOSTILE: HOSTILE,
            "backbone": {"name": HOSTILE, "arguments": {HOSTILE: HOSTILE}},
            "data": {"source": HOSTILE},
        },
        environment={"command": HOSTILE},
        train=({"step": 1, "loss": 1.0},),
        warnings=({"step": 1, "alarm": HOSTILE, "message": HOSTILE, "remedy": HOSTILE},),
        evaluation={"statement": HOSTILE, "scores": [score], "left_out": [HOSTILE]},
        notes=(HOSTILE,),
    )
    other = make_record(label="other")
    for runs in ([run], [run, other]):
        of_page = (tables.summary_table, tables.verdicts, tables.evaluation_table, tables.differences, tables.warnings, tables.limits)
        for table in (*of_page, comparison):
            assert "<script" not in table(runs)
        assert "<script" not in tables.statements(runs)
    assert "<script" not in tables.folded(HOSTILE, run.recipe)
    assert "&lt;script&gt;" in tables.folded(HOSTILE, run.recipe)
