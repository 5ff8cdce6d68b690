import broken_losses
import pytest

from fullrank.errors import UserError
from fullrank.objectives import directclr
from fullrank.testing import check


def test_a_correct_loss_passes_all_checks():
    progress = []
    report = check(
        broken_losses.correct, name="mine:correct", hyper={"invariance": 3.0}, processes=(), progress=progress.append
    )
    assert report.passed
    assert (report.name, report.tensors) == ("mine:correct", "Z (3, 12, 5)")
    assert [progress[0], progress[-1]] == ["terms", "free embeddings"]
    assert list(report.measurements.costs) == list(report.measurements.spectra) == ["mine:correct", "frossl"]
    assert len({result.name for result in report.results}) == len(report.results)


@pytest.mark.ddp
def test_processes_are_compared():
    report = check(broken_losses.barlow_with_a_local_correlation, processes=(1, 2))
    failed = {result.name for result in report.results if result.status == "failed"}
    assert "2 processes" in failed
    assert [errors.processes for errors in report.measurements.exactness] == [2]


def test_a_detached_loss_ends_the_checks_early():
    report = check(broken_losses.detached)
    assert not report.passed
    assert [result.name for result in report.results if result.status == "failed"] == ["differentiable"]
    assert (report.measurements.costs, report.measurements.spectra) == ({}, {})


def test_an_exception_of_the_function_is_a_failed_result():
    (result,) = check(broken_losses.raises).results
    assert (result.name, result.status) == ("terms", "failed")
    assert result.measured == "AttributeError: 'Tensor' object has no attribute 'no_such_method'"


def test_a_user_error_of_the_function_is_raised():
    with pytest.raises(UserError, match=r"hyper\.d0"):
        check(directclr)
