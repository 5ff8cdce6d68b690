"""A small network with BatchNorm, from images to the tensors of an objective."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fullrank.distributed import convert_sync_batchnorm

FEATURES = 6


def images(V: int, N: int) -> Float[Tensor, "V N F"]:
    """Return V views of N samples. The two halves of the batch differ in mean and scale, so that the parts of two
    processes differ.
    """
    rng = torch.Generator().manual_seed(0)
    samples = torch.randn(N, FEATURES, generator=rng, dtype=torch.float64)
    views = samples + 0.5 * torch.randn(V, N, FEATURES, generator=rng, dtype=torch.float64)
    first, second = views.tensor_split(2, dim=1)
    return torch.cat([first, 3 * second + 2], dim=1)


def build_network(D: int, *, perturbation: float = 0.0) -> nn.Module:
    """Build a network in float64, with BatchNorm over the whole batch; `perturbation` scales a random change of the
    weights.
    """
    hidden = 4 * D  # more than D, so that the embeddings span all dimensions
    last = nn.Linear(hidden, D)
    network = nn.Sequential(nn.Linear(FEATURES, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), last).double()
    rng = torch.Generator().manual_seed(1)
    for parameter in network.parameters():
        weights, change = torch.randn(2, *parameter.shape, generator=rng, dtype=torch.float64)
        parameter.data = weights + perturbation * change
    # The features get standard deviations from about 0.1 to 10, on both sides of a hinge.
    scale = torch.logspace(-1.5, 0.5, D, dtype=torch.float64)
    last.weight.data *= scale[:, None]
    last.bias.data *= scale
    return convert_sync_batchnorm(network)


def embed(network: nn.Module, x: Float[Tensor, "V N F"]) -> Float[Tensor, "V N D"]:
    """Return the embeddings of all views.

    >>> embed(build_network(5), images(2, 8)).shape
    torch.Size([2, 8, 5])
    """
    return network(x.flatten(0, 1)).unflatten(0, x.shape[:2])
