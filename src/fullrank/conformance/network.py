"""The least that a method is: images through a network with BatchNorm to the tensors that an objective names."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fullrank.distributed import convert_sync_batchnorm

FEATURES = 6


def images(V: int, N: int) -> Float[Tensor, "V N F"]:
    """V views of N samples whose halves differ in mean and scale, so that the shares of two processes do."""
    rng = torch.Generator().manual_seed(0)
    samples = torch.randn(N, FEATURES, generator=rng, dtype=torch.float64)
    views = samples + 0.5 * torch.randn(V, N, FEATURES, generator=rng, dtype=torch.float64)
    first, second = views.tensor_split(2, dim=1)
    return torch.cat([first, 3 * second + 2], dim=1)


def network(D: int, *, off: float = 0.0) -> nn.Module:
    """A network in float64, with BatchNorm over the whole batch; `off`: how far a target network's weights are from the online ones."""
    hidden = 4 * D  # more than D, so that the embeddings fill their space
    last = nn.Linear(hidden, D)
    net = nn.Sequential(nn.Linear(FEATURES, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), last).double()
    rng = torch.Generator().manual_seed(1)
    for parameter in net.parameters():
        weights, change = torch.randn(2, *parameter.shape, generator=rng, dtype=torch.float64)
        parameter.data = weights + off * change
    # Features of standard deviations from about 0.1 to 10: what a hinge lets pass in one is held back in another.
    size = torch.logspace(-1.5, 0.5, D, dtype=torch.float64)
    last.weight.data *= size[:, None]
    last.bias.data *= size
    return convert_sync_batchnorm(net)


def embed(net: nn.Module, x: Float[Tensor, "V N F"]) -> Float[Tensor, "V N D"]:
    """Embed all views.

    >>> embed(network(5), images(2, 8)).shape
    torch.Size([2, 8, 5])
    """
    return net(x.flatten(0, 1)).unflatten(0, x.shape[:2])
