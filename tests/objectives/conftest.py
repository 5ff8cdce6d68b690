import pytest
import torch


@pytest.fixture
def rng():
    return torch.Generator().manual_seed(0)


@pytest.fixture
def rotation(rng):
    """A random orthogonal matrix (4, 4)."""
    return torch.linalg.qr(torch.randn(4, 4, generator=rng, dtype=torch.float64)).Q
