import pytest
import torch


@pytest.fixture
def double_precision():
    """Float64 by default, and a fixed seed."""
    torch.set_default_dtype(torch.float64)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield
    torch.set_default_dtype(torch.float32)
