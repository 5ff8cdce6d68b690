import pytest
import torch


@pytest.fixture
def rng():
    return torch.Generator().manual_seed(0)


@pytest.fixture
def randn(rng):
    """Return a function of (n, D) that draws normal numbers in float64, always the same sequence."""
    return lambda *shape: torch.randn(*shape, generator=rng, dtype=torch.float64)


@pytest.fixture
def orthonormal(randn):
    """Return a function of (n, D) that draws a matrix with centred, orthonormal columns."""
    return lambda n, D: torch.linalg.qr(torch.cat([torch.ones(n, 1, dtype=torch.float64), randn(n, D)], 1)).Q[:, 1:]


@pytest.fixture
def untyped():
    """Switch the shape checks of the tests off, as for users, to reach the error messages behind them."""
    import jaxtyping

    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
