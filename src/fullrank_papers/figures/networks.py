"""A network with ReLUs that learns from crops in seconds, and its training."""

from collections.abc import Callable, Iterable, Iterator

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fullrank.objectives import Terms, total

Schedule = torch.optim.lr_scheduler.LRScheduler


def relu_network(inputs: int, *, hidden: int, outputs: int) -> nn.Sequential:
    """Return two hidden layers of ReLUs with BatchNorm, whose outputs are the features, and a linear layer."""
    layers = [nn.Linear(inputs, hidden), nn.Linear(hidden, hidden)]
    features = [x for layer in layers for x in (layer, nn.BatchNorm1d(hidden), nn.ReLU())]
    return nn.Sequential(*features, nn.Linear(hidden, outputs, bias=False))


def adam(network: nn.Module, steps: int) -> tuple[torch.optim.Optimizer, Schedule]:
    """Return Adam, whose learning rate falls from 0.002 to zero along a cosine."""
    optimizer = torch.optim.Adam(network.parameters(), lr=2e-3)
    return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)


def draw_batches(
    crops: Float[Tensor, "K V n M"], *, size: int, steps: int, generator: torch.Generator
) -> Iterator[Float[Tensor, "V N M"]]:
    """Yield the views of N random images, for each batch from one of K draws of their crops."""
    for _ in range(steps):
        draw = int(torch.randint(len(crops), (), generator=generator))
        yield crops[draw][:, torch.randint(crops.shape[2], (size,), generator=generator)]


def train(
    network: nn.Module,
    loss: Callable[[Float[Tensor, "V N D"]], Terms],
    batches: Iterable[Float[Tensor, "V N M"]],
    optimizer: torch.optim.Optimizer,
    schedule: Schedule | None = None,
) -> Iterator[Float[Tensor, "V N D"]]:
    """Take one step for each batch, and yield the embeddings that it had before the step."""
    for views in batches:
        Z = torch.stack([network(view) for view in views])
        optimizer.zero_grad()
        total(loss(Z)).backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()
        yield Z.detach()
