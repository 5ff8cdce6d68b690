"""The page of `fullrank check`: what it says, and that Chromium draws it."""

import re

import pytest
import torch

from fullrank.conformance import CheckResult, Exactness, Free, Measured, Report
from fullrank.conformance.cost import Cost
from fullrank.report.conformance import render, spectra, summary, times
from fullrank.spectrum import Spectrum

HOSTILE = "<script>window.harmed = true</script>"


def spectrum(*eigenvalues):
    return Spectrum.from_eigenvalues(torch.tensor(eigenvalues), n=100)


@pytest.fixture
def report():
    cost = Cost(samples=((512, 0.001), (1024, 0.004)), dimensions=((64, 0.001), (128, 0.002)), kept=1000)
    free = Free(before=spectrum(4.0, 1.0, 0.0), after=spectrum(2.0, 2.0, 1.0))
    return Report(
        name="mine:loss",
        takes="Z (3, 12, 5)",
        findings=(
            CheckResult(name="pure", verdict="passed", measured="the same value twice", expected="a function of its tensors alone"),
            CheckResult(name="2 processes", verdict="failed", measured=HOSTILE, expected="gradient to 1e-10", remedy="gather"),
            CheckResult(name="invariant under rotation", verdict="noted", measured="holds"),
        ),
        measured=Measured(
            processes=[Exactness(processes=2, value=0.0, gradient=0.3)],
            costs={"mine:loss": cost, "frossl": cost},
            spectra={"mine:loss": free, "frossl": free},
        ),
        seconds=12.4,
    )


def test_the_summary_counts(report):
    assert summary(report) == "mine:loss breaks the contract: 1 check failed; 1 check passed, in 12 s; examined with Z (3, 12, 5)"


def test_every_finding_stands_in_the_section_of_its_verdict(report):
    page = render(report)
    sections = dict(re.findall(r'<section id="([\w-]+)"><h2>.*?</h2>(.*?)</section>', page, re.DOTALL))
    assert list(sections) == ["to-mend", "kept", "measured", "spectrum", "cost"]
    for section, words in {
        "to-mend": ("2 processes", "gather"),
        "kept": ("pure",),
        "measured": ("invariant under rotation", "holds"),
    }.items():
        assert all(word in sections[section] for word in words)
    assert HOSTILE not in page


def test_spectra_are_divided_by_the_largest_and_a_dead_dimension_is_a_gap(report):
    own, reference, start = spectra(report)["data"]
    assert own["y"] == reference["y"] == [1.0, 1.0, 0.5]
    assert start["y"] == [1.0, 0.25, None]
    assert [trace["meta"]["run"] for trace in (own, reference, start)] == ["mine:loss", "frossl", "start"]


def test_times_are_milliseconds(report):
    assert [trace["y"] for trace in times(report, "samples")["data"]] == [[1.0, 4.0]] * 2
    assert [trace["x"] for trace in times(report, "dimensions")["data"]] == [[64, 128]] * 2


def test_what_was_not_measured_has_no_section():
    page = render(Report(name="mine", takes="Z", findings=(), measured=Measured(), seconds=1.0))
    assert "<section" not in page
    assert "keeps the contract" in page


def test_embeddings_that_became_infinite_are_not_drawn(report):
    report.measured.spectra["mine:loss"] = Free(before=spectrum(4.0, 1.0, 0.0), after=None)
    assert [trace["meta"]["run"] for trace in spectra(report)["data"]] == ["frossl", "start"]
