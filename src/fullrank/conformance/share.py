"""What one process of a group does: it takes objectives on its share of one batch, in groups of several sizes."""

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from fullrank.conformance.finding import one_line
from fullrank.conformance.loss import terms_of
from fullrank.conformance.network import embed, images, network
from fullrank.conformance.subject import ObjectiveCase
from fullrank.distributed import all_reduce_sum, gather, rank_slice, world_size

D, EACH = 5, 8
"""Dimensions, and samples of each process of the largest group."""

PATIENCE = timedelta(seconds=20)
"""How long a process waits for the others, which may have failed in the objective."""


@dataclass(frozen=True, kw_only=True)
class Task:
    subjects: tuple[ObjectiveCase, ...]
    processes: tuple[int, ...]
    N: int
    """Samples of the whole batch; every number of processes divides it."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """Loss and gradients of the network's parameters, as one process of a group has them after backward."""

    loss: float
    scale: float
    """Σ |terms|, by which the error of the loss is measured; 1 where all are zero."""
    gradients: list[Tensor]


Found = dict[tuple[str, int, bool], Step | str]
"""(name, number of processes, gathered?) → a step, or the exception's line."""


def step(subject: ObjectiveCase, *, N: int, gathered: bool) -> Step:
    """Take the objective behind a network on this process's share: of the whole batch, or (`gathered=False`) of the share alone."""
    torch.manual_seed(dist.get_rank())  # of what an objective should not draw
    net = network(D)
    online = DistributedDataParallel(net) if world_size() > 1 else net
    x = images(subject.views, N)[:, rank_slice(N)]
    with torch.no_grad():
        T = embed(network(D, off=0.1), x)
    tensors = subject.supply(embed(online, x), T, subject.draw_state(torch.Generator().manual_seed(0), D=D))
    if gathered:
        tensors = {name: t if name in subject.state else gather(t, dim=t.ndim - 2) for name, t in tensors.items()}
    terms = torch.stack(list(terms_of(subject, tensors).values()))
    terms.sum().backward()
    loss = terms.detach().sum() if gathered else all_reduce_sum(terms.detach().sum()) / world_size()
    return Step(
        loss=loss.item(), scale=terms.detach().abs().sum().item() or 1.0, gradients=[p.grad for p in net.parameters() if p.grad is not None]
    )


def run(task: Task, folder: Path, rank: int) -> Found:
    """Take every subject in a group of each size that this process belongs to.

    All groups are made of the same processes: to start one takes seconds, to make a group milliseconds. Each subject has groups of its
    own, so that what one of them fails to send or receive never reaches the next.
    """
    found: Found = {}
    for i, subject in enumerate(task.subjects):
        for processes in task.processes:
            for gathered in (True, False):
                if rank < processes:
                    meeting = f"file://{folder}/meeting-{i}-{processes}-{gathered}"
                    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=processes, timeout=PATIENCE)
                    try:
                        found[subject.name, processes, gathered] = step(subject, N=task.N, gathered=gathered)
                    except Exception as error:  # whatever a function of the user's raises
                        found[subject.name, processes, gathered] = one_line(error)
                    finally:
                        dist.destroy_process_group()
    return found
