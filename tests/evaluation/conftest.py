import pytest
import torch
from threadpoolctl import threadpool_limits

from fullrank.images import MemoryImages, Preprocess, load_images, open_images


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Use one thread: for small problems on shared cores, several threads are up to fifty times slower."""
    torch.set_num_threads(1)
    with threadpool_limits(1):
        yield


@pytest.fixture(scope="session")
def digits() -> MemoryImages:
    return load_images(open_images("digits")["all"], channels=1)


@pytest.fixture(scope="session")
def preprocess() -> Preprocess:
    return Preprocess(1, 8, (0.3,), (0.38,))


@pytest.fixture(scope="session")
def halves(digits):
    """Return 300 training images and 300 test images of digits."""
    return digits.subset(range(300)), digits.subset(range(300, 600))


@pytest.fixture(scope="session")
def few(halves):
    """Return 60 training images and 60 test images of digits."""
    return tuple(half.subset(range(60)) for half in halves)


@pytest.fixture
def clusters():
    """Return X, y, X_test, y_test: three clusters in ten dimensions, with 120 training and 60 test points."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(180) % 3
    centres, noise = (torch.randn(n, 10, generator=generator, dtype=torch.float64) for n in (3, 180))
    X = 0.6 * centres[y] + noise
    return X[:120], y[:120], X[120:], y[120:]
