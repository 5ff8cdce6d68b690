"""The page in Chromium: its figures, its controls, and the absence of network requests."""

import csv
import json
import shutil
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from fullrank.report import read_run_summary, write_report
from fullrank.report.plot_style import COLORS
from fullrank.run.alarm_messages import alarm_message
from fullrank.run.rows import row_to_json

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium or google-chrome on the PATH")

HOSTILE = "<img src=x onerror='window.harmed = true'><script>window.harmed = true</script>"


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(
            executable_path=CHROMIUM,
            args=["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser, tmp_path):
    """`open_page(*runs, width=1000, color_scheme="light")` -> the page of runs, or an existing page; in the end, there
    were no requests and no errors."""
    contexts, requests, errors = [], [], []

    def open_page(*runs, width=1000, color_scheme="light"):
        path = runs[0] if runs[0].suffix == ".html" else write_report(runs, tmp_path / "report.html")
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=color_scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: requests.append(request.url) if request.url != path.as_uri() else None)
        page.on(
            "console", lambda message: errors.append(message.text) if message.type in ("error", "warning") else None
        )
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.route(
            lambda url: url != path.as_uri() and not url.startswith(("data:", "blob:")), lambda route: route.abort()
        )
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready]", state="attached")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert [url for url in requests if not url.startswith(("data:", "blob:"))] == []
    assert errors == []


def shapes(page, name):
    return page.evaluate(
        f"document.querySelector('#figure-{name} .plot').layout.shapes.map(({{x0, x1}}) => ({{x0, x1}}))"
    )


def rows_of(page, name, **where):
    """Return the lines of a figure's CSV with the given values."""
    with page.expect_download() as download:
        page.locator(f"#figure-{name} [data-download=csv]").click()
    assert download.value.suggested_filename == f"{name}.csv"
    with Path(download.value.path()).open(newline="") as file:
        return [row for row in csv.DictReader(file) if where.items() <= row.items()]


def traces(page, name):
    return page.evaluate(
        f"document.querySelector('#figure-{name} .plot').data.map(({{x, y}}) => ({{x: [...x], y: [...y]}}))"
    )


def test_every_figure_is_drawn(open_page, make_run):
    page = open_page(make_run())
    for name, lines in {"losses": 3, "progress": 5, "eigenvalues": 15, "backbone": 2, "projector": 2}.items():
        assert page.locator(f"#figure-{name} .scatterlayer .trace path.js-line").count() == lines


def test_the_slider_selects_the_spectra(open_page, make_run):
    run = make_run(T=9, D_b=50)
    expected = read_run_summary(run).spectra.eigenvalues["backbone"]
    page = open_page(run)
    for k in (8, 0, 5):
        page.locator("#position").fill(str(k))
        np.testing.assert_allclose(traces(page, "backbone")[0]["y"], expected[k], rtol=1e-3)
        assert (
            f"step {4000 * k // 8:,}".replace(",", "\N{NARROW NO-BREAK SPACE}")
            in page.locator("#position-caption").inner_text()
        )
    path = "#figure-backbone .trace path.js-line"
    drawn = page.locator(path).first.get_attribute("d")
    page.locator("#position").press("ArrowLeft")
    assert page.locator(path).first.get_attribute("d") != drawn


def test_alarms_are_on_every_step_axis_and_in_the_csv(open_page, make_run):
    run = make_run("a", alarms=2)
    page = open_page(run, make_run("b"))
    for name in ("progress", "losses", "eigenvalues"):
        assert page.locator(f"#figure-{name} .scatterlayer .trace .points path[transform]").count() > 0
        assert [round(shape["x0"]) for shape in shapes(page, name)] == [900, 910]
    assert len(rows_of(page, "losses", quantity="alarm")) == 2
    text = alarm_message(read_run_summary(run).alarms[0])
    assert rows_of(page, "losses", quantity="alarm")[0] == {
        "run": "a",
        "quantity": "alarm",
        "step": "900",
        "value": text,
    }


def test_the_step_axes_show_the_slider_but_files_do_not(open_page, make_run):
    page = open_page(make_run(T=9, alarms=1))
    page.locator("#position").fill("5")
    assert [shape["x0"] for shape in shapes(page, "progress")] == [900, 2500]
    with page.expect_download() as download:
        page.locator("#figure-progress [data-download=svg]").click()
    layers = [group for group in ElementTree.parse(download.value.path()).iter() if group.get("class") == "shapelayer"]
    assert sum(len(layer) for layer in layers) == 1
    page.locator("#position").fill("8")
    assert [shape["x0"] for shape in shapes(page, "progress")] == [900]


def test_the_line_of_the_slider_has_the_colour_of_a_run_if_it_is_the_only_one_there(open_page, make_run):
    def lines(page):
        found = page.evaluate(
            "document.querySelector('#figure-progress .plot').layout.shapes.map(({ x0, line }) => [x0, line.color])"
        )
        return {round(step): colour for step, colour in found}

    equal, longer = make_run("a", T=9), make_run("b", T=9)
    page = open_page(equal, longer)
    page.locator("#position").fill("4")
    (neutral,) = lines(page).values()
    assert neutral not in COLORS
    with np.load(longer / "spectrum.npz") as file:
        np.savez(longer / "spectrum.npz", **(dict(file) | {"steps": 2 * file["steps"]}))
    page = open_page(equal, longer)
    page.locator("#position").fill("4")
    assert lines(page) == {2000: COLORS[0], 4000: COLORS[1]}


def test_a_button_hides_a_run_in_all_figures_and_files(open_page, make_run):
    def shown(page, name):
        return page.evaluate(
            f"[...new Set(document.querySelector('#figure-{name} .plot').data.filter(t => t.visible).map(t => t.meta.run))]"
        )

    page = open_page(make_run("a", alarms=1), make_run("b"), make_run("c"))
    names = ("progress", "losses", "eigenvalues", "backbone", "projector")
    button = page.get_by_role("button", name="b", exact=True)
    assert button.get_attribute("aria-pressed") == "true"
    button.press("Enter")
    assert button.get_attribute("aria-pressed") == "false"
    page.locator("#position").fill("3")
    page.locator("#relative").check()
    assert [shown(page, name) for name in names] == [["a", "c"]] * 5
    with page.expect_download() as download:
        page.locator("#figure-losses [data-download=svg]").click()
    drawing = ElementTree.parse(download.value.path())
    assert [
        text.text for text in drawing.iter("{http://www.w3.org/2000/svg}text") if text.get("class") == "legendtext"
    ] == ["a", "c"]
    button.press("Enter")
    assert [shown(page, name) for name in names] == [["a", "b", "c"]] * 5


def test_screen_readers_get_the_description_and_the_buttons(open_page, make_run):
    page = open_page(make_run())
    (plot,) = [
        plot
        for plot in page.get_by_role("group").all()
        if "Line chart. loss of run" in (plot.get_attribute("aria-label") or "")
    ]
    assert [button.get_attribute("aria-label") for button in plot.get_by_role("button").all()][-1] == "Download as SVG"
    assert plot.get_by_text("step").count() == plot.locator("[aria-hidden] >> text=step").count() > 0


def test_a_click_on_a_curve_moves_the_slider(open_page, make_run):
    page = open_page(make_run(T=9))
    at = page.evaluate(
        "(() => { const plot = document.querySelector('#figure-eigenvalues .plot'), { xaxis, yaxis } = plot._fullLayout;"
        " const { x, y } = plot.getBoundingClientRect();"
        " return [x + xaxis._offset + xaxis.d2p(2000), y + yaxis._offset + yaxis.d2p(plot.data[0].y[4])]; })()"
    )
    page.mouse.wheel(0, at[1] - 400)
    page.wait_for_timeout(200)
    at[1] = at[1] - page.evaluate("scrollY")
    page.mouse.move(*at)
    page.wait_for_timeout(200)
    page.mouse.down()
    page.mouse.up()
    playwright.expect(page.locator("#position")).to_have_value("4")


def test_spectra_can_be_divided_by_their_largest_eigenvalue(open_page, make_run):
    run = make_run()
    page = open_page(run)
    page.locator("#relative").check()
    spectrum = read_run_summary(run).spectra.eigenvalues["projector"][-1]
    np.testing.assert_allclose(traces(page, "projector")[0]["y"], spectrum / spectrum[0], rtol=2e-3)
    page.locator("#relative").uncheck()
    np.testing.assert_allclose(traces(page, "projector")[0]["y"], spectrum, rtol=1e-3)


def test_play_shows_all_spectra(open_page, make_run):
    page = open_page(make_run(T=3))
    page.evaluate(
        "window.seen = []; new MutationObserver(() => seen.push(document.querySelector('#position').value))"
        ".observe(document.querySelector('#position-caption'), { childList: true })"
    )
    page.locator("#play").click()
    playwright.expect(page.locator("#play")).to_have_text("Play")
    assert page.evaluate("seen") == ["0", "1", "2"]


def test_the_csv_has_all_spectra_and_all_curves(open_page, make_run):
    runs = [make_run("a", T=5, D_b=20, lines=30), make_run('b, "quoted"', T=3, D_b=20, lines=30)]
    page = open_page(*runs)
    eigenvalues = rows_of(page, "backbone")
    assert len(eigenvalues) == (5 + 3) * 20
    for run in runs:
        spectra = read_run_summary(run).spectra
        for step, expected in zip(spectra.steps, spectra.eigenvalues["backbone"], strict=True):
            found = [
                float(row["eigenvalue"]) for row in eigenvalues if row["run"] == run.name and row["step"] == str(step)
            ]
            np.testing.assert_allclose(found, expected, rtol=1e-3)
    losses = rows_of(page, "losses")
    assert len(losses) == 2 * 3 * 30
    assert {row["quantity"] for row in losses} == {"loss", "invariance", "entropy"}


def test_the_svg_is_light(open_page, make_run):
    page = open_page(make_run(), color_scheme="dark")
    with page.expect_download() as download:
        page.locator("#figure-backbone [data-download=svg]").click()
    assert download.value.suggested_filename == "backbone.svg"
    text = Path(download.value.path()).read_text()
    assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
    assert "rgb(255, 255, 255)" in text
    assert "eigenvalues, backbone" in text


def test_the_page_follows_the_system_theme_and_the_button(open_page, make_run):
    def paper(page):
        colours = [page.evaluate("getComputedStyle(document.body).backgroundColor")]
        colours.append(page.evaluate("document.querySelector('#figure-losses .plot').layout.paper_bgcolor"))
        assert len(set(colours)) == 1
        return colours[0]

    run = make_run()
    light, dark = "rgb(255, 255, 255)", "rgb(21, 24, 29)"
    page = open_page(run, color_scheme="dark")
    assert paper(page) == dark
    page.locator("#theme").click()
    assert paper(page) == light
    assert paper(open_page(run, color_scheme="light")) == light


def test_a_printed_page_is_light_with_all_details_open(open_page, make_run):
    page = open_page(make_run(), color_scheme="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("document.querySelector('#figure-losses .plot').layout.paper_bgcolor") == "rgb(255, 255, 255)"
    assert page.locator("details:not([open])").count() == 0
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("document.querySelector('#figure-losses .plot').layout.paper_bgcolor") == "rgb(21, 24, 29)"
    assert page.locator("details[open]").count() == 0
    assert page.pdf(format="A4").startswith(b"%PDF")


def test_a_printed_figure_fits_on_a_page(open_page, make_run, train_row):
    run = make_run(lines=3)
    row = row_to_json(train_row(5000, terms={f"term {k}": 1.0 for k in range(8)}))
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    page = open_page(run)
    height = "document.querySelector('#figure-losses').getBoundingClientRect().height"
    before = page.evaluate(height)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(height) < 900 < before
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate(height) == before


def test_printed_tables_are_complete(open_page, make_run):
    runs = [
        make_run(f"a run of quite a long name, number {i}", recipe={"objective": objective})
        for i, objective in enumerate("uvwxyz")
    ]
    page = open_page(*runs, width=718)  # A4 between its margins
    page.emulate_media(media="print")
    cut = "[...document.querySelectorAll('.scroll')].filter(place => place.scrollWidth > place.clientWidth).length"
    assert page.evaluate(cut) == 0


def test_no_table_of_many_runs_scrolls_sideways(open_page, make_run):
    data = {"source": "/a/path/to/a-folder-of-photographs-with-quite-a-long-name/that-goes-on"}
    settings = ({"seed": i, "data": data, **{f"setting {k}": i % (k + 2) for k in range(9)}} for i in range(8))
    runs = [
        make_run(f"a-run-of-a-campaign-with-a-long-name-seed{i}", T=3, lines=5, recipe=each)
        for i, each in enumerate(settings)
    ]
    page = open_page(*runs, width=800)
    page.evaluate("document.querySelectorAll('details').forEach(details => { details.open = true; })")
    cut = "[...document.querySelectorAll('.scroll')].filter(place => place.scrollWidth > place.clientWidth).length"
    assert page.locator(".scroll").count() > 8
    assert page.evaluate(cut) == 0


def test_a_phone_does_not_scroll_sideways(open_page, make_run):
    runs = [make_run("a-run-with-quite-a-long-name-that-goes-on-and-on-and-on"), make_run("b", alarms=2)]
    page = open_page(*runs, width=400)
    assert page.evaluate("document.documentElement.scrollWidth") == 400


def test_text_of_a_run_is_not_executed_or_drawn_as_markup(open_page, make_run, train_row, alarm_row):
    run = make_run(
        "<img src=x onerror=harmed=1>", recipe={"name": HOSTILE, "objective": HOSTILE, "data": {"source": HOSTILE}}
    )
    with (run / "metrics.jsonl").open("a") as file:
        names = (HOSTILE, "<a href='https://example.org'>link</a>", "%{x}")
        rows = (
            train_row(5000, terms=dict.fromkeys(names, 1.0)),
            alarm_row(5000, HOSTILE, alarm=HOSTILE, where=HOSTILE),
        )
        file.writelines(json.dumps(row_to_json(row)) + "\n" for row in rows)
    page = open_page(run, make_run("b"))
    assert page.evaluate("window.harmed") is None
    assert page.locator("svg a").count() == 0
    assert page.locator("#figure-losses .annotation-text").all_text_contents()[-3:] == list(names)


def test_a_run_with_only_a_recipe_has_a_page(open_page, tmp_path):
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "recipe.json").write_text('{"name": "digits"}')
    page = open_page(tmp_path / "bare")
    assert page.locator("h1").inner_text() == "bare"
    assert page.locator("figure").count() == 0
