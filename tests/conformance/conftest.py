import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))  # other processes import the losses from this folder


@pytest.fixture
def failed():
    """`failed(check, loss)` returns the failed results: name → measured."""
    from fullrank.conformance import objective_case, run_check

    def names(check, loss):
        return {
            result.name: result.measured for result in run_check("this check", check, objective_case(loss)) if result.status == "failed"
        }

    return names
