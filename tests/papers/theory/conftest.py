"""Fixtures of the tests of all theories; `dynamics_helpers` has their plain functions."""

import sys
from pathlib import Path

import jaxtyping
import pytest
import torch

sys.path.append(str(Path(__file__).parent))


@pytest.fixture
def rng():
    return torch.Generator().manual_seed(0)


@pytest.fixture
def no_shape_checks():
    """Shapes without the tests' check of annotations, as in a user's program."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
