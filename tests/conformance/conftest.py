import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))  # processes that a check starts import the losses by their module's name


@pytest.fixture
def failed():
    """`failed(check, loss)`: name → what was measured, of the findings that failed."""
    from fullrank.conformance import examine, objective_case

    def names(check, loss):
        return {f.name: f.measured for f in examine("this check", check, objective_case(loss)) if f.verdict == "failed"}

    return names
