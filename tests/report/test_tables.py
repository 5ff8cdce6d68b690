import re
from dataclasses import replace
from html import unescape

import numpy as np
import pytest

from fullrank.evaluation.score import Evaluation, Score
from fullrank.report import document, read_run_summary, scores, tables
from fullrank.report.answers import answers_html
from fullrank.report.plot_style import COLORS, DASHES
from fullrank.run.alarm_messages import alarm_message

HOSTILE = "<script>alert(1)</script>\"' & co"


def cells(html):
    """Return the text of the cells of each row."""
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall("<tr>(.*?)</tr>", html)]
    return [[" ".join(unescape(re.sub("<[^>]+>", "", cell)).split()) for cell in row] for row in rows]


def columns(html):
    """Return the text of the cells of each row, by the name of the column."""
    head, *rows = cells(html)
    return [dict(zip(head, row, strict=True)) for row in rows]


def test_every_run_has_a_different_border():
    n = len(COLORS) * len(DASHES)
    assert len(document.BORDERS) == len(DASHES)
    assert len({document.label_html(i, "run") for i in range(n)}) == n


def test_summary_has_one_row_per_run(make_run):
    rows = cells(
        tables.summary_table(
            [read_run_summary(make_run("a")), read_run_summary(make_run("b", recipe={"objective": "vicreg"}))]
        )
    )
    assert [row[:2] for row in rows] == [["run", "objective"], ["a", "frossl"], ["b", "vicreg"]]


def test_comparison_has_differences_last_metrics_and_accuracies(make_run):
    projectors = {"none": {"kind": "mlp", "widths": []}, "diagonal": {"kind": "diagonal", "widths": []}}
    runs = [
        read_run_summary(make_run(name, recipe={"projector": p}, slope=1 + i))
        for i, (name, p) in enumerate(projectors.items())
    ]
    rows = columns(tables.comparison_table(runs))
    assert [row["difference"] for row in rows] == ["projector none", "projector diagonal"]
    for run, row in zip(runs, rows, strict=True):
        assert row["effective rank, backbone"] == f"{run.spectrum[-1].backbone.effective_rank:.1f} of 96"
        assert row["collapsed dimensions, backbone ↓"] == "0"
        assert row["online accuracy ↑"] == "90.0 %"
    accuracies = columns(scores.accuracy_comparison(runs))
    assert [row["linear (SGD) ↑"] for row in accuracies] == ["87.1 ± 0.4 % n = 3"] * 2  # of the backbone


def test_comparison_omits_columns_without_values(make_run):
    runs = [read_run_summary(make_run(name, without=("evaluation.json", "spectrum.npz"))) for name in "ab"]
    row = columns(tables.comparison_table(runs))[0]
    assert list(row) == [
        "run",
        "training",
        "online accuracy ↑",
        "effective rank, backbone",
        "effective rank, projector",
    ]


def test_comparison_has_a_dash_for_a_missing_value(make_run):
    runs = [
        read_run_summary(make_run("whole")),
        read_run_summary(make_run("partial", without=("evaluation.json", "spectrum.npz"))),
    ]
    partial = columns(tables.comparison_table(runs))[1]
    assert partial["collapsed dimensions, backbone ↓"] == "–"


def test_comparison_does_not_repeat_labels(make_run):
    runs = [read_run_summary(make_run(name, recipe={"objective": name})) for name in ("frossl", "vicreg")]
    assert "difference" not in columns(tables.comparison_table(runs))[0]


def test_comparison_marks_metrics_of_few_images(make_run):
    runs = [read_run_summary(make_run(name, D_b=96)) for name in "ab"]
    few = [replace(run, spectra=replace(run.spectra, samples=np.full(len(run.spectra.steps), 300))) for run in runs]
    html = tables.comparison_table(few)
    assert columns(html)[0]["collapsed dimensions, backbone ↓"].endswith("†")
    assert "300 samples" in html
    assert "†" not in tables.comparison_table(runs)


def evaluated(make_summary, label, **accuracies):
    """Return a run with one kNN score for each data set, and a majority rate of 20 %."""
    evaluations = tuple(
        Evaluation(
            model=label,
            data=data,
            train_images=9,
            test_images=9,
            chance=0.2,
            statement="",
            scores=(Score(features="backbone", probe="kNN", value=accuracy),),
        )
        for data, accuracy in accuracies.items()
    )
    return make_summary(label=label, evaluations=evaluations)


def test_scores_of_different_data_never_share_a_column(make_summary):
    runs = [
        evaluated(make_summary, "a", mnist=0.443),
        evaluated(make_summary, "b", cifar=0.238),
        evaluated(make_summary, "c", cifar=0.3),
    ]
    mnist, cifar = scores.accuracy_comparison(runs).split("</table>")[:2]
    assert "on mnist" in mnist
    assert "on cifar" in cifar
    assert [(row["run"], row["kNN ↑"]) for row in columns(mnist)] == [("a", "44.3 %")]
    assert [(row["run"], row["kNN ↑"]) for row in columns(cifar)] == [("b", "23.8 %"), ("c", "30.0 %")]
    assert [row["majority class"] for row in columns(cifar)] == ["20.0 %"] * 2
    html = scores.evaluation_table(runs)
    assert html.count("<table") == 2
    assert all(f"Accuracy on {data}" in html for data in ("mnist", "cifar"))


def test_the_headline_is_a_linear_probe_on_all_labels(make_summary):
    names = (
        "linear, 2 labels per class",
        "linear, 1 % of the labels",
        "kNN",
        "linear (SGD), lr 0.1, top 5",
        "linear (SGD), lr 0.1",
    )
    found = tuple(Score(features="backbone", probe=name, value=0.1 * i) for i, name in enumerate(names))
    evaluation = Evaluation(model="run", train_images=8, test_images=2, statement="", scores=found)
    assert scores.headline_score(make_summary(evaluations=(evaluation,))).startswith(
        "Accuracy, linear (SGD), lr 0.1: 40.0"
    )


def test_a_run_with_several_data_sets_has_a_table_for_each(make_summary):
    both = evaluated(make_summary, "a", mnist=0.443, cifar=0.238)
    found = scores.accuracy_comparison([both, both]).split("</table>")[:2]
    assert [columns(table)[0]["kNN ↑"] for table in found] == ["44.3 %", "23.8 %"]
    assert scores.accuracy_comparison([both]) == ""


def test_scores_of_an_older_checkpoint_are_a_note(make_run):
    run = read_run_summary(make_run())
    (evaluation,) = run.evaluations
    older = replace(run, evaluations=(replace(evaluation, step=2000),))
    assert "checkpoint of step 2" in tables.evaluation_list([older])
    assert "checkpoint of step" not in tables.evaluation_list(
        [replace(run, evaluations=(replace(evaluation, step=4000),))]
    )


def measured(make_summary, spectrum_row, label, **recipe):
    row = replace(
        spectrum_row(100), intraclass_correlation=0.5, held_out_loss=3.0, probe_images=128, probe_chance=0.12
    )
    base = {
        "objective": "frossl",
        "hyper": {"log": True},
        "batch_size": 8,
        "views": [{"size": 8}],
        "data": {"source": "a", "train": "x"},
    }
    return make_summary(label=label, recipe=base | recipe, spectrum=[row])


@pytest.mark.parametrize(
    ("changes", "left_out"),
    [
        ({"epochs": 7, "seed": 3, "optimizer": {"lr": 0.1}}, set()),
        ({"objective": "vicreg"}, {"held-out loss"}),
        ({"hyper": {"log": False}}, {"held-out loss"}),
        ({"batch_size": 16}, {"held-out loss"}),
        ({"views": [{"size": 16}]}, {"held-out loss", "agreement of the views"}),
        ({"data": {"source": "b", "train": "x"}}, {"held-out loss", "agreement of the views", "online accuracy"}),
    ],
)
def test_measures_are_compared_only_under_equal_conditions(make_summary, spectrum_row, changes, left_out):
    runs = [measured(make_summary, spectrum_row, "a"), measured(make_summary, spectrum_row, "b", **changes)]
    html = tables.comparison_table(runs)
    heads = {head.rstrip(" ↑↓") for head in cells(html)[0]}
    names = {"held-out loss", "agreement of the views", "online accuracy"}
    assert names - heads == left_out
    assert all(f"No {name}" in html for name in left_out)


def test_a_single_run_says_what_is_better_and_what_the_online_accuracy_rests_on(make_summary, spectrum_row):
    run = measured(make_summary, spectrum_row, "a")
    rows = {row["measure"]: row for row in columns(tables.measures_table(run))}
    assert {name: row["better"] for name, row in rows.items()} == {
        "agreement of the views": "higher",
        "held-out loss": "lower",
        "online accuracy": "higher",
        "effective rank, backbone": "–",
        "effective rank, projector": "–",
    }
    assert "128 images" in rows["online accuracy"]["at the end"]
    assert "majority class 12.0 %" in rows["online accuracy"]["at the end"]


def test_a_single_run_has_no_comparison(make_run):
    assert tables.comparison_table([read_run_summary(make_run())]) == ""


def test_evaluation_has_the_baselines_next_to_the_backbone(make_run):
    rows = cells(scores.evaluation_table([read_run_summary(make_run("a"))]))
    assert rows[0] == ["probe", "backbone", "raw pixels", "untrained backbone", "majority class"]
    assert rows[1] == ["linear (SGD)", "87.1 ± 0.4 % n = 3", "39.1 ± 0.2 % n = 3", "44.8 ± 0.6 % n = 3", "10.0 %"]
    assert rows[2] == ["kNN", "84.2 %", "33.9 %", "–", "10.0 %"]
    assert rows[3][:2] == ["linear, 2 labels per class", "51.3 ± 3.1 % n = 10"]


def test_evaluations_of_several_runs_are_grouped_by_probe(make_run):
    rows = cells(scores.evaluation_table([read_run_summary(make_run("a")), read_run_summary(make_run("b"))]))
    assert [row[0] for row in rows[:4]] == ["probe, run", "linear (SGD) a", "linear (SGD) b", "kNN a"]


def test_without_an_evaluation_there_is_no_table(make_summary):
    assert scores.evaluation_table([make_summary()]) == tables.evaluation_list([make_summary()]) == ""


def test_recipes_are_compared_entry_by_entry(make_summary):
    a = make_summary(
        label="a", recipe={"objective": "frossl", "hyper": {"log": True}, "views": [{"size": 32}], "seed": 0}
    )
    b = make_summary(label="b", recipe={"objective": "vicreg", "hyper": {}, "views": [{"size": 96}], "seed": 0})
    assert cells(tables.recipe_table([a, b])) == [
        ["entry", "a", "b"],
        ["objective", '"frossl"', '"vicreg"'],
        ["hyper.log", "true", "–"],
        ["views.0.size", "32", "96"],
        ["hyper", "–", "{}"],
    ]
    assert tables.recipe_table([a]) == tables.recipe_table([a, a]) == ""


def test_notes_about_all_runs_have_no_labels(make_summary):
    a, b = (
        make_summary(label="a", file_notes=("Both lack x.", "Only a.")),
        make_summary(label="b", file_notes=("Both lack x.",)),
    )
    items = [re.sub("<[^>]+>", "", item) for item in re.findall("<li>(.*?)</li>", tables.notes_list([a, b]))]
    assert items == ["Both lack x.", "a: Only a."]


def test_alarms_are_listed_with_observation_and_remedy(make_summary, train_row, alarm_row):
    alarms = [alarm_row(5, alarm="divergence", where="projector"), alarm_row(1234)]
    runs = [
        make_summary(label=label, train=[train_row(9)], alarms=[alarm])
        for label, alarm in zip("ab", alarms, strict=True)
    ]
    rows = columns(tables.alarm_table(runs))
    assert [(row["step"], row["epoch"], row["run"], row["alarm"]) for row in rows] == [
        ("5", "0.05", "a", "divergence"),
        ("1 234", "12.34", "b", "dimensional collapse"),
    ]
    assert [f"{row['alarm']}, {row['observation']}" for row in rows] == [alarm_message(alarm) for alarm in alarms]
    assert all(row["remedy"] for row in rows)
    assert "run" not in columns(tables.alarm_table(runs[:1]))[0]
    assert tables.alarm_table([make_summary(train=[train_row(9)])]) == "<p>No alarm was raised.</p>"
    assert tables.alarm_table([make_summary()]) == ""


@pytest.mark.parametrize(
    ("remedy", "flags"),
    [
        ("add one (--projector.widths)", ["--projector.widths"]),
        ("raise its weight among --hyper.{invariance,log}", ["--hyper.{invariance,log}"]),
        ("lower --optimizer.lr (now 0.3), or lengthen --schedule.warmup.", ["--optimizer.lr", "--schedule.warmup"]),
        ("lower the rate", []),
    ],
)
def test_flags_of_a_remedy_are_code(remedy, flags):
    assert re.findall(r"<code[^>]*>(.*?)</code>", tables._mark_flags(remedy)) == flags


def test_text_of_a_run_is_escaped(make_summary, train_row, alarm_row):
    score = Score(features=HOSTILE, probe=HOSTILE, value=0.5)
    run = make_summary(
        label=HOSTILE,
        recipe={
            "objective": HOSTILE,
            HOSTILE: HOSTILE,
            "backbone": {"name": HOSTILE, "arguments": {HOSTILE: HOSTILE}},
            "data": {"source": HOSTILE},
        },
        train=[train_row(1)],
        alarms=[alarm_row(1, HOSTILE, alarm=HOSTILE, where=HOSTILE)],
        evaluations=tuple(
            Evaluation(
                model="m",
                data=data,
                train_images=1,
                test_images=1,
                statement=HOSTILE,
                scores=(score,),
                left_out=(HOSTILE,),
            )
            for data in (HOSTILE, "other")
        ),
        file_notes=(HOSTILE,),
    )
    alarms_and_facts = (tables.summary_table, tables.alarm_table, answers_html, tables.notes_list, tables.recipe_table)
    accuracies = (tables.comparison_table, scores.accuracy_comparison, scores.evaluation_table, tables.evaluation_list)
    for runs in ([run], [run, make_summary(label="other")]):
        assert not [build for build in (*alarms_and_facts, *accuracies) if "<script" in build(runs)]
    assert "<script" not in document.json_details(HOSTILE, run.recipe)
    assert "&lt;script&gt;" in document.json_details(HOSTILE, run.recipe)


def test_no_table_of_runs_is_wider_than_its_limit_and_none_loses_a_value(make_summary):
    runs = [
        make_summary(label=f"run {i}", recipe={"seed": i, **{f"entry {k}": i + k for k in range(20)}})
        for i in range(50)
    ]
    html = tables.recipe_table(runs)
    found = [cells(table) for table in html.split("</table>")[:-1]]
    assert all(len(table[0]) <= document.MAX_COLUMNS + 1 for table in found)
    assert all([row[0] for row in table] == ["run", *(run.label for run in runs)] for table in found)
    assert {name: row for table in found for name, row in zip(table[0][1:], table[8][1:], strict=True)} == {
        "seed": "7", **{f"entry {k}": str(7 + k) for k in range(20)}
    }  # fmt: skip


def test_facts_that_all_runs_share_are_said_once(make_summary):
    runs = [
        make_summary(label=label, recipe={"objective": label, "data": {"source": "a/long/path"}})
        for label in ("frossl", "vicreg")
    ]
    html = tables.summary_table(runs)
    assert html.count("a/long/path") == 1
    assert cells(html) == [["run", "objective"], ["frossl", "frossl"], ["vicreg", "vicreg"]]


def test_an_interval_stands_below_its_accuracy():
    score = Score(features="backbone", probe="kNN", value=0.5, low=0.456, high=0.5449)
    assert re.sub("<[^>]+>", " ", scores.score_cell(score)).split() == ["50.0", "%", "45.6", "to", "54.5"]
