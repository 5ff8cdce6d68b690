import numpy as np
import pytest

from fullrank.report import read_run
from fullrank.report.spectrum import EIGENVALUES, NUMBERS, POSITIONS, captions, positions, spectrum, stops
from fullrank.run import SpectrumHistory


def spectra(steps, **eigenvalues):
    return SpectrumHistory(steps=np.array(steps), samples=np.full(len(steps), 100), eigenvalues=eigenvalues)


def test_the_frames_hold_the_eigenvalues_of_the_file(make_run):
    record = read_run(make_run(T=6, D_b=40))
    figure = spectrum([record], "backbone")
    assert len(figure["frames"]) == 6
    for k, (state,) in enumerate(figure["frames"]):
        assert state["step"] == record.spectra.steps[k]
        np.testing.assert_allclose(state["y"], record.spectra.eigenvalues["backbone"][k], rtol=1e-3)
    last, first = figure["data"]
    assert last["x"] == list(range(1, 41))
    assert last["y"] == figure["frames"][-1][0]["y"]
    assert first["y"] == figure["frames"][0][0]["y"]


def test_one_run_steps_through_its_spectra_at_most_sixty(make_record):
    few = make_record(spectra=spectra(range(7), backbone=np.ones((7, 3))))
    assert positions([few]) == [{0: k} for k in range(7)]
    many = make_record(spectra=spectra(range(500), backbone=np.ones((500, 3))))
    places = positions([many])
    assert len(places) == POSITIONS
    assert (places[0], places[-1]) == ({0: 0}, {0: 499})


def test_runs_of_different_length_step_together_by_the_share_that_is_done(make_record):
    short = make_record(spectra=spectra([0, 100, 200], backbone=np.ones((3, 4))))
    long = make_record(spectra=spectra([0, 1000, 2000, 3000, 4000], backbone=np.ones((5, 4))))
    assert positions([short, long]) == [{0: 0, 1: 0}, {0: 0, 1: 1}, {0: 1, 1: 2}, {0: 1, 1: 3}, {0: 2, 1: 4}]


def test_a_run_without_spectra_leaves_the_others_theirs(make_record):
    has, lacks = make_record(label="has", spectra=spectra([0, 1], projector=np.ones((2, 4)))), make_record(label="lacks")
    figure = spectrum([lacks, has], "projector")
    assert {trace["meta"]["run"] for trace in figure["data"]} == {"has"}
    assert spectrum([lacks, has], "backbone") is None
    assert captions([lacks, has]) == ["has: step 0 (100 held-out images)", "has: step 1 (100 held-out images)"]
    assert positions([lacks]) == captions([lacks]) == []


def test_the_slider_says_step_and_effective_rank(make_run):
    record = read_run(make_run(T=3))
    rank = record.spectrum_rows[1]["backbone"]["effective_rank"]
    assert "step 2\N{NARROW NO-BREAK SPACE}000 (2\N{NARROW NO-BREAK SPACE}048 held-out images)" in captions([record])[1]
    assert f"backbone {rank:.1f}" in captions([record])[1]


def test_a_stop_of_the_slider_knows_the_step_of_each_run(make_record):
    short = make_record(label="short", spectra=spectra([0, 100], backbone=np.ones((2, 4))))
    long = make_record(label="long", spectra=spectra([0, 500, 1000], backbone=np.ones((3, 4))))
    found = stops([make_record(), short, long])
    assert [stop["steps"] for stop in found] == [{1: 0, 2: 0}, {1: 0, 2: 500}, {1: 100, 2: 1000}]
    assert [stop["said"] for stop in found] == captions([make_record(), short, long])


def test_a_spectrum_that_exploded_does_not_push_the_last_one_out_of_the_frame(make_record):
    exploded = spectra([0, 1, 2], backbone=np.array([[1e-2, 1e-3], [1e14, 1e-3], [1e2, 1e-6]]))
    low, high = spectrum([make_record(spectra=exploded)], "backbone")["layout"]["meta"]["ranges"][0]
    assert (low, high) == pytest.approx((-6.3, 14.3))


def test_the_scale_of_one_run_does_not_push_another_out_of_the_frame(make_record):
    large, small = (make_record(spectra=spectra([0], backbone=scale * np.array([[1.0, 1e-9]]))) for scale in (1e8, 1e-2))
    low, high = spectrum([large, small], "backbone")["layout"]["meta"]["ranges"][0]
    assert (low, high) == pytest.approx((-11.3, 8.3))


def test_many_wide_spectra_are_thinned_to_what_a_page_can_hold(make_record):
    runs = [make_record(spectra=spectra(range(80), backbone=np.ones((80, 2048)), projector=np.ones((80, 8192)))) for _ in range(3)]
    figures = [spectrum(runs, part) for part in ("backbone", "projector")]
    assert sum(len(state["y"]) for figure in figures for frame in figure["frames"] for state in frame) <= NUMBERS
    assert max(len(trace["x"]) for trace in figures[1]["data"]) <= EIGENVALUES
    assert {trace["x"][-1] for trace in figures[1]["data"]} == {8192}


def test_the_axis_holds_all_eigenvalues_down_to_the_rounding_errors(make_record):
    values = np.array([[10.0, 1e-3], [1.0, 1e-30], [1.0, 0.0], [1.0, -1e-18], [np.nan, np.nan]])
    figure = spectrum([make_record(spectra=spectra(range(5), backbone=values))], "backbone")
    absolute, relative = figure["layout"]["meta"]["ranges"]
    assert absolute == pytest.approx([-10.3, 1.3])
    assert relative == pytest.approx([-10.3, 0.3])
    assert [state["y"][1] for (state,) in figure["frames"]] == [1e-3, 1e-30, 0.0, 0.0, None]
    assert figure["frames"][-1][0]["y"] == [None, None]


def test_spectra_of_zeros_still_have_an_axis(make_record):
    figure = spectrum([make_record(spectra=spectra([0], backbone=np.zeros((1, 4))))], "backbone")
    low, high = figure["layout"]["meta"]["ranges"][0]
    assert low < high
