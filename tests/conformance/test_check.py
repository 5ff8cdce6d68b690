import broken_losses
import pytest

from fullrank.conformance import CheckResult, check
from fullrank.errors import UserError
from fullrank.objectives import directclr


def test_a_sound_loss_keeps_the_contract():
    told = []
    report = check(broken_losses.sound, name="mine:sound", numbers={"invariance": 3.0}, processes=(), progress=told.append)
    assert report.passed
    assert (report.name, report.takes) == ("mine:sound", "Z (3, 12, 5)")
    assert [told[0], told[-1]] == ["terms", "free embeddings"]
    assert list(report.measured.costs) == list(report.measured.spectra) == ["mine:sound", "frossl"]
    assert len({finding.name for finding in report.findings}) == len(report.findings)


@pytest.mark.ddp
def test_processes_are_compared():
    report = check(broken_losses.barlow_with_a_local_correlation, processes=(1, 2))
    failed = {finding.name for finding in report.findings if finding.verdict == "failed"}
    assert "2 processes" in failed
    assert [one.processes for one in report.measured.processes] == [2]


def test_where_nothing_can_be_measured_the_report_ends_early():
    report = check(broken_losses.detached)
    assert not report.passed
    assert [finding.name for finding in report.findings if finding.verdict == "failed"] == ["differentiable"]
    assert (report.measured.costs, report.measured.spectra) == ({}, {})


def test_an_exception_of_the_function_is_a_finding_with_its_line():
    (finding,) = check(broken_losses.raises).findings
    assert finding == CheckResult(
        name="terms",
        verdict="failed",
        measured="AttributeError: 'Tensor' object has no attribute 'no_such_method'",
        expected="no exception",
        remedy="it raises where this check calls it; see what it assumes",
    )


def test_what_the_function_asks_of_its_user_is_passed_on():
    with pytest.raises(UserError, match=r"--hyper\.d0"):
        check(directclr)
