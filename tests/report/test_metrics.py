import re

import numpy as np
import pytest
import torch

from fullrank.report import metrics
from fullrank.report.metrics import last_metrics, metrics_table
from fullrank.run import SpectrumHistory
from fullrank.spectrum import Spectrum, compute_metrics


def spectra(n, **eigenvalues):
    tables = {part: np.stack([np.ones(len(values)), values]) for part, values in eigenvalues.items()}
    return SpectrumHistory(steps=np.array([0, 10]), samples=np.array([n, n]), eigenvalues=tables)


def rows(html):
    """Return the text of the cells of each row."""
    return [
        [re.sub("<[^>]+>", "", cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)]
        for row in re.findall("<tr>(.*?)</tr>", html)
    ]


def test_the_metrics_of_the_last_spectrum_equal_their_formulas(make_summary):
    eigenvalues = np.array([4.0, 1.0, 1.0, 0.0])
    metrics = last_metrics(make_summary(spectra=spectra(1000, backbone=eigenvalues)), "backbone")
    q = np.sqrt(eigenvalues[:3]) / np.sqrt(eigenvalues).sum()
    assert metrics["effective_rank"].value == pytest.approx(np.exp(-(q * np.log(q)).sum()))
    assert metrics["participation_ratio"].value == pytest.approx(6.0**2 / 18.0)
    assert metrics["collapsed_dimensions"].value == 1
    assert metrics["condition_number"].value == np.inf
    assert "rank_me" not in metrics  # it needs the mean, which a file of eigenvalues does not hold
    assert not any(metric.warning for metric in metrics.values())


def test_a_spectrum_that_is_not_finite_has_no_metrics(make_summary):
    assert last_metrics(make_summary(spectra=spectra(100, backbone=np.array([np.nan, 1.0]))), "backbone") == {}


@pytest.mark.parametrize("values", [np.zeros(3), np.ones(1)])
def test_complete_collapse_and_a_single_dimension_still_have_a_table(make_summary, values):
    html = metrics_table([make_summary(spectra=spectra(100, backbone=values))])
    assert next(row for row in rows(html) if row[0].startswith("effective rank"))[1] == f"{values.sum():g}"
    assert "nan" not in html


def test_without_spectra_or_number_of_images_there_is_no_table(make_summary):
    assert metrics_table([make_summary()]) == ""
    assert metrics_table([make_summary(spectra=spectra(0, backbone=np.ones(3)))]) == ""


def test_one_run_has_a_column_for_each_part(make_summary):
    table = rows(
        metrics_table([make_summary(spectra=spectra(1000, backbone=np.ones(8), projector=np.array([1.0, 1.0, 0.0])))])
    )
    assert table[0][:3] == ["metric of the run", "backbone", "projector"]
    ranks = next(row for row in table if row[0].startswith("effective rank"))
    assert ranks[1:3] == ["8", "2"]


def test_several_runs_have_a_table_for_each_part(make_summary):
    runs = [
        make_summary(label=label, spectra=spectra(1000, backbone=np.ones(D), projector=np.ones(2)))
        for label, D in (("a", 8), ("b", 5))
    ]
    runs.append(make_summary(label="no spectra"))
    table = rows(metrics_table(runs))
    heads = [row[:3] for row in table if row[0].startswith("metric")]
    assert heads == [["metric of the backbone", "a", "b"], ["metric of the projector", "a", "b"]]
    assert [row[1:3] for row in table if row[0].startswith("effective rank")] == [["8", "5"], ["2", "2"]]


def test_the_table_names_the_convention_of_rank_me():
    values = compute_metrics(Spectrum.from_embeddings(torch.randn(99, 4)))
    table = {name.split("exp")[0]: name for name, *_ in rows(metrics._table({"run": values}, subject="run"))}
    assert table["RankMe"].endswith("; singular values of the uncentred embeddings")
    assert "centred" not in table["effective rank"]


def test_too_few_images_mark_the_value_and_add_a_note(make_summary):
    html = metrics_table([make_summary(spectra=spectra(79, backbone=np.ones(8)))])
    ranks = next(row for row in rows(html) if row[0].startswith("effective rank"))
    assert ranks[1:] == ["8†", "higher", "too low"]
    assert html.count("<li>† 79 samples of 8 dimensions, expected 80 or more</li>") == 1
    assert "†</abbr>" not in metrics_table([make_summary(spectra=spectra(80, backbone=np.ones(8)))])
