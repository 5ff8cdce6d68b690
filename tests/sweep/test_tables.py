"""Tables of a sweep: means and deviations over the seeds, paired comparisons, and data sets that do not mix."""

import csv
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from fullrank.errors import UserError
from fullrank.sweep import OnlineScore, Row, SweepResult
from fullrank.sweep.table import accuracy_figure, comparisons, csv_table, group_rows, result_columns


def row(objective, seed, accuracy, **changes):
    values = {"cell": f"{objective}-{seed}", "objective": objective, "seed": seed, "settings": {"objective": objective}}
    values |= {"recipe": "digits", "status": "done", "data": "digits", "images": "a1", "seconds": 2.0}
    scores = {"digits": {"linear": accuracy}}
    online = (OnlineScore(1.0, accuracy / 2), OnlineScore(2.0, accuracy))
    return Row(**(values | {"scores": scores, "online": online} | changes))


ROWS = [row("frossl", seed, 0.8 + 0.01 * seed) for seed in range(3)]
ROWS += [row("vicreg", seed, 0.7 + 0.011 * seed) for seed in range(3)]


def test_the_table_has_mean_deviation_and_number_of_seeds():
    columns = result_columns(ROWS)
    assert list(columns)[:3] == ["objective", "online %", "linear %"]
    assert columns["linear %"] == ["81.0 ± 1.0 (3)", "71.1 ± 1.1 (3)"]


def compare(rows):
    """What the table says of vicreg, compared with the best."""
    texts = comparisons(group_rows(rows), "linear")
    assert texts[("objective", "frossl"),] == "best"
    return texts[("objective", "vicreg"),]


def test_the_difference_to_the_best_is_paired_over_the_seeds():
    assert compare(ROWS).startswith("worse (-9.9 ± 0.2")
    rows = [*ROWS[:3], row("vicreg", 0, 0.9), row("vicreg", 1, 0.6), row("vicreg", 2, 0.7)]
    assert compare(rows).startswith("not significant")


def test_equal_differences_of_one_image_decide_nothing():
    rows = [row("frossl", seed, value, test_images=100) for seed, value in enumerate((0.80, 0.85))]
    rows += [row("vicreg", seed, value, test_images=100) for seed, value in enumerate((0.79, 0.84))]
    assert compare(rows).startswith("not significant (-1.0 ± ")
    many = [replace(each, test_images=10_000) for each in rows]  # a difference of 100 images
    assert compare(many).startswith("worse (-1.0 ± ")


def test_of_equal_means_the_first_is_the_best():
    rows = [row("frossl", 0, 0.1 + 0.2), row("frossl", 1, 0.3), row("vicreg", 0, 0.3), row("vicreg", 1, 0.1 + 0.2)]
    assert compare(rows).startswith("not significant (+0.0")


def printed(rows, width):
    file = io.StringIO()
    Console(file=file, width=width).print(SweepResult(Path(), rows))
    return file.getvalue()


def test_no_cell_of_the_table_is_cut():
    rows = [replace(each, settings={"objective": f"my_long_module_name:{each.objective}"}) for each in ROWS]
    for text in (printed(rows, 300), SweepResult(Path(), rows).markdown()):
        assert "my_long_module_name:vicreg" in text
        assert "worse (-9.9 ± 0.2)" in text
    assert "…" not in printed(rows, 60)


def test_a_diverged_and_a_failed_run_are_counted_and_not_averaged():
    failed = [row("vicreg", 3, 0.0, status="failed", diverged=True), row("vicreg", 4, 0.0, status="failed")]
    columns = result_columns([*ROWS, *failed])
    assert columns["linear %"][1] == "71.1 ± 1.1 (3)"
    assert columns["failed runs"] == ["", "1 diverged; 1 failed"]


def test_runs_of_different_images_never_stand_in_one_table():
    with pytest.raises(UserError, match=r"would mix the data sets digits \(a1\)"):
        SweepResult(Path(), [*ROWS, row("vicreg", 4, 0.5, images="b2")])


def test_csv_has_one_line_for_each_run_with_full_numbers():
    lines = list(csv.DictReader(io.StringIO(csv_table(ROWS))))
    assert len(lines) == 6
    assert (lines[4]["objective"], lines[4]["seed"], float(lines[4]["linear"])) == ("vicreg", "1", 0.711)


def test_the_figure_has_a_curve_for_each_combination():
    figure = accuracy_figure(ROWS, "")
    assert figure is not None
    lines = figure.axes[0].lines
    assert [line.get_label() for line in lines] == ["frossl", "vicreg"]
    assert np.asarray(lines[0].get_ydata())[1] == pytest.approx(81.0)
    assert accuracy_figure([row("frossl", 0, 0.5, online=())], "") is None
