"""The rows of the figures at their smoke size."""

from dataclasses import replace

import jaxtyping
import pytest

from fullrank_papers.figures import load_figure
from fullrank_papers.figures.directclr.study import SIZES
from fullrank_papers.figures.result import round_numbers


@pytest.fixture(scope="session")
def smoke_rows(tmp_path_factory):
    """Return the rows of a figure, computed once; the figures of DirectCLR's study share one folder of runs.

    Shapes are not checked here: it would double the time, and the tests of the theories check them.
    """
    study, known = replace(SIZES["smoke"], runs=str(tmp_path_factory.mktemp("study"))), {}

    def rows(name):
        module = load_figure(name)
        if name not in known:
            size = study if module.SIZES is SIZES else module.SIZES["smoke"]
            jaxtyping.config.update("jaxtyping_disable", True)
            try:
                known[name] = round_numbers(module.compute(size, data=None, seed=0))
            finally:
                jaxtyping.config.update("jaxtyping_disable", False)
        return known[name]

    return rows
