import numpy as np
import pytest

from fullrank.report import read_run_summary
from fullrank.report.spectrum import (
    MAX_EIGENVALUES,
    MAX_NUMBERS,
    MAX_POSITIONS,
    match_spectra,
    slider_positions,
    spectrum_figure,
)


def captions(runs):
    return [position["caption"] for position in slider_positions(runs)]


def test_frames_contain_the_eigenvalues_of_the_file(make_run):
    run = read_run_summary(make_run(T=6, D_b=40))
    figure = spectrum_figure([run], "backbone")
    assert len(figure["frames"]) == 6
    for k, (state,) in enumerate(figure["frames"]):
        assert state["step"] == run.spectra.steps[k]
        np.testing.assert_allclose(state["y"], run.spectra.eigenvalues["backbone"][k], rtol=1e-3)
    last, first = figure["data"]
    assert last["x"] == list(range(1, 41))
    assert last["y"] == figure["frames"][-1][0]["y"]
    assert first["y"] == figure["frames"][0][0]["y"]


def test_one_run_shows_at_most_sixty_of_its_spectra(make_summary, make_spectra):
    few = make_summary(spectra=make_spectra(range(7), backbone=np.ones((7, 3))))
    assert match_spectra([few]) == [{0: k} for k in range(7)]
    matched = match_spectra([make_summary(spectra=make_spectra(range(500), backbone=np.ones((500, 3))))])
    assert len(matched) == MAX_POSITIONS
    assert (matched[0], matched[-1]) == ({0: 0}, {0: 499})


def test_runs_of_different_length_are_matched_by_the_fraction_of_training(make_summary, make_spectra):
    short = make_summary(spectra=make_spectra([0, 100, 200], backbone=np.ones((3, 4))))
    long = make_summary(spectra=make_spectra([0, 1000, 2000, 3000, 4000], backbone=np.ones((5, 4))))
    assert match_spectra([short, long]) == [{0: 0, 1: 0}, {0: 0, 1: 1}, {0: 1, 1: 2}, {0: 1, 1: 3}, {0: 2, 1: 4}]


def test_a_run_without_spectra_is_omitted(make_summary, make_spectra):
    complete, empty = (
        make_summary(label="complete", spectra=make_spectra([0, 1], projector=np.ones((2, 4)))),
        make_summary(label="empty"),
    )
    figure = spectrum_figure([empty, complete], "projector")
    assert {trace["meta"]["run"] for trace in figure["data"]} == {"complete"}
    assert spectrum_figure([empty, complete], "backbone") is None
    assert captions([empty, complete]) == [
        "complete: step 0 (100 held-out images)",
        "complete: step 1 (100 held-out images)",
    ]
    assert match_spectra([empty]) == captions([empty]) == []


def test_captions_have_step_images_and_effective_rank(make_run):
    run = read_run_summary(make_run(T=3))
    caption = captions([run])[1]
    assert "step 2\N{NARROW NO-BREAK SPACE}000 (2\N{NARROW NO-BREAK SPACE}048 held-out images)" in caption
    assert f"backbone {run.spectrum[1].backbone.effective_rank:.1f}" in caption


def test_slider_positions_have_the_step_of_each_run(make_summary, make_spectra):
    short = make_summary(label="short", spectra=make_spectra([0, 100], backbone=np.ones((2, 4))))
    long = make_summary(label="long", spectra=make_spectra([0, 500, 1000], backbone=np.ones((3, 4))))
    found = slider_positions([make_summary(), short, long])
    assert [position["steps"] for position in found] == [{1: 0, 2: 0}, {1: 0, 2: 500}, {1: 100, 2: 1000}]


def test_a_very_large_spectrum_does_not_hide_the_last_one(make_summary, make_spectra):
    large = make_spectra([0, 1, 2], backbone=np.array([[1e-2, 1e-3], [1e14, 1e-3], [1e2, 1e-6]]))
    low, high = spectrum_figure([make_summary(spectra=large)], "backbone")["layout"]["meta"]["ranges"][0]
    assert (low, high) == pytest.approx((-6.3, 14.3))


def test_the_scale_of_one_run_does_not_hide_another(make_summary, make_spectra):
    large, small = (
        make_summary(spectra=make_spectra([0], backbone=scale * np.array([[1.0, 1e-9]]))) for scale in (1e8, 1e-2)
    )
    low, high = spectrum_figure([large, small], "backbone")["layout"]["meta"]["ranges"][0]
    assert (low, high) == pytest.approx((-11.3, 8.3))


def test_many_wide_spectra_are_downsampled(make_summary, make_spectra):
    runs = [
        make_summary(spectra=make_spectra(range(80), backbone=np.ones((80, 2048)), projector=np.ones((80, 8192))))
        for _ in range(3)
    ]
    figures = [spectrum_figure(runs, location) for location in ("backbone", "projector")]
    assert sum(len(state["y"]) for figure in figures for frame in figure["frames"] for state in frame) <= MAX_NUMBERS
    assert max(len(trace["x"]) for trace in figures[1]["data"]) <= MAX_EIGENVALUES
    assert {trace["x"][-1] for trace in figures[1]["data"]} == {8192}


def test_the_axis_shows_all_eigenvalues_except_rounding_errors(make_summary, make_spectra):
    values = np.array([[10.0, 1e-3], [1.0, 1e-30], [1.0, 0.0], [1.0, -1e-18], [np.nan, np.nan]])
    figure = spectrum_figure([make_summary(spectra=make_spectra(range(5), backbone=values))], "backbone")
    absolute, relative = figure["layout"]["meta"]["ranges"]
    assert absolute == pytest.approx([-10.3, 1.3])
    assert relative == pytest.approx([-10.3, 0.3])
    assert [state["y"][1] for (state,) in figure["frames"]] == [1e-3, 1e-30, 0.0, 0.0, None]
    assert figure["frames"][-1][0]["y"] == [None, None]


def test_spectra_of_zeros_have_an_axis(make_summary, make_spectra):
    figure = spectrum_figure([make_summary(spectra=make_spectra([0], backbone=np.zeros((1, 4))))], "backbone")
    low, high = figure["layout"]["meta"]["ranges"][0]
    assert low < high
