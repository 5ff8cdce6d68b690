import re
from importlib.resources import files

import pytest

from fullrank.report.figures import COLOURS, describe, line, plain, significant, thin


def luminance(colour: str) -> float:
    """Relative luminance of WCAG 2.2."""
    shares = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in shares]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(a: str, b: str) -> float:
    dark, light = sorted((luminance(a), luminance(b)))
    return (light + 0.05) / (dark + 0.05)


def palette(name: str) -> tuple[str, str]:
    css = files("fullrank.report").joinpath("page.css").read_text()
    return re.search(rf"--{name}: light-dark\((#\w+), (#\w+)\)", css).groups()


@pytest.mark.parametrize("colour", COLOURS)
def test_each_run_stands_out_on_the_light_and_on_the_dark_page(colour):
    assert min(contrast(colour, paper) for paper in palette("paper")) >= 3.0


@pytest.mark.parametrize("ink", ["ink", "soft", "link"])
@pytest.mark.parametrize("paper", ["paper", "raised"])
@pytest.mark.parametrize("scheme", [0, 1])
def test_all_text_can_be_read(ink, paper, scheme):
    assert contrast(palette(ink)[scheme], palette(paper)[scheme]) >= 4.5


def test_runs_beyond_the_palette_differ_by_their_dashes():
    looks = {(line(i, "run")["line"]["color"], line(i, "run")["line"]["dash"]) for i in range(4 * len(COLOURS))}
    assert len(looks) == 4 * len(COLOURS)


@pytest.mark.parametrize(("n", "most"), [(1, 5), (5, 5), (1000, 60), (61, 60), (3, 1)])
def test_thinning_keeps_the_first_and_the_last(n, most):
    kept = thin(n, most)
    assert kept[0] == 0
    assert kept[-1] == n - 1
    assert len(kept) == len(set(kept)) == min(n, max(most, 2))


def test_four_digits_are_kept():
    assert significant(1234567.0) == 1235000.0
    assert significant(None) is significant(float("nan")) is None


def test_names_are_no_markup_and_no_fields():
    assert plain("<a href='x'>%{y}</a>") == "&lt;a href='x'&gt;%&#123;y}&lt;/a&gt;"


def test_a_figure_is_told_by_the_ends_of_its_curves():
    trace = line(0, "a") | {"x": [0, 5, 9], "y": [None, 2.0, 1.5], "meta": {"run": "a", "quantity": "loss"}}
    faint = line(0, "a", faint=True) | {"x": [0], "y": [3.0], "meta": {"run": "a", "quantity": "noise"}}
    figure = {"data": [trace, faint], "layout": {"xaxis": {"title": {"text": "step"}}}}
    assert describe(figure) == "Line chart. loss of a: 2 at step 5, 1.5 at 9."
