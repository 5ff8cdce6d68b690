import re

import numpy as np
import pytest
import torch

from fullrank.report import measured
from fullrank.report.measured import measures, readings_of
from fullrank.run import SpectrumHistory
from fullrank.spectrum import Spectrum, readings


def spectra(n, **eigenvalues):
    tables = {part: np.stack([np.ones(len(values)), values]) for part, values in eigenvalues.items()}
    return SpectrumHistory(steps=np.array([0, 10]), samples=np.array([n, n]), eigenvalues=tables)


def rows(html):
    """Text of the cells of each row."""
    return [
        [re.sub("<[^>]+>", "", cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)]
        for row in re.findall("<tr>(.*?)</tr>", html)
    ]


def test_the_numbers_are_those_of_the_last_spectrum_by_their_formulas(make_record):
    eigenvalues = np.array([4.0, 1.0, 1.0, 0.0])
    found = readings_of(make_record(spectra=spectra(1000, backbone=eigenvalues)), "backbone")
    q = np.sqrt(eigenvalues[:3]) / np.sqrt(eigenvalues).sum()
    assert found["effective rank"].value == pytest.approx(np.exp(-(q * np.log(q)).sum()))
    assert found["participation ratio"].value == pytest.approx(6.0**2 / 18.0)
    assert found["dead dimensions"].value == 1
    assert found["condition number"].value == np.inf
    assert "RankMe" not in found  # it needs the mean, which a file of eigenvalues does not hold
    assert not any(reading.warning for reading in found.values())


def test_a_spectrum_that_is_not_finite_has_no_readings(make_record):
    assert readings_of(make_record(spectra=spectra(100, backbone=np.array([np.nan, 1.0]))), "backbone") == {}


@pytest.mark.parametrize("values", [np.zeros(3), np.ones(1)])
def test_complete_collapse_and_a_single_dimension_still_have_a_table(make_record, values):
    html = measures([make_record(spectra=spectra(100, backbone=values))])
    assert next(row for row in rows(html) if row[0].startswith("effective rank"))[1] == f"{values.sum():g}"
    assert "nan" not in html


def test_without_spectra_or_number_of_images_there_is_no_table(make_record):
    assert measures([make_record()]) == ""
    assert measures([make_record(spectra=spectra(0, backbone=np.ones(3)))]) == ""


def test_one_run_has_its_parts_side_by_side(make_record):
    table = rows(measures([make_record(spectra=spectra(1000, backbone=np.ones(8), projector=np.array([1.0, 1.0, 0.0])))]))
    assert table[0][:3] == ["measure of the run", "backbone", "projector"]
    ranks = next(row for row in table if row[0].startswith("effective rank"))
    assert ranks[1:3] == ["8", "2"]


def test_several_runs_are_compared_part_by_part(make_record):
    runs = [make_record(label=label, spectra=spectra(1000, backbone=np.ones(D), projector=np.ones(2))) for label, D in (("a", 8), ("b", 5))]
    runs.append(make_record(label="lacks spectra"))
    table = rows(measures(runs))
    heads = [row[:3] for row in table if row[0].startswith("measure")]
    assert heads == [["measure of the backbone", "a", "b"], ["measure of the projector", "a", "b"]]
    assert [row[1:3] for row in table if row[0].startswith("effective rank")] == [["8", "5"], ["2", "2"]]


def test_a_measure_of_other_numbers_says_so():
    values = readings(Spectrum.from_embeddings(torch.randn(99, 4)))
    table = {name.split("exp")[0]: name for name, *_ in rows(measured._table({"run": values}, of="run"))}
    assert table["RankMe"].endswith("; singular values of the embeddings, not centred")
    assert "centred" not in table["effective rank"]


def test_too_few_images_mark_the_value_and_say_so(make_record):
    html = measures([make_record(spectra=spectra(79, backbone=np.ones(8)))])
    ranks = next(row for row in rows(html) if row[0].startswith("effective rank"))
    assert ranks[1:] == ["8†", "reads low"]
    assert html.count("<li>† 79 samples of 8 dimensions, expected 80 or more</li>") == 1
    assert "†</abbr>" not in measures([make_record(spectra=spectra(80, backbone=np.ones(8)))])
