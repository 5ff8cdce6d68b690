import re
from importlib.resources import files

import numpy as np
import pytest

from fullrank.plot_style import COLORS
from fullrank.report import figures, read_run_summary


def contrast(a, b):
    """Return the contrast of two colours by WCAG 2.2."""

    def luminance(colour):
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted((luminance(a), luminance(b)))
    return (light + 0.05) / (dark + 0.05)


def test_text_and_colours_of_runs_have_contrast_with_both_pages():
    css = files("fullrank.report").joinpath("templates/page.css").read_text()
    palette = {name: pair for name, *pair in re.findall(r"--(\w+): light-dark\((#\w+), (#\w+)\)", css)}
    for scheme in (0, 1):
        assert all(contrast(colour, palette["paper"][scheme]) >= 3.0 for colour in COLORS)
        for paper in ("paper", "raised"):
            assert all(contrast(palette[ink][scheme], palette[paper][scheme]) >= 4.5 for ink in ("ink", "soft", "link"))


@pytest.fixture
def two(make_run):
    return [read_run_summary(make_run("a", T=9, D_b=50, alarms=2)), read_run_summary(make_run("b", T=3, D_b=50))]


def test_losses_have_a_panel_for_each_term_and_a_curve_for_each_run(two):
    panels = figures.losses(two)["panels"]
    assert [panel["title"] for panel in panels] == ["loss (the sum of its terms)", "invariance", "entropy"]
    first, second = panels[2]["curves"]
    assert (first["run"], second["run"], first["x"]) == (0, 1, [row.step for row in two[0].train])
    np.testing.assert_allclose(first["y"], [row.terms["entropy"] for row in two[0].train], rtol=1e-5)


def test_alarms_have_their_messages_at_their_steps(two):
    alarmed, quiet = (run["alarms"] for run in figures.all_figures(two)["runs"])
    assert (list(alarmed), quiet) == ([900, 910], {})
    assert "effective rank 1.200 of 512" in " ".join(alarmed[900])


def test_the_held_out_loss_comes_before_the_faint_loss_of_the_batches(make_summary, train_row, spectrum_row):
    run = make_summary(train=[train_row(1), train_row(2)], spectrum=[spectrum_row(2, held_out_loss=3.0)])
    held_out, trained = figures.losses([run])["panels"][0]["curves"]
    assert (held_out["y"], held_out["points"], trained["faint"]) == ([3.0], True, True)


def test_the_frames_are_the_spectra_over_the_training(two):
    figure = figures.spectrum(two)
    assert len(figure["positions"]) == 9
    a, first, b, _ = figure["panels"][0]["curves"]
    tables = [run.spectra.eigenvalues["backbone"] for run in two]
    np.testing.assert_allclose(a["frames"], tables[0], rtol=1e-3)
    np.testing.assert_allclose(first["y"], tables[0][0], rtol=1e-3)
    nearest = [np.abs(two[1].spectra.steps - step).argmin() for step in two[0].spectra.steps]
    np.testing.assert_allclose(b["frames"], tables[1][nearest], rtol=1e-3)


def test_one_location_alone_and_collapsed_spectra_are_drawn(make_summary, make_spectra):
    run = make_summary(spectra=make_spectra([0, 5], projector=np.array([[1.0, 0.1, 0.0], [0.0, 0.0, 0.0]])))
    assert [panel["title"] for panel in figures.spectrum([run])["panels"]] == ["eigenvalues, projector"]
    assert figures.eigenvalues([run])["panels"][0]["curves"][0]["y"] == [1.0, None]


def test_the_few_shot_curve_has_a_line_for_each_feature_set_with_its_intervals(make_summary, score, evaluation):
    scores = [
        score(name, "few-shot", value, labels=n, low=value - 0.2, high=value + 0.2)
        for name, start in (("backbone", 0.4), ("raw pixels", 0.2))
        for n, value in ((5, start), (2, start + 0.1), (10, start + 0.2))
    ]
    figure = figures.few_shot([make_summary(evaluations=(evaluation(*scores),))])
    backbone, pixels = figure["panels"][0]["curves"]
    assert (backbone["name"], backbone["x"], backbone["y"]) == ("backbone", [2, 5, 10], [0.5, 0.4, 0.6])
    assert (pixels["name"], pixels["x"], pixels["y"]) == ("raw pixels", [2, 5, 10], [0.3, 0.2, 0.4])
    np.testing.assert_allclose(backbone["high"], [0.7, 0.6, 0.8])
    np.testing.assert_allclose([backbone["low"], pixels["low"]], [[0.3, 0.2, 0.4], [0.1, 0.0, 0.2]], atol=1e-12)
    assert figure["ticks"] == [2, 5, 10]


def test_few_shot_curves_of_several_runs_are_of_the_same_images(make_summary, score, evaluation):
    def run(label, data, rise):
        scores = (score(probe="few-shot", value=0.4 + rise * n, labels=n) for n in (2, 5))
        return make_summary(label=label, evaluations=(evaluation(*scores, data=data),))

    figure = figures.few_shot([run("a", "x", 0), run("b", "y", 0), run("c", "x", 0.1)])
    assert [curve["run"] for curve in figure["panels"][0]["curves"]] == [0, 2]


def test_a_long_curve_keeps_its_peaks():
    y = np.sin(np.arange(10_000.0))
    y[5_000], y[7_000] = 100.0, np.nan
    kept = figures.envelope(y, 200)
    assert len(kept) <= 200
    assert {5_000, 7_000} <= set(kept)


def test_there_is_no_figure_without_values(make_summary):
    empty = [make_summary(), make_summary(label="b")]
    for draw in (figures.losses, figures.progress, figures.eigenvalues, figures.spectrum, figures.few_shot):
        assert draw(empty) is None


def test_accuracies_have_their_numbers_of_images(make_summary, spectrum_row):
    rows = [spectrum_row(step, of_probe=(n, 0.1)) for step, n in ((0, 64), (10, 359))]
    (curve,) = figures.progress([make_summary(spectrum=rows)])["panels"][0]["curves"]
    assert (curve["images"], curve["share"]) == ([64, 359], True)
