"""Fixtures of the tests of all theories; `dynamics_helpers` has their plain functions."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parent))


@pytest.fixture
def rotation(rng):
    """A random orthogonal matrix (4, 4)."""
    return torch.linalg.qr(torch.randn(4, 4, generator=rng, dtype=torch.float64)).Q
