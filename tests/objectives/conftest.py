import pytest
import torch

from fullrank.objectives import OBJECTIVES


@pytest.fixture
def rng():
    return torch.Generator().manual_seed(0)


@pytest.fixture
def randn(rng):
    """`randn(*shape)`: standard normal numbers in double precision."""
    return lambda *shape: torch.randn(*shape, generator=rng, dtype=torch.float64)


@pytest.fixture
def loss(request):
    """`loss(*tensors, **hyper)`: the sum of the terms of the objective that the file is named after."""
    objective = OBJECTIVES[request.path.stem.removeprefix("test_")]
    return lambda *tensors, **hyper: sum(objective(*tensors, **hyper).values())


@pytest.fixture
def rotation(rng):
    """A random orthogonal matrix (4, 4)."""
    return torch.linalg.qr(torch.randn(4, 4, generator=rng, dtype=torch.float64)).Q
