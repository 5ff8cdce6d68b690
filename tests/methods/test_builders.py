"""What the documents say of the builders of methods."""

from pathlib import Path

import pytest

from fullrank.methods import METHODS
from fullrank.objectives.signature import hyperparameters


@pytest.mark.parametrize("builder", dict.fromkeys(METHODS.values()), ids=lambda builder: builder.__name__)
def test_the_page_of_objectives_shows_each_builder_with_its_defaults(builder):
    numbers = ", ".join(f"{name}={default!r}" for name, default in hyperparameters(builder).items())
    assert f"`{builder.__name__}({numbers})`" in Path(__file__).parents[2].joinpath("docs/objectives.md").read_text(encoding="utf-8")
