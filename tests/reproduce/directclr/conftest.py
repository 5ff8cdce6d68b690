"""The projector study at its smoke size; all figures share one folder of runs."""

from dataclasses import replace

import pytest

from fullrank.reproduce.directclr.study import SIZES


@pytest.fixture(scope="session")
def smoke(tmp_path_factory):
    return replace(SIZES["smoke"], runs=str(tmp_path_factory.mktemp("study")))
