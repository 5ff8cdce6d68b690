import base64
import gzip
import hashlib
import json
import math
import re
from html.parser import HTMLParser

import pytest
from plotly.offline import get_plotlyjs

from fullrank.errors import UserError
from fullrank.report import write_report
from fullrank.run.rows import row_to_json

HOSTILE = "</script><script>window.harmed = true</script><img src=x onerror='window.harmed = true'>"


class Page(HTMLParser):
    """The tags of a page with their attributes, and the content of its scripts."""

    def __init__(self, path):
        super().__init__()
        self.tags, self.scripts, self.headings, self.inside = [], [], [], ""
        self.text = path.read_text(encoding="utf-8")
        self.feed(self.text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self.inside = ""

    def handle_data(self, data):
        if self.inside == "script":
            self.scripts[-1] += data
        if self.inside == "h2":
            self.headings.append(data)

    def all(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]

    @property
    def data(self):
        return json.loads(self.scripts[0])


@pytest.fixture
def page(make_run, tmp_path):
    return lambda *runs, **keywords: Page(write_report(runs or [make_run()], tmp_path / "report.html", **keywords))


def test_a_complete_run_has_all_sections_and_figures(page):
    whole = page()
    assert whole.headings == [
        *(
            "Summary",
            "Accuracy, agreement and rank",
            "Alarms",
            "Spectrum",
            "Metrics",
            "Loss",
            "Evaluation",
            "Images",
            "Recipe",
        ),
        "Environment",
    ]
    assert list(whole.data["figures"]) == ["progress", "losses", "eigenvalues", "backbone", "projector"]
    assert len(whole.data["positions"]) == len(whole.data["figures"]["backbone"]["frames"]) == 12


@pytest.mark.parametrize(
    ("missing", "sections"),
    [
        ("metrics.jsonl", {"Loss", "Accuracy, agreement and rank", "Alarms"}),
        ("spectrum.npz", {"Spectrum", "Metrics"}),
        ("evaluation.json", {"Evaluation"}),
        ("views.png", {"Images"}),
        ("environment.json", {"Environment"}),
    ],
)
def test_a_partial_run_lacks_only_the_sections_of_the_missing_file(page, make_run, missing, sections):
    whole, partial = page(make_run("whole")), page(make_run("partial", without=(missing,)))
    assert set(whole.headings) - set(partial.headings) == sections
    assert f"{missing} is missing" in partial.text


def test_the_page_has_no_external_references(page):
    whole = page()
    links = [
        attrs.get(key, "")
        for _, attrs in whole.tags
        for key in ("src", "href", "srcset", "action", "data", "poster")
        if key in attrs
    ]
    assert links
    assert all(link.startswith(("#", "data:")) for link in links)
    styles = re.findall(r"<style>(.*?)</style>", whole.text, re.DOTALL)
    assert not any(word in style for style in styles for word in ("url(", "@import"))


def test_the_content_security_policy_allows_only_the_two_scripts(page):
    whole = page()
    (policy,) = [
        attrs["content"] for attrs in whole.all("meta") if attrs.get("http-equiv") == "Content-Security-Policy"
    ]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data:"
    plotly = gzip.decompress(base64.b64decode(whole.scripts[1])).decode()
    assert plotly == get_plotlyjs()
    hashes = [
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
        for script in (whole.scripts[2], plotly)
    ]
    assert rules["script-src"].split() == hashes


def test_text_of_a_run_is_escaped(page, make_run, train_row, alarm_row):
    recipe = {"name": HOSTILE, "objective": HOSTILE, "data": {"source": HOSTILE}, HOSTILE: HOSTILE}
    run = make_run("<img src=x onerror=alert(1)>", recipe=recipe)
    rows = (train_row(5000, terms={HOSTILE: 1.0}), alarm_row(5000, HOSTILE, alarm=HOSTILE, where=HOSTILE))
    with (run / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(row_to_json(row)) + "\n" for row in rows)
    for several in (page(run), page(run, make_run("b"))):
        assert len(several.all("script")) == 3
        assert not [attrs for tag, attrs in several.tags if "onerror" in attrs]
        assert all(attrs["src"].startswith("data:image/") for attrs in several.all("img"))
        assert HOSTILE in several.data["figures"]["losses"]["data"][-1]["meta"]["quantity"]


def test_the_page_is_small(page, make_run, make_picture):
    run = make_run("wide", T=100, D_b=2048, D=8192, lines=5_000)
    (run / "views.png").write_bytes(make_picture(1200, 900))
    assert (run / "views.png").stat().st_size > 500_000
    assert len(page(run).text.encode()) < 5_000_000
    many = [make_run(f"wide {i}", T=100, D_b=2048, D=8192, lines=500, seed=i) for i in range(3)] * 4
    assert len(page(*many).text.encode()) < 5_000_000


def test_a_small_picture_is_unchanged_and_a_large_one_reduced(page, make_run, make_picture):
    small, large = make_run("small"), make_run("large")
    (large / "views.png").write_bytes(make_picture(2000, 1600))
    (image,) = page(small).all("img")
    assert base64.b64decode(image["src"].removeprefix("data:image/png;base64,")) == (small / "views.png").read_bytes()
    (image,) = page(large).all("img")
    assert image["src"].startswith("data:image/jpeg;base64,")
    assert len(image["src"]) < 900_000


def test_equal_pictures_are_shown_once(page, make_run, make_picture):
    a, b, c = (make_run(name) for name in "abc")
    (b / "views.png").write_bytes(make_picture(seed=1))
    captions = re.findall(r"<figcaption>(.*?)Images of", page(a, b, c).text)
    assert [re.sub("<[^>]+>", "", caption) for caption in captions] == ["a, c. ", "b. "]
    (whole,) = re.findall(r"<figcaption>(.*?)Images of", page(a, c).text)
    assert whole == ""


def test_pictures_and_figures_have_descriptions(page):
    whole = page()
    assert all("hf:cifar10" in attrs["alt"] for attrs in whole.all("img"))
    descriptions = [attrs["aria-label"] for attrs in whole.all("div") if attrs.get("class") == "plot"]
    assert len(descriptions) == 5
    assert all(text.startswith("Line chart. ") for text in descriptions)


def test_without_images_the_page_has_no_pixel_of_the_data(page):
    no_images = page(images=False)
    assert no_images.all("img") == []
    assert "data:image" not in no_images.text
    assert "Images" not in no_images.headings


def labels(page):
    """Return the labels of the runs in the summary."""
    summary = page.text[page.text.index("<h2>Summary") : page.text.index("<h2>Comparison")]
    return re.findall(r'<th scope="row"[^>]*><span class="run"[^>]*>(.*?)</span></th>', summary)


def test_equal_labels_get_the_differences_between_recipes(page, make_run):
    runs = [
        make_run("same"),
        make_run("deep/same", recipe={"objective": "vicreg"}),
        make_run("other", recipe={"seed": 3}),
    ]
    assert labels(page(*runs)) == ["same: frossl", "same: vicreg", "other"]


def test_equal_labels_of_equal_recipes_are_numbered(page, make_run):
    assert labels(page(make_run("same"), make_run("deep/same"))) == ["same (1)", "same (2)"]


def test_several_runs_have_a_comparison_and_one_button_each(page, make_run):
    several = page(make_run("a"), make_run("b"))
    assert "Comparison" in several.headings
    assert [attrs["data-run"] for attrs in several.all("button") if "data-run" in attrs] == ["0", "1"]
    assert not [attrs for attrs in page(make_run("c")).all("button") if "data-run" in attrs]


def test_the_complete_recipe_can_be_read_back(page, make_run):
    run = make_run(recipe={"name": "ünï & <co>"})
    text = re.search(r"Complete recipe of run</summary><pre[^>]*>(.*?)</pre>", page(run).text, re.DOTALL).group(1)
    unescaped = (
        text.replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&quot;", '"')
        .replace("&#x27;", "'")
        .replace("&amp;", "&")
    )
    assert json.loads(unescaped) == json.loads((run / "recipe.json").read_text())


def test_the_same_runs_give_the_same_page_in_a_new_directory(make_run, tmp_path):
    run, out = make_run(), tmp_path / "new" / "report.html"
    first = write_report([run], out).read_text()
    assert write_report([run], out).read_text() == first


def test_no_run_and_a_directory_as_output_are_errors(make_run, tmp_path):
    with pytest.raises(UserError, match="no run"):
        write_report([], tmp_path / "report.html")
    with pytest.raises(UserError, match="folder"):
        write_report([make_run()], tmp_path)


def test_an_existing_page_is_kept_unless_overwritten(make_run, tmp_path):
    out = tmp_path / "report.html"
    out.write_text("mine")
    with pytest.raises(UserError, match="exists"):
        write_report([tmp_path / "no run"], out, overwrite=False)
    with pytest.raises(UserError, match="is not a run directory"):
        write_report([tmp_path / "no run"], out)
    assert out.read_text() == "mine"
    write_report([make_run()], out)
    assert "<h1>run</h1>" in out.read_text()


@pytest.mark.parametrize(
    "recipe",
    [
        {"backbone": {"name": "x", "arguments": [1]}},
        {"projector": {"kind": [1], "widths": [2]}},
        {"objective": "\ud800"},
        {"epochs": float("nan")},
    ],
)
def test_a_strangers_recipe_is_shown_or_refused_without_a_crash(tmp_path, recipe):
    (tmp_path / "recipe.json").write_text(json.dumps({"name": "x"} | recipe))
    assert write_report([tmp_path], tmp_path / "report.html").stat().st_size > 0


def test_a_long_run_with_many_terms_makes_a_page_below_5_mb_that_says_that_curves_are_thinned(make_run):
    run = make_run(lines=10_000, T=60, D_b=2048, D=1024)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for number, row in enumerate(rows):
        row["step"] = number
        if "terms" in row:
            row["terms"] |= {f"term {k}": math.sin(number * (k + 1)) for k in range(10)}
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = write_report([run], run / "report.html")
    assert page.stat().st_size < 5e6
    assert "Of a curve of up to 10,000 points, the figure shows the smallest and the largest value" in page.read_text(
        encoding="utf-8"
    )


def test_50_long_runs_make_a_page_below_5_mb(make_run):
    recipes = [{"seed": seed, "objective": objective} for seed in range(25) for objective in ("frossl", "vicreg")]
    runs = [make_run(f"run-{i}", lines=1000, T=40, D_b=512, D=512, recipe=recipe) for i, recipe in enumerate(recipes)]
    page = write_report(runs, runs[0] / "report.html")
    assert page.stat().st_size < 5e6
    assert page.read_bytes().count(b'id="plotly"') == 1
