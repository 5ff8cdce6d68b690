"""The few-shot curve, the results by class, and the rows of neighbours of a report."""

import base64
import io
import json
import re
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from PIL import Image

from fullrank.evaluation.metrics import class_metrics
from fullrank.evaluation.names import TOP5, few_shot_name
from fullrank.evaluation.result import Evaluation, ProbeScore
from fullrank.images import as_images
from fullrank.models import load
from fullrank.report import read_run_summary
from fullrank.report.classes import class_section, class_table, confusion_matrix
from fullrank.report.few_shot import few_shot_figure
from fullrank.report.neighbour_rows import MOST_BYTES, neighbour_section
from fullrank.report.store_neighbours import SHOWN, store_neighbour_rows
from fullrank.run.neighbour_rows import FILE, NeighbourRows


def few(features, n, accuracy, probe=""):
    protocol = {"labels": n, "draws": 5}
    return ProbeScore(
        features=features,
        probe=probe or few_shot_name(n),
        accuracy=accuracy,
        low=accuracy - 0.1,
        high=accuracy + 0.2,
        protocol=protocol,
    )


def curve(data="photos", rise=0.1):
    scores = [
        few(name, n, start + rise * k)
        for name, start in (("backbone", 0.4), ("raw pixels", 0.2))
        for k, n in enumerate((5, 1, 10))
    ]
    scores += [few("backbone", 5, 0.99, few_shot_name(5) + TOP5)]
    return Evaluation(model="", data=data, train_images=9, test_images=9, statement="", scores=tuple(scores))


def test_the_few_shot_curve_has_a_line_for_each_feature_set_with_its_intervals(make_summary):
    figure, caption = few_shot_figure([make_summary(evaluations=(curve(),))])
    assert figure is not None
    assert [trace["name"] for trace in figure["data"]] == ["backbone", "raw pixels"]
    assert [(trace["x"], trace["y"]) for trace in figure["data"]] == [
        ([1, 5, 10], [0.5, 0.4, 0.6]),
        ([1, 5, 10], [0.3, 0.2, 0.4]),
    ]
    assert figure["data"][0]["error_y"]["array"] == [0.2] * 3
    assert figure["data"][0]["error_y"]["arrayminus"] == [0.1] * 3
    assert "photos" in caption


def test_few_shot_curves_of_several_runs_are_of_the_same_images(make_summary):
    curves = {"a": curve("x", 0), "b": curve("y", 0), "c": curve("x", 0.2)}
    runs = [make_summary(label=label, evaluations=(each,)) for label, each in curves.items()]
    figure, _ = few_shot_figure(runs)
    assert figure is not None
    assert [(trace["name"], trace["legendgroup"]) for trace in figure["data"]] == [("a", "0"), ("c", "2")]
    assert figure["data"][1]["y"] == [0.6, 0.4, 0.8]
    assert few_shot_figure([make_summary()]) == (None, "")


def classified(y, predictions, names="abcd"):
    """Return an evaluation with the metrics of given labels and predictions."""
    found = class_metrics(np.array(y), np.array(predictions), None)
    score = ProbeScore(
        features="backbone", probe="kNN", accuracy=0.5, balanced_accuracy=found.balanced_accuracy, confusion=found.confusion,
        per_class={names[k]: recall for k, recall in found.per_class.items()},
    )  # fmt: skip
    return Evaluation(model="", data="photos", train_images=9, test_images=len(y), statement="", scores=(score,))


def rows(html):
    found = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall("<tr>(.*?)</tr>", html)]
    return [[re.sub("<[^>]+>", "", cell).replace("\N{NO-BREAK SPACE}", " ") for cell in row] for row in found]


def test_recalls_and_confusion_belong_to_their_classes_if_one_has_no_test_image():
    evaluation = classified([0, 0, 2, 2, 2, 3], [0, 1, 2, 2, 3, 3])  # no image of class b
    recalls = {row[0]: row[1] for row in rows(class_table(evaluation))}
    assert (recalls["recall, a"], recalls["recall, c"], recalls["recall, d"]) == ("50.0 %", "66.7 %", "100.0 %")
    found = {row[0]: row[1:] for row in rows(confusion_matrix(evaluation))[1:]}
    assert (found["a"], found["c"], found["d"]) == (["1", "1", "", ""], ["", "", "2", "1"], ["", "", "", "1"])


def test_results_by_class_are_shown_for_a_few_runs_only(make_summary):
    run = make_summary(evaluations=(classified([0, 1], [0, 0]),))
    assert class_section([run]).count("<table") == 2
    assert class_section([run] * 50) == ""
    assert class_section([make_summary()]) == ""


def test_evaluate_stores_neighbours_that_the_report_shows(tmp_path, make_run):
    images = torch.randint(256, (20, 3, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    images[13] = images[0]
    run = make_run()
    stored = store_neighbour_rows(load("timm-untrained:test_resnet"), as_images(images), run / FILE, source="photos")
    assert NeighbourRows.read(run / FILE) == stored
    first, nearest = stored.rows[0][:2]
    assert nearest.similarity == pytest.approx(1, abs=1e-3)
    assert first.name != nearest.name
    assert first.picture == nearest.picture
    picture = Image.open(io.BytesIO(base64.b64decode(first.picture.partition(",")[2])))
    assert max(picture.size) <= 96
    html = neighbour_section([read_run_summary(run)])
    assert html.count("<img") == len(stored.rows) * (SHOWN + 1)


def test_a_damaged_file_of_neighbours_is_a_note(make_run):
    run = make_run()
    (run / FILE).write_text('{"rows": 3}')
    summary = read_run_summary(run)
    assert summary.neighbours is None
    assert any(FILE in note for note in summary.file_notes)


def test_rows_of_neighbours_stay_small_and_have_only_pictures_as_addresses(make_summary, tmp_path):
    tile = {"name": "<b>", "picture": "data:image/png;base64," + "A" * 20_000}
    content = {"source": "photos", "searched": 9, "rows": [[tile] * 8] * 6}
    (tmp_path / FILE).write_text(json.dumps(content))
    stored = NeighbourRows.read(tmp_path / FILE)
    runs = [make_summary(neighbours=stored)] * 4
    html = neighbour_section(runs)
    assert 0 < len(html) < 1.1 * MOST_BYTES
    assert neighbour_section(runs * 20) == ""
    assert "<b>" not in html
    hostile = replace(stored, rows=((replace(stored.rows[0][0], picture="https://example.org/a.png"),),))
    assert "example.org" not in neighbour_section([make_summary(neighbours=hostile)])
    assert asdict(hostile)["rows"]
