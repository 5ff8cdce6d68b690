import base64
import gzip
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest
import torch
from plotly.offline import get_plotlyjs

from fullrank.errors import UserError
from fullrank.images import as_images
from fullrank.models import load
from fullrank.report import read_run_summary, write_report
from fullrank.report.neighbour_rows import SHOWN, find_rows
from fullrank.report.page import render
from fullrank.report.recipes import make_labels_unique
from fullrank.run.rows import row_to_json

HOSTILE = "</script><script>window.harmed = true</script><img src=x onerror='window.harmed = true'>"


class Page(HTMLParser):
    """The tags of a page with their attributes, and the content of its scripts."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.scripts, self.headings, self.inside, self.text = [], [], [], "", text
        self.feed(text)

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


@pytest.fixture
def page(make_run, tmp_path):
    def write(*runs, **keywords):
        return Page(write_report(runs or [make_run()], tmp_path / "report.html", **keywords).read_text("utf-8"))

    return write


def test_a_complete_run_has_all_sections_and_figures(page):
    whole = page()
    trained = ["Summary", "Accuracy, agreement and rank", "Alarms", "Spectrum", "Metrics", "Loss"]
    assert whole.headings == [*trained, "Evaluation", "Images", "Recipe", "Environment"]
    figures = ["progress", "spectrum", "eigenvalues", "losses", "few_shot"]
    assert list(json.loads(whole.scripts[0])["figures"]) == figures
    assert [attrs["href"] for attrs in whole.all("a")][:2] == ["#summary", "#accuracy,-agreement-and-rank"]
    assert all("hf:cifar10" in attrs["alt"] for attrs in whole.all("img"))


def test_a_partial_run_lacks_only_the_sections_of_the_missing_file(page, make_run):
    whole = page(make_run("whole"))
    for missing, sections in {
        "metrics.jsonl": {"Loss", "Accuracy, agreement and rank", "Alarms"},
        "spectrum.npz": {"Spectrum", "Metrics"},
        "evaluation.json": {"Evaluation"},
        "views.png": {"Images"},
        "environment.json": {"Environment"},
    }.items():
        partial = page(make_run(f"without {missing}", without=(missing,)))
        assert set(whole.headings) - set(partial.headings) == sections
        assert f"{missing} is missing" in partial.text


def test_the_page_has_no_external_references_and_allows_only_its_two_scripts(page):
    whole = page()
    keys = ("src", "href", "srcset", "action", "data", "poster")
    links = [attrs[key] for _, attrs in whole.tags for key in keys if key in attrs]
    assert links
    assert all(link.startswith(("#", "data:")) for link in links)
    assert not re.search(r"<style>[^<]*(url\(|@import)", whole.text)
    (policy,) = [attrs["content"] for attrs in whole.all("meta") if "http-equiv" in attrs]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert (rules["default-src"], rules["img-src"]) == ("'none'", "data:")
    plotly = gzip.decompress(base64.b64decode(whole.scripts[1])).decode()
    assert plotly == get_plotlyjs()
    digests = (hashlib.sha256(script.encode()).digest() for script in (whole.scripts[2], plotly))
    assert rules["script-src"].split() == [f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests]


def test_text_of_a_run_is_escaped(page, make_run, train_row, alarm_row):
    recipe = {"name": HOSTILE, "objective": HOSTILE, "data": {"source": HOSTILE}, HOSTILE: HOSTILE}
    run = make_run("<img src=x onerror=alert(1)>", recipe=recipe)
    rows = (train_row(5000, terms={HOSTILE: 1.0}), alarm_row(5000, HOSTILE, alarm=HOSTILE, where=HOSTILE))
    with (run / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(row_to_json(row)) + "\n" for row in rows)
    for several in (page(run), page(run, make_run("b"))):
        assert len(several.all("script")) == 3
        assert not [attrs for _, attrs in several.tags if "onerror" in attrs]
        assert all(attrs["src"].startswith("data:image/") for attrs in several.all("img"))
        assert HOSTILE in json.loads(several.scripts[0])["figures"]["losses"]["panels"][-1]["title"]


@pytest.mark.parametrize(
    "recipe",
    [{"backbone": {"arguments": [1]}}, {"projector": {"kind": [1]}}, {"objective": "\ud800"}, {"epochs": float("nan")}],
)
def test_an_untrusted_recipe_is_shown_without_a_crash(tmp_path, recipe):
    (tmp_path / "recipe.json").write_text(json.dumps({"name": "x"} | recipe))
    assert write_report([tmp_path], tmp_path / "report.html").stat().st_size > 0


def test_wide_spectra_long_logs_and_many_runs_make_a_page_below_5_mb(page, make_run, make_picture):
    run = make_run("wide", T=100, D_b=2048, D=8192, lines=5_000)
    (run / "views.png").write_bytes(make_picture(1200, 900))
    assert (run / "views.png").stat().st_size > 500_000
    assert len(page(run).text) < 5_000_000
    several = [read_run_summary(make_run("several", T=60, D_b=512, D=512, lines=500))] * 48
    assert len(render(make_labels_unique(several))) < 5_000_000


def test_a_small_picture_is_unchanged_a_large_one_reduced_and_equal_ones_shown_once(page, make_run, make_picture):
    a, b, large = (make_run(name) for name in ("a", "b", "large"))
    (large / "views.png").write_bytes(make_picture(2000, 1600))
    first, second = page(a, b, large).all("img")
    assert base64.b64decode(first["src"].removeprefix("data:image/png;base64,")) == (a / "views.png").read_bytes()
    assert second["src"].startswith("data:image/jpeg;base64,")
    assert len(second["src"]) < 900_000


def test_without_images_the_page_has_no_pixel_of_the_data(page):
    without = page(images=False)
    assert "data:image" not in without.text
    assert "Images" not in without.headings


def test_evaluate_stores_neighbours_that_the_report_shows(make_summary):
    images = torch.randint(256, (20, 3, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    images[13] = images[0]
    found = find_rows(load("timm-untrained:test_resnet"), as_images(images), source="photos")
    first, nearest = found.rows[0][:2]
    assert nearest.similarity == pytest.approx(1, abs=1e-3)
    assert first.picture == nearest.picture
    assert first.name != nearest.name
    run = make_summary(neighbours=found)
    assert len(Page(render([run])).all("img")) == len(found.rows) * (SHOWN + 1)
    assert Page(render([run], images=False)).all("img") == []
    assert len(Page(render([run] * 30)).all("img")) == 30 * (SHOWN + 1)  # one row each


def test_several_runs_have_verdicts_a_comparison_and_one_button_each(page, make_run):
    several = page(make_run("a"), make_run("b", alarms=1))
    assert "Comparison" in several.headings
    assert [attrs["data-run"] for attrs in several.all("button") if "data-run" in attrs] == ["0", "1"]
    words = re.findall(r'<span class="answer \w+">([\w ]+)</span>', several.text)
    assert words == ["Not known", "Yes", "Not known", "Not known", "Look at it", "Not known"]
    assert "of <b>" not in several.text


def test_an_existing_page_is_kept_unless_overwritten_and_the_same_runs_give_the_same_page(make_run, tmp_path):
    out = tmp_path / "report.html"
    out.write_text("mine")
    run = make_run()
    for runs, overwrite, problem in (([run], False, "exists"), ([], True, "no run"), ([tmp_path], True, "no recipe")):
        with pytest.raises(UserError, match=problem):
            write_report(runs, out, overwrite=overwrite)
    assert out.read_text() == "mine"
    first = write_report([run], out).read_text(encoding="utf-8")
    assert write_report([run], tmp_path / "new" / "report.html").read_text(encoding="utf-8") == first
