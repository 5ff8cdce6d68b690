import re
from dataclasses import replace

import numpy as np

from fullrank.report import read_run
from fullrank.report.compare import comparison


def rows(html):
    """Text of the cells of each row, as name → text."""
    head, *body = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall("<tr>(.*?)</tr>", html)]
    return [dict(zip(head, [" ".join(re.sub("<[^>]+>", " ", cell).split()) for cell in row], strict=True)) for row in body]


def test_projectors_are_compared_by_how_their_runs_ended(make_run):
    projectors = {"none": {"kind": "mlp", "widths": []}, "diagonal": {"kind": "diagonal", "widths": []}}
    runs = [read_run(make_run(name, recipe={"projector": spec}, slope=1 + i)) for i, (name, spec) in enumerate(projectors.items())]
    table = rows(comparison(runs))
    assert [row["what differs"] for row in table] == ["projector none", "projector diagonal"]
    for run, row in zip(runs, table, strict=True):
        assert row["effective rank, backbone"] == f"{run.spectrum_rows[-1]['backbone']['effective_rank']:.3g}"
        assert row["collapsed dimensions, projector"] == "0"
        assert row["online accuracy"] == "90.0 %"
        assert row["linear (SGD)"] == "87.1 ± 0.4 % n = 3"  # of the backbone, not of its baselines


def test_what_no_run_has_is_no_column(make_run):
    lacking = ("evaluation.json", "spectrum.npz")
    (head, *_) = rows(comparison([read_run(make_run(name, without=lacking)) for name in "ab"]))
    assert list(head) == ["run", "online accuracy"]


def test_what_one_run_lacks_is_a_dash(make_run):
    runs = [read_run(make_run("whole")), read_run(make_run("partial", without=("evaluation.json", "spectrum.npz")))]
    whole, partial = rows(comparison(runs))
    assert (whole["kNN"], partial["kNN"]) == ("84.2 %", "–")
    assert partial["effective rank, backbone"] == "–"


def test_a_label_that_says_what_differs_is_not_repeated(make_run):
    runs = [read_run(make_run(name, recipe={"objective": name})) for name in ("frossl", "vicreg")]
    assert "what differs" not in rows(comparison(runs))[0]


def test_few_images_are_marked_and_explained(make_run):
    runs = [read_run(make_run(name, D_b=96)) for name in "ab"]
    few = [replace(run, spectra=replace(run.spectra, samples=np.full(len(run.spectra.steps), 300))) for run in runs]
    html = comparison(few)
    assert rows(html)[0]["effective rank, backbone"].endswith("†")
    assert "effective rank too low and collapsed dimensions too high" in html
    assert "† 300 samples of 96 dimensions, expected 960 or more" in html
    assert "†" not in comparison(runs)


def test_a_single_run_is_not_compared(make_run):
    assert comparison([read_run(make_run())]) == ""
