import numpy as np
import pytest

from fullrank.report import read_run
from fullrank.report.curves import INDICES, POINTS, eigenvalues, losses, progress
from fullrank.run import SpectrumHistory


def curve(figure, run, quantity):
    (found,) = [trace for trace in figure["data"] if trace["meta"] == {"run": run, "quantity": quantity}]
    return found


def test_the_loss_is_drawn_above_the_terms_whose_sum_it_is(make_run):
    figure = losses([read_run(make_run("a", lines=50))])
    assert [trace["meta"]["quantity"] for trace in figure["data"]] == ["loss", "invariance", "entropy"]
    assert [trace["yaxis"] for trace in figure["data"]] == ["y", "y2", "y3"]
    total, *terms = (np.array(trace["y"]) for trace in figure["data"])
    np.testing.assert_allclose(total, sum(terms), atol=2e-3)  # four significant digits of numbers below 10


def test_a_loss_that_hardly_moves_is_no_stairs(make_record):
    record = make_record(train=tuple({"step": step, "loss": 5.55 - 1e-4 * step} for step in range(100)))
    (trace,) = losses([record])["data"]
    assert len(set(trace["y"])) == 100


def test_all_axes_of_time_end_at_the_last_step(make_record):
    spectra = SpectrumHistory(steps=np.array([0, 80]), samples=np.full(2, 9), eigenvalues={"backbone": np.ones((2, 2))})
    train = ({"step": 70, "loss": 1.0},)
    watch = ({"step": 80, "backbone": {"effective_rank": 2.0}},)
    runs = [make_record(train=train, watch=watch, spectra=spectra), make_record(train=({"step": 30, "loss": 1.0},))]
    (ends,) = {tuple(figure["layout"]["xaxis"]["range"]) for figure in (losses(runs), progress(runs), eigenvalues(runs))}
    assert ends[0] == 0
    assert ends[1] == pytest.approx(1.02 * 80)


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
    accuracy = curve(figure, "a", "accuracy, held-out images")
    assert accuracy["x"] == [row["step"] for row in record.spectrum_rows]
    np.testing.assert_allclose(accuracy["y"], [row["probe_accuracy"] for row in record.spectrum_rows], rtol=1e-3)
    rank = curve(figure, "a", "effective rank, backbone, held-out images")
    np.testing.assert_allclose(rank["y"], [row["backbone"]["effective_rank"] for row in record.spectrum_rows], rtol=1e-3)


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
    titles = [note["text"] for note in progress([make_record(spectrum_rows=watch)])["layout"]["annotations"]]
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


def test_dead_dimensions_have_a_panel_where_there_were_any(make_record):
    def titles(dead):
        watch = tuple({"step": step, "backbone": {"effective_rank": 3.0, "collapsed_dimensions": dead * step}} for step in (0, 1))
        return [note["text"] for note in progress([make_record(spectrum_rows=watch)])["layout"]["annotations"]]

    assert titles(0) == ["<b>effective rank, backbone</b>"]
    assert titles(2) == ["<b>effective rank, backbone</b>", "<b>dead dimensions, backbone</b>"]


def test_some_eigenvalues_are_followed_over_the_steps(make_run):
    record = read_run(make_run("a", T=6, D_b=40, D=10))
    figure = eigenvalues([record])
    of_backbone = [j for j in INDICES if j <= 40]
    assert len(figure["data"]) == len(of_backbone) + len([j for j in INDICES if j <= 10])
    for j in of_backbone:
        trace = curve(figure, "a", f"λ{j} of the backbone")
        assert trace["x"] == record.spectra.steps.tolist()
        np.testing.assert_allclose(trace["y"], record.spectra.eigenvalues["backbone"][:, j - 1], rtol=1e-3)
    assert [trace["showlegend"] for trace in figure["data"]].count(True) == 1
    strengths = [curve(figure, "a", f"λ{j} of the backbone")["opacity"] for j in of_backbone]
    assert strengths == sorted(strengths, reverse=True)
    assert curve(figure, "a", "λ8 of the projector")["opacity"] == curve(figure, "a", "λ8 of the backbone")["opacity"]


def test_rounding_errors_are_gaps_among_the_eigenvalues(make_record):
    table = np.array([[1.0, 0.5], [1.0, 1e-11], [2.0, 0.0], [np.nan, np.nan], [1e12, 1.0], [1.0, 0.4]])
    spectra = SpectrumHistory(steps=np.arange(6), samples=np.full(6, 9), eigenvalues={"projector": table})
    figure = eigenvalues([make_record(label="a", spectra=spectra)])
    assert curve(figure, "a", "λ2 of the projector")["y"] == [0.5, None, None, None, None, 0.4]  # of each step by itself
    assert figure["layout"]["yaxis"]["type"] == "log"
    assert eigenvalues([make_record()]) is None


def test_a_run_that_lacks_the_first_panel_is_in_the_legend_all_the_same(make_record):
    labelled = make_record(label="labelled", spectrum_rows=({"step": 1, "backbone": {"effective_rank": 3.0}, "probe_accuracy": 0.5},))
    without = make_record(label="without", spectrum_rows=({"step": 1, "backbone": {"effective_rank": 2.0}},))
    shown = [trace["name"] for trace in progress([labelled, without])["data"] if trace["showlegend"]]
    assert shown == ["labelled", "without"]
