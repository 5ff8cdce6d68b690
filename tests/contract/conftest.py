import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))  # processes that a check starts import the losses by their module's name


@pytest.fixture
def failed():
    """`failed(check, loss)`: name → what was measured, of the findings that failed."""
    from fullrank.contract import examine, subject_of

    def names(check, loss):
        return {f.name: f.measured for f in examine("this check", check, subject_of(loss)) if f.verdict == "failed"}

    return names
