import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))  # other processes import the losses from this folder


@pytest.fixture
def failed():
    """`failed(check, loss)` returns the failed results: name → measured."""
    from fullrank.testing import objective_case, run_check

    def failed_results(check, loss):
        results = run_check("this check", check, objective_case(loss))
        return {result.name: result.measured for result in results if result.status == "failed"}

    return failed_results
