"""What the tests of all theories share."""

import jaxtyping
import pytest
import torch


@pytest.fixture
def rng():
    return torch.Generator().manual_seed(0)


@pytest.fixture
def unchecked():
    """Shapes as a user's program meets them: without the tests' check of annotations."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
