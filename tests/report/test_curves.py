import numpy as np
import pytest

from fullrank.report import read_run
from fullrank.report.curves import POINTS, losses, progress


def curve(figure, run, quantity):
    (found,) = [trace for trace in figure["data"] if trace["meta"] == {"run": run, "quantity": quantity}]
    return found


def test_the_loss_is_drawn_above_the_terms_whose_sum_it_is(make_run):
    figure = losses([read_run(make_run("a", lines=50))])
    assert [trace["meta"]["quantity"] for trace in figure["data"]] == ["loss", "invariance", "entropy"]
    assert [trace["yaxis"] for trace in figure["data"]] == ["y", "y2", "y3"]
    total, *terms = (np.array(trace["y"]) for trace in figure["data"])
    np.testing.assert_allclose(total, sum(terms), atol=2e-3)  # four significant digits of numbers below 10


def test_panels_lie_below_each_other_without_overlap(make_run):
    layout = losses([read_run(make_run())])["layout"]
    domains = [layout[axis]["domain"] for axis in ("yaxis", "yaxis2", "yaxis3")]
    edges = [edge for bottom, top in reversed(domains) for edge in (bottom, top)]
    assert edges == sorted(edges)
    assert edges[0] == pytest.approx(0.0)
    assert edges[-1] < 1.0


def test_the_points_are_those_of_the_log(make_run):
    record = read_run(make_run("a", T=9, lines=30))
    figure = progress([record])
    accuracy = curve(figure, "a", "held-out images")
    assert accuracy["x"] == [row["step"] for row in record.watch]
    np.testing.assert_allclose(accuracy["y"], [row["probe_accuracy"] for row in record.watch], rtol=1e-3)
    rank = curve(figure, "a", "backbone, held-out images")
    np.testing.assert_allclose(rank["y"], [row["backbone"]["effective_rank"] for row in record.watch], rtol=1e-3)


def test_several_runs_share_the_panels_and_differ_by_colour(make_run):
    a, b = read_run(make_run("a")), read_run(make_run("b", recipe={"objective": "vicreg"}))
    figure = losses([a, b])
    assert [trace["yaxis"] for trace in figure["data"]] == ["y", "y", "y2", "y2", "y3", "y3"]
    assert len({trace["line"]["color"] for trace in figure["data"]}) == 2
    assert [trace["name"] for trace in figure["data"] if trace["showlegend"]] == ["a", "b"]


def test_a_term_of_one_run_alone_has_a_panel_too(make_record):
    a = make_record(label="a", train=({"step": 1, "loss": 1.0, "terms": {"invariance": 1.0}},))
    b = make_record(label="b", train=({"step": 1, "loss": 3.0, "terms": {"variance": 3.0}},))
    assert [trace["meta"]["quantity"] for trace in losses([a, b])["data"]] == ["loss", "loss", "invariance", "variance"]


def test_without_labels_there_is_no_panel_of_accuracy(make_record):
    watch = ({"step": 1, "backbone": {"effective_rank": 3.0}, "probe_accuracy": None},)
    titles = [note["text"] for note in progress([make_record(watch=watch)])["layout"]["annotations"]]
    assert titles == ["<b>effective rank, backbone</b>"]


def test_without_a_log_there_is_no_figure(make_record):
    assert losses([make_record()]) is progress([make_record()]) is None


def test_a_long_log_is_thinned_with_its_ends(make_record):
    n = 3 * POINTS
    record = make_record(train=tuple({"step": step, "loss": float(step)} for step in range(n)))
    (trace,) = losses([record])["data"]
    assert len(trace["x"]) == POINTS
    assert (trace["x"][0], trace["x"][-1]) == (0, n - 1)
    assert all(abs(x - y) <= 1e-3 * x for x, y in zip(trace["x"], trace["y"], strict=True))
