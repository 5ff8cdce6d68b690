"""The page of `fullrank check`."""

import re

import pytest
import torch

from fullrank.report.conformance import render, spectrum_figure, summary, time_figure
from fullrank.spectrum import Spectrum
from fullrank.testing import CheckResult, ConformanceReport, Exactness, FreeEmbeddings, Measurements
from fullrank.testing.cost import Cost

HOSTILE = "<script>window.harmed = true</script>"


def spectrum(*eigenvalues):
    return Spectrum.from_eigenvalues(torch.tensor(eigenvalues), n=100)


@pytest.fixture
def report():
    cost = Cost(samples=((512, 0.001), (1024, 0.004)), dimensions=((64, 0.001), (128, 0.002)), saved_bytes=1000)
    free = FreeEmbeddings(before=spectrum(4.0, 1.0, 0.0), after=spectrum(2.0, 2.0, 1.0))
    return ConformanceReport(
        name="mine:loss",
        tensors="Z (3, 12, 5)",
        results=(
            CheckResult(
                name="pure",
                status="passed",
                measured="the same value twice",
                expected="a function of its tensors alone",
            ),
            CheckResult(
                name="2 processes", status="failed", measured=HOSTILE, expected="gradient to 1e-10", remedy="gather"
            ),
            CheckResult(name="invariant under rotation", status="info", measured="holds"),
        ),
        measurements=Measurements(
            exactness=[Exactness(processes=2, value_error=0.0, gradient_error=0.3)],
            costs={"mine:loss": cost, "frossl": cost},
            spectra={"mine:loss": free, "frossl": free},
        ),
        seconds=12.4,
    )


def test_the_summary_counts(report):
    assert (
        summary(report)
        == "mine:loss fails the conformance check: 1 check failed; 1 check passed, in 12 s; tested with Z (3, 12, 5)"
    )


def test_every_result_is_in_the_section_of_its_status(report):
    page = render(report)
    sections = dict(re.findall(r'<section id="([\w-]+)"><h2>.*?</h2>(.*?)</section>', page, re.DOTALL))
    assert list(sections) == ["failed", "passed", "measured", "spectrum", "cost"]
    for section, words in {
        "failed": ("2 processes", "gather"),
        "passed": ("pure",),
        "measured": ("invariant under rotation", "holds"),
    }.items():
        assert all(word in sections[section] for word in words)
    assert HOSTILE not in page


def test_spectra_are_divided_by_the_largest_eigenvalue_and_zero_is_a_gap(report):
    objective, reference, start = spectrum_figure(report)["data"]
    assert objective["y"] == reference["y"] == [1.0, 1.0, 0.5]
    assert start["y"] == [1.0, 0.25, None]
    assert [trace["meta"]["run"] for trace in (objective, reference, start)] == ["mine:loss", "frossl", "start"]


def test_times_are_milliseconds(report):
    assert [trace["y"] for trace in time_figure(report, "samples")["data"]] == [[1.0, 4.0]] * 2
    assert [trace["x"] for trace in time_figure(report, "dimensions")["data"]] == [[64, 128]] * 2


def test_a_section_without_measurements_is_omitted():
    page = render(ConformanceReport(name="mine", tensors="Z", results=(), measurements=Measurements(), seconds=1.0))
    assert "<section" not in page
    assert "passes the conformance check" in page


def test_infinite_embeddings_are_not_drawn(report):
    report.measurements.spectra["mine:loss"] = FreeEmbeddings(before=spectrum(4.0, 1.0, 0.0), after=None)
    assert [trace["meta"]["run"] for trace in spectrum_figure(report)["data"]] == ["frossl", "start"]
