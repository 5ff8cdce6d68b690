import numpy as np
import pytest
from markupsafe import Markup

from fullrank.report import read_run_summary, tables
from fullrank.report.recipes import make_labels_unique


def text(cell):
    return Markup(str(cell).replace("<br>", " ")).striptags().replace("\N{NO-BREAK SPACE}", " ")


def records(table):
    """Return each row by the names of the columns."""
    return [{text(name): text(cell) for name, cell in zip(table.head, row, strict=True)} for row in table.rows]


def test_the_summary_of_several_runs_has_their_differences(make_run):
    runs = [read_run_summary(make_run("a")), read_run_summary(make_run("b", recipe={"objective": "vicreg"}))]
    (table,) = tables.summary(runs)
    assert records(table) == [{"run": "a", "objective": "frossl"}, {"run": "b", "objective": "vicreg"}]
    assert "duration 2:03:04" in table.caption


def test_the_comparison_has_differences_last_measures_and_scores_of_the_backbone(make_run):
    kinds = {"none": {"kind": "mlp", "widths": []}, "diagonal": {"kind": "diagonal", "widths": []}}
    runs = [read_run_summary(make_run(name, recipe={"projector": kind})) for name, kind in kinds.items()]
    rows = records(tables.comparison(runs)[0])
    assert [row["difference"] for row in rows] == ["projector none", "projector diagonal"]
    assert rows[0]["effective rank, backbone"].startswith(f"{runs[0].spectrum[-1].backbone.effective_rank:.1f} of 96")
    assert rows[0]["linear (SGD), photos[test] ↑"] == "87.0 ± 0.4 % (n = 3)"
    assert tables.comparison(runs[:1]) == []


def test_measures_of_different_objectives_are_not_compared(make_summary, spectrum_row):
    def run(objective):
        recipe = {"objective": objective, "data": {"source": "photos"}}
        return make_summary(label=objective, recipe=recipe, spectrum=[spectrum_row(held_out_loss=2.0, agreement=0.5)])

    (table,) = tables.comparison([run("frossl"), run("vicreg")])
    assert "agreement of the views ↑" not in table.head
    assert "held-out loss ↓" not in table.head
    assert "No held-out loss: it depends on settings that differ (objective)." in table.caption
    assert "held-out loss ↓" in tables.comparison([run("frossl"), run("frossl")])[0].head


def test_alarms_have_their_remedy_with_flags_as_code(make_summary, alarm_row):
    runs = [make_summary(alarms=[alarm_row(1234)]), make_summary(label="b")]
    (row,) = records(tables.alarms(runs)[0])
    assert (row["step"], row["alarm"]) == ("1 234", "dimensional collapse")
    assert '<code class="flag">--hyper.variance</code>' in tables.alarms(runs)[0].rows[0][-1]
    assert tables.alarms(runs[1:]) == []


def test_the_metrics_of_the_last_spectrum_equal_their_formulas(make_summary, make_spectra):
    eigenvalues = np.array([[9.0] * 4, [4.0, 1.0, 1.0, 0.0]])
    run = make_summary(spectra=make_spectra([0, 10], samples=1000, backbone=eigenvalues))
    metrics = tables.last_metrics(run, "backbone")
    q = np.sqrt(eigenvalues[1, :3]) / np.sqrt(eigenvalues[1]).sum()
    assert metrics["effective_rank"].value == pytest.approx(np.exp(-(q * np.log(q)).sum()))
    assert metrics["participation_ratio"].value == pytest.approx(2.0)
    assert not any(metric.warning for metric in metrics.values())
    (table,) = tables.metrics([run])
    assert table.head[:2] == ["metric of the run", "backbone"]
    assert "rank_me" not in metrics  # it needs the mean, which a file of eigenvalues does not hold


def test_few_samples_have_a_mark_and_a_note(make_summary, make_spectra):
    spectra = make_spectra([0], samples=12, backbone=np.ones((1, 4)))
    (table,) = tables.metrics([make_summary(spectra=spectra)])
    assert "†" in text(table.rows[0][1])
    assert any("12 samples of 4 dimensions" in note for note in table.notes)


@pytest.mark.parametrize("values", [np.zeros((1, 3)), np.ones((1, 1))])
def test_complete_collapse_and_a_single_dimension_still_have_metrics(make_summary, make_spectra, values):
    (table,) = tables.metrics([make_summary(spectra=make_spectra([0], backbone=values))])
    assert text(table.rows[0][1]).startswith(f"{values.sum():g}")
    nan = make_spectra([0], backbone=np.array([[np.nan, 1.0]]))
    assert tables.metrics([make_summary(spectra=nan)]) == tables.metrics([make_summary()]) == []


def test_scores_of_different_images_have_different_tables(make_summary, score, evaluation):
    own = evaluation(score(value=0.9, low=0.85, high=0.95), score("raw pixels", value=0.3), data="a")
    other = evaluation(score(probe="knn", value=0.7), data="b")
    runs = [make_summary(label="x", evaluations=(own, other)), make_summary(label="y", evaluations=(own,))]
    first, second = tables.scores(runs)
    assert [text(row[0]) for row in first.rows] == ["linear (SGD) x", "linear (SGD) y"]
    row = records(first)[0]
    assert (row["backbone"], row["raw pixels"], row["majority class"]) == ("90.0 % 85.0 to 95.0", "30.0 %", "10.0 %")
    assert "on b" in second.caption


def test_results_by_class_are_of_the_main_probe_and_for_a_few_runs(make_summary, score, evaluation):
    recalls, confusion = {"a": 0.5, "b": 1.0}, ((10, 10), (0, 2))
    main = score(per_class=recalls, confusion=confusion, positives={"a": 20, "b": 2})
    scores = score(probe="knn", per_class={"a": 0.0, "b": 0.0}), main
    run = make_summary(evaluations=(evaluation(*scores),))
    ((_, found, shown),) = tables.by_class([run])
    assert {row[0]: row[1].split("\N{NO-BREAK SPACE}")[0] for row in found.rows} == {"recall, a": "50.0"}  # b has few
    assert shown.confusion == confusion
    assert tables.by_class([run] * 50) == []


def test_recipes_are_compared_entry_by_entry(make_summary):
    runs = make_labels_unique([make_summary(recipe={"seed": seed, "epochs": 5}) for seed in range(6)])
    (few,) = tables.recipe(runs[:2])
    assert [[text(cell) for cell in row] for row in few.rows] == [["seed", "0", "1"]]
    (many,) = tables.recipe(runs)
    assert [text(name) for name in many.head] == ["entry", "seed"]
    assert len(many.rows) == 6
    assert tables.recipe(runs[:1]) == []


def test_equal_labels_get_the_differences_of_their_recipes_or_a_number(make_summary):
    recipes = [{"objective": "frossl"}, {"objective": "vicreg"}, {"objective": "vicreg"}]
    runs = [make_summary(label="same", recipe=recipe) for recipe in recipes]
    labels = [run.label for run in make_labels_unique([*runs, make_summary(label="other")])]
    assert labels == ["same: frossl", "same: vicreg (1)", "same: vicreg (2)", "other"]
