"""The page in Chromium: its figures, its controls, and the absence of network requests."""

import csv
import json
import shutil
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from fullrank.report import read_run_summary, write_report
from fullrank.run.rows import row_to_json

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium or google-chrome on the PATH")

HOSTILE = "<img src=x onerror='window.harmed = true'><script>window.harmed = true</script>"
LIGHT, DARK = "rgb(255, 255, 255)", "rgb(21, 24, 29)"


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=["--headless", "--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser, tmp_path):
    """`open_page(*runs, width=1000, color_scheme="light")` → the page; in the end, there were no requests and no
    errors."""
    contexts, requests, errors = [], [], []

    def open_page(*runs, width=1000, color_scheme="light"):
        path = write_report(runs, tmp_path / "report.html")
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=color_scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: requests.append(request.url) if request.url != path.as_uri() else None)
        page.on("console", lambda line: errors.append(line.text) if line.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready]", state="attached")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert [url for url in requests if not url.startswith(("data:", "blob:"))] == []
    assert errors == []


def plot(page, name, what):
    return page.evaluate(f"(plot => {what})(document.querySelector('#figure-{name} .plot'))")


def eventually(page, name, what, value):
    for _ in range(100):  # wait_for_function would need the policy to allow eval
        if plot(page, name, what) == value:
            return
        page.wait_for_timeout(100)
    raise AssertionError(f"{what} is {plot(page, name, what)}, expected {value}")


@contextmanager
def redrawn(page, name):
    """Wait for the end of the drawing that the block starts: until then the figure can lose a click."""
    plot(page, name, "(plot.drawn = false, plot.once('plotly_react', () => { plot.drawn = true }), true)")
    yield
    eventually(page, name, "plot.drawn", True)


def download(page, name, kind):
    with page.expect_download() as found:
        page.locator(f"#figure-{name} [data-download={kind}]").click()
    assert found.value.suggested_filename == f"{name}.{kind}"
    return Path(found.value.path())


def test_the_slider_the_division_and_the_theme_keep_each_other(open_page, make_run):
    run = make_run(T=9, D_b=50)
    expected = read_run_summary(run).spectra.eigenvalues["backbone"]
    page = open_page(run)
    page.locator("#figure-spectrum .slider-rail-touch-rect").click(position={"x": 2, "y": 5})
    eventually(page, "spectrum", "plot.layout.sliders[0].active", 0)
    np.testing.assert_allclose(plot(page, "spectrum", "[...plot.data[0].y]"), expected[0], rtol=1e-3)
    page.locator("#relative").check()
    page.locator("#theme").click()
    eventually(page, "few_shot", "plot._fullLayout.paper_bgcolor", DARK)
    np.testing.assert_allclose(plot(page, "spectrum", "[...plot.data[0].y]"), expected[0] / expected[0, 0], rtol=2e-3)
    with redrawn(page, "spectrum"):
        page.locator("#relative").uncheck()
    page.locator("#figure-spectrum .updatemenu-button").click()
    eventually(page, "spectrum", "plot.layout.sliders[0].active", 8)
    np.testing.assert_allclose(plot(page, "spectrum", "[...plot.data[0].y]"), expected[8], rtol=1e-3)


def test_files_have_all_curves_and_a_button_hides_a_run_in_drawings(open_page, make_run):
    runs = [make_run(name, T=5, D_b=20, lines=30, alarms=name == "a") for name in ("a", 'b, "quoted"', "c")]
    page = open_page(*runs)
    with download(page, "spectrum", "csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for run in runs:
        for position, expected in zip(("0 %", "25 %", "50 %", "75 %", "100 %"), _spectra(run), strict=True):
            found = [float(row["value"]) for row in rows if row["run"] == run.name and row["position"] == position]
            np.testing.assert_allclose(found[:20], expected, rtol=1e-3)
    with download(page, "losses", "csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 3 * 3 * 30
    button = page.get_by_role("button", name='b, "quoted"', exact=True)
    with redrawn(page, "spectrum"):  # it is drawn after the other three
        button.press("Enter")
    assert button.get_attribute("aria-pressed") == "false"
    shown = "[...new Set(plot.data.filter(t => t.visible).map(t => t.meta[0]))]"
    for name in ("progress", "losses", "eigenvalues", "spectrum"):
        assert plot(page, name, shown) == ["a", "c"]
    drawing = ElementTree.parse(download(page, "losses", "svg"))
    names = {text.text for text in drawing.iter() if text.get("class") == "legendtext"}
    assert {name.partition(":")[0] for name in names} == {"a", "c"}
    assert page.locator("#figure-losses .annotation-text", has_text="▼").count() == 1


def _spectra(run):
    return read_run_summary(run).spectra.eigenvalues["backbone"]


def test_every_figure_is_drawn_dark_or_light_and_printed_light_with_all_details_open(open_page, make_run):
    page = open_page(make_run(), color_scheme="dark")
    for name, lines in {"losses": 3, "progress": 5, "eigenvalues": 15, "spectrum": 4, "few_shot": 1}.items():
        assert page.locator(f"#figure-{name} .scatterlayer .trace path.js-line").count() == lines, name
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == DARK
    assert plot(page, "losses", "plot._fullLayout.paper_bgcolor") == DARK
    assert LIGHT in download(page, "spectrum", "svg").read_text()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    eventually(page, "few_shot", "plot._fullLayout.paper_bgcolor", LIGHT)
    assert page.locator("details:not([open])").count() == 0
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    eventually(page, "few_shot", "plot._fullLayout.paper_bgcolor", DARK)
    assert page.locator("details[open]").count() == 0


def test_tables_of_many_runs_are_whole_on_screen_and_paper_and_a_phone_does_not_scroll(open_page, make_run):
    data = {"source": "/a/path/to/a-folder-of-photographs-with-quite-a-long-name/that-goes-on"}
    settings = ({"seed": i, "data": data, **{f"setting {k}": i % (k + 2) for k in range(9)}} for i in range(6))
    runs = [
        make_run(f"a-run-of-a-campaign-with-a-long-name-seed{i}", T=3, lines=5, recipe=each, alarms=i % 2)
        for i, each in enumerate(settings)
    ]
    cut = "[...document.querySelectorAll('.scroll')].filter(place => place.scrollWidth > place.clientWidth).length"
    page = open_page(*runs, width=800)
    page.evaluate("document.querySelectorAll('details').forEach(details => { details.open = true; })")
    assert page.locator(".scroll").count() > 6
    assert page.evaluate(cut) == 0
    page.set_viewport_size({"width": 718, "height": 1000})  # A4 between its margins
    page.emulate_media(media="print")
    assert page.evaluate(cut) == 0
    assert open_page(*runs[:2], width=400).evaluate("document.documentElement.scrollWidth") == 400


def test_text_of_a_run_is_not_executed_or_drawn_as_markup(open_page, make_run, train_row, alarm_row):
    recipe = {"name": HOSTILE, "objective": HOSTILE, "data": {"source": HOSTILE}}
    run = make_run("<img src=x onerror=harmed=1>", recipe=recipe)
    names = (HOSTILE, "<a href='https://example.org'>link</a>", "%{x}")
    rows = (train_row(5000, terms=dict.fromkeys(names, 1.0)), alarm_row(5000, HOSTILE, alarm=HOSTILE, where=HOSTILE))
    with (run / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(row_to_json(row)) + "\n" for row in rows)
    page = open_page(run, make_run("b"))
    assert page.evaluate("window.harmed") is None
    assert page.locator("svg a").count() == 0
    assert set(names) <= set(page.locator("#figure-losses .annotation-text").all_text_contents())
