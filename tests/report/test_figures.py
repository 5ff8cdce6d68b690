import re
from importlib.resources import files

import pytest

from fullrank.report.figures import describe_figure, escape_label, line_trace, round_significant, spread_indices
from fullrank.report.plot_style import COLORS


def luminance(colour: str) -> float:
    """Return the relative luminance of WCAG 2.2."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(a: str, b: str) -> float:
    dark, light = sorted((luminance(a), luminance(b)))
    return (light + 0.05) / (dark + 0.05)


def palette(name: str) -> tuple[str, str]:
    css = files("fullrank.report").joinpath("page.css").read_text()
    return re.search(rf"--{name}: light-dark\((#\w+), (#\w+)\)", css).groups()


@pytest.mark.parametrize("colour", COLORS)
def test_colours_of_runs_have_contrast_with_both_pages(colour):
    assert min(contrast(colour, paper) for paper in palette("paper")) >= 3.0


@pytest.mark.parametrize("ink", ["ink", "soft", "link"])
@pytest.mark.parametrize("paper", ["paper", "raised"])
@pytest.mark.parametrize("scheme", [0, 1])
def test_text_has_contrast(ink, paper, scheme):
    assert contrast(palette(ink)[scheme], palette(paper)[scheme]) >= 4.5


def test_runs_beyond_the_palette_have_other_dashes():
    styles = {
        (line_trace(i, "run")["line"]["color"], line_trace(i, "run")["line"]["dash"]) for i in range(4 * len(COLORS))
    }
    assert len(styles) == 4 * len(COLORS)


@pytest.mark.parametrize(("n", "at_most"), [(1, 5), (5, 5), (1000, 60), (61, 60), (3, 1)])
def test_downsampling_keeps_the_first_and_the_last(n, at_most):
    indices = spread_indices(n, at_most)
    assert indices[0] == 0
    assert indices[-1] == n - 1
    assert len(indices) == len(set(indices)) == min(n, max(at_most, 2))


def test_rounding_keeps_four_digits():
    assert round_significant(1234567.0) == 1235000.0
    assert round_significant(None) is round_significant(float("nan")) is None


def test_labels_are_escaped_for_plotly():
    assert escape_label("<a href='x'>%{y}</a>") == "&lt;a href='x'&gt;%&#123;y}&lt;/a&gt;"


def test_description_has_the_ends_of_each_curve():
    trace = line_trace(0, "a") | {"x": [0, 5, 9], "y": [None, 2.0, 1.5], "meta": {"run": "a", "quantity": "loss"}}
    faint = line_trace(0, "a", faint=True) | {"x": [0], "y": [3.0], "meta": {"run": "a", "quantity": "noise"}}
    figure = {"data": [trace, faint], "layout": {"xaxis": {"title": {"text": "step"}}}}
    assert describe_figure(figure) == "Line chart. loss of a: 2 at step 5, 1.5 at 9."
