from dataclasses import replace

import numpy as np
import pytest

from fullrank.report import read_run_summary
from fullrank.report.training_curves import (
    ALARM_ROW,
    EIGENVALUE_INDICES,
    MAX_POINTS,
    MAX_POINTS_OF_CURVE,
    alarm_lines,
    alarm_markers,
    eigenvalue_figure,
    loss_caption,
    loss_figure,
    progress_figure,
)
from fullrank.run.alarm_messages import alarm_message


def curve(figure, run, quantity):
    (found,) = [trace for trace in figure["data"] if trace["meta"] == {"run": run, "quantity": quantity}]
    return found


def quantities(figure):
    return [trace["meta"]["quantity"] for trace in figure["data"]]


def panel_titles(figure):
    return [
        annotation["text"].removeprefix("<b>").removesuffix("</b>") for annotation in figure["layout"]["annotations"]
    ]


def test_loss_is_drawn_above_its_terms(make_run):
    figure = loss_figure([read_run_summary(make_run("a", lines=50))])
    assert quantities(figure) == ["loss", "invariance", "entropy"]
    assert [trace["yaxis"] for trace in figure["data"]] == ["y", "y2", "y3"]
    loss, *terms = (np.array(trace["y"]) for trace in figure["data"])
    np.testing.assert_allclose(loss, sum(terms), atol=2e-3)  # the values are rounded


def test_the_held_out_loss_shares_the_panel_of_the_loss(make_summary, train_row, spectrum_row):
    spectrum = [replace(spectrum_row(step), held_out_loss=loss) for step, loss in ((0, None), (10, 3.0), (20, 2.0))]
    figure = loss_figure([make_summary(label="a", train=[train_row(step) for step in range(20)], spectrum=spectrum)])
    held_out, trained = curve(figure, "a", "loss, held-out images"), curve(figure, "a", "loss")
    assert (held_out["x"], held_out["y"], held_out["yaxis"]) == ([10, 20], [3.0, 2.0], trained["yaxis"])
    assert held_out["opacity"] > trained["opacity"]


def test_a_held_out_loss_of_a_smaller_batch_is_said(make_summary, spectrum_row):
    row, n = replace(spectrum_row(10, samples=64), held_out_loss=1.5), 64
    assert loss_caption([make_summary(spectrum=[row], recipe={"batch_size": n})]) == ""
    assert f"{n} instead of {n + 1} images" in loss_caption(
        [make_summary(spectrum=[row], recipe={"batch_size": n + 1})]
    )


def test_the_agreement_of_the_views_has_a_panel(make_summary, spectrum_row):
    spectrum = [
        replace(spectrum_row(step), intraclass_correlation=value) for step, value in ((0, None), (10, 0.3), (20, 0.5))
    ]
    figure = progress_figure([make_summary(label="a", spectrum=spectrum)])
    assert "agreement of the views" in panel_titles(figure)
    assert curve(figure, "a", "agreement of the views, training batch")["y"] == [0.3, 0.5]
    assert "agreement of the views" not in panel_titles(progress_figure([make_summary(spectrum=[spectrum_row()])]))


def test_small_changes_of_the_loss_are_visible(make_summary, train_row):
    (trace,) = loss_figure([make_summary(train=[train_row(step, 5.55 - 1e-4 * step) for step in range(100)])])["data"]
    assert len(set(trace["y"])) == 100


def test_all_step_axes_end_at_the_last_step(make_summary, make_spectra, train_row, spectrum_row):
    spectra = make_spectra([0, 80], backbone=np.ones((2, 2)))
    long = make_summary(train=[train_row(70)], spectrum=[spectrum_row(80)], spectra=spectra)
    runs = [long, make_summary(train=[train_row(30)])]
    (ends,) = {
        tuple(figure(runs)["layout"]["xaxis"]["range"]) for figure in (loss_figure, progress_figure, eigenvalue_figure)
    }
    assert ends == (0, pytest.approx(1.02 * 80))


def test_panels_do_not_overlap(make_run):
    layout = loss_figure([read_run_summary(make_run())])["layout"]
    domains = [layout[axis]["domain"] for axis in ("yaxis", "yaxis2", "yaxis3")]
    edges = [edge for bottom, top in reversed(domains) for edge in (bottom, top)]
    assert edges == sorted(edges)
    assert edges[0] == pytest.approx(0.0)
    assert edges[-1] < 1.0


def test_points_are_those_of_the_log(make_run):
    run = read_run_summary(make_run("a", T=9, lines=30))
    figure = progress_figure([run])
    accuracy = curve(figure, "a", "accuracy, held-out images")
    assert accuracy["x"] == [row.step for row in run.spectrum]
    np.testing.assert_allclose(accuracy["y"], [row.probe_accuracy for row in run.spectrum], rtol=1e-3)
    rank = curve(figure, "a", "effective rank, backbone, held-out images")
    np.testing.assert_allclose(rank["y"], [row.backbone.effective_rank for row in run.spectrum], rtol=1e-3)


def test_several_runs_share_panels_and_differ_in_colour(make_run):
    figure = loss_figure(
        [read_run_summary(make_run("a")), read_run_summary(make_run("b", recipe={"objective": "vicreg"}))]
    )
    assert [trace["yaxis"] for trace in figure["data"]] == ["y", "y", "y2", "y2", "y3", "y3"]
    assert len({trace["line"]["color"] for trace in figure["data"]}) == 2
    assert [trace["name"] for trace in figure["data"] if trace["showlegend"]] == ["a", "b"]


def test_a_term_of_one_run_has_a_panel(make_summary, train_row):
    a = make_summary(label="a", train=[train_row(1, terms={"invariance": 1.0})])
    b = make_summary(label="b", train=[train_row(1, 3.0, terms={"variance": 3.0})])
    assert quantities(loss_figure([a, b])) == ["loss", "loss", "invariance", "variance"]


def test_without_labels_there_is_no_accuracy_panel(make_summary, spectrum_row):
    figure = progress_figure([make_summary(spectrum=[spectrum_row(1, probe_accuracy=None)])])
    assert panel_titles(figure) == ["effective rank, backbone", "effective rank, projector"]


def test_without_a_log_there_is_no_figure(make_summary):
    assert (
        loss_figure([make_summary()])
        is progress_figure([make_summary()])
        is eigenvalue_figure([make_summary()])
        is None
    )


def test_a_long_curve_keeps_its_ends_peaks_and_gaps(make_summary, train_row):
    n = 10_000
    values = [2.0 + step % 7 for step in range(n)]
    values[1234], values[5678], values[7777] = 99.0, -99.0, float("nan")
    figure = loss_figure([make_summary(train=[train_row(step, value) for step, value in enumerate(values)])])
    (trace,) = figure["data"]
    assert len(trace["x"]) <= MAX_POINTS_OF_CURVE + 1
    assert (trace["x"][0], trace["x"][-1]) == (0, n - 1)
    drawn = dict(zip(trace["x"], trace["y"], strict=True))
    assert (drawn[1234], drawn[5678], drawn[7777]) == (99.0, -99.0, None)
    assert all(y == values[x] for x, y in drawn.items() if y is not None)


def test_the_curves_of_many_runs_have_fewer_points(make_summary, train_row):
    runs = [
        make_summary(label=f"run {i}", train=[train_row(step, float(step)) for step in range(300)]) for i in range(50)
    ]
    figure = loss_figure(runs)
    assert sum(len(trace["x"]) for trace in figure["data"]) <= MAX_POINTS
    assert figure["layout"]["meta"]["thinned"] == "300"


def test_a_short_curve_shows_all_of_its_points(make_summary, train_row):
    figure = loss_figure([make_summary(train=[train_row(step, float(-step)) for step in range(500)])])
    assert figure["data"][0]["x"] == list(range(500))
    assert "thinned" not in figure["layout"]["meta"]


@pytest.mark.parametrize("collapsed", [0, 2])
def test_collapsed_dimensions_have_a_panel_if_there_are_any(make_summary, spectrum_row, collapsed):
    rows = [spectrum_row(step, collapsed_dimensions=collapsed * step) for step in (0, 1)]
    titles = panel_titles(progress_figure([make_summary(spectrum=rows)]))
    assert ("collapsed dimensions, backbone" in titles) == (collapsed > 0)


def test_eigenvalues_over_the_steps_are_those_of_the_spectra(make_run):
    run = read_run_summary(make_run("a", T=6, D_b=40, D=10))
    figure = eigenvalue_figure([run])
    of_backbone = [j for j in EIGENVALUE_INDICES if j <= 40]
    assert len(figure["data"]) == len(of_backbone) + len([j for j in EIGENVALUE_INDICES if j <= 10])
    for j in of_backbone:
        trace = curve(figure, "a", f"λ{j} of the backbone")
        assert trace["x"] == run.spectra.steps.tolist()
        np.testing.assert_allclose(trace["y"], run.spectra.eigenvalues["backbone"][:, j - 1], rtol=1e-3)
    assert [trace["showlegend"] for trace in figure["data"]].count(True) == 1
    opacities = [curve(figure, "a", f"λ{j} of the backbone")["opacity"] for j in of_backbone]
    assert opacities == sorted(opacities, reverse=True)
    assert curve(figure, "a", "λ8 of the projector")["opacity"] == curve(figure, "a", "λ8 of the backbone")["opacity"]


def test_rounding_errors_are_gaps(make_summary, make_spectra):
    table = np.array([[1.0, 0.5], [1.0, 1e-11], [2.0, 0.0], [np.nan, np.nan], [1e12, 1.0], [1.0, 0.4]])
    figure = eigenvalue_figure([make_summary(label="a", spectra=make_spectra(range(6), projector=table))])
    assert curve(figure, "a", "λ2 of the projector")["y"] == [
        0.5,
        None,
        None,
        None,
        None,
        0.4,
    ]  # relative to λ1 of the same step
    assert figure["layout"]["yaxis"]["type"] == "log"


def test_a_run_without_the_first_panel_is_in_the_legend(make_summary, spectrum_row):
    runs = [
        make_summary(label=label, spectrum=[spectrum_row(1, probe_accuracy=x)])
        for label, x in (("labels", 0.5), ("none", None))
    ]
    assert [trace["name"] for trace in progress_figure(runs)["data"] if trace["showlegend"]] == ["labels", "none"]


@pytest.fixture
def with_alarms(make_summary, train_row, alarm_row):
    train = [train_row(step) for step in range(0, 100, 10)]
    return lambda label, *steps: make_summary(label=label, train=train, alarms=[alarm_row(step) for step in steps])


def test_each_run_with_alarms_has_a_separate_row_of_markers(with_alarms):
    markers, height = alarm_markers([with_alarms("a", 20, 50), with_alarms("healthy"), with_alarms("c", 30)])
    assert [(marker["meta"]["run"], marker["x"], marker["y"]) for marker in markers] == [
        ("a", [20, 50], [1, 1]),
        ("c", [30], [0]),
    ]
    assert height == 2 * ALARM_ROW
    assert markers[0]["marker"]["color"] != markers[1]["marker"]["color"]


def test_alarms_of_one_step_share_a_marker_with_both_texts(make_summary, alarm_row):
    alarms = [alarm_row(20), alarm_row(20, where="<b>")]
    ((marker,), _) = alarm_markers([make_summary(label="a", alarms=alarms)])
    assert (marker["x"], marker["meta"]["texts"]) == ([20], ["; ".join(map(alarm_message, alarms))])
    assert "&lt;b&gt;" in marker["text"][0]
    assert "<b>" not in marker["text"][0]


def test_alarm_lines_are_drawn_once_per_step(with_alarms):
    lines = alarm_lines([with_alarms("a", 20, 20, 50)], top=0.9)
    assert [(line["x0"], line["x1"], line["y0"], line["y1"]) for line in lines] == [(20, 20, 0, 0.9), (50, 50, 0, 0.9)]


def test_alarm_markers_are_above_the_panels(with_alarms):
    figure = loss_figure([with_alarms("a", 20)])
    assert quantities(figure) == ["alarm", "loss"]
    markers, panel = (figure["layout"][axis]["domain"] for axis in ("yaxis", "yaxis2"))
    assert panel[1] < markers[0] < markers[1] <= 1.0
    assert len(figure["layout"]["shapes"]) == 1


def test_without_an_alarm_there_are_no_markers_and_lines(with_alarms):
    figure = loss_figure([with_alarms("a")])
    assert quantities(figure) == ["loss"]
    assert figure["layout"]["shapes"] == []
