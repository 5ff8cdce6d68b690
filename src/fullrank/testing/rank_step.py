"""The work of one rank: forward and backward pass of each objective on the rank's part of the batch, in process groups
of several sizes.
"""

import pickle
import sys
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from fullrank.distributed import all_reduce_sum, gather, rank_slice, world_size
from fullrank.testing.check_result import exception_line
from fullrank.testing.network import build_network, embed, images
from fullrank.testing.objective_case import ObjectiveCase, terms_of

D, SAMPLES_PER_RANK = 5, 8
"""Embedding dimension, and number of samples per rank in the largest group."""

TIMEOUT = timedelta(seconds=20)
"""Time that a rank waits for the others, which may have failed in the objective."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """The work of all ranks: the objectives and the sizes of the process groups."""

    cases: tuple[ObjectiveCase, ...]
    world_sizes: tuple[int, ...]
    N: int
    """Number of samples of the whole batch, a multiple of every world size."""


@dataclass(frozen=True, kw_only=True)
class RankStep:
    """Loss and gradients of the network's parameters on one rank, after backward."""

    loss: float
    scale: float
    """Σ |terms|, the unit of the error of the loss; 1 if all terms are zero."""
    gradients: list[Tensor]


RankSteps = dict[tuple[str, int, bool], RankStep | str]
"""(name, world size, whether the embeddings are gathered) → the step, or the line of the exception."""


def run_step(case: ObjectiveCase, *, N: int, gathered: bool) -> RankStep:
    """Return loss and gradients on this rank. The objective gets the whole batch (`gathered`), or only the part of this
    rank.
    """
    torch.manual_seed(dist.get_rank())  # so that random numbers in an objective differ between ranks
    network = build_network(D)
    student = DistributedDataParallel(network) if world_size() > 1 else network
    x = images(case.views, N)[:, rank_slice(N)]
    with torch.no_grad():
        T = embed(build_network(D, perturbation=0.1), x)
    tensors = case.tensors(embed(student, x), T, case.sample_state(torch.Generator().manual_seed(0), D=D))
    if gathered:
        tensors = {name: t if name in case.state_names else gather(t, dim=t.ndim - 2) for name, t in tensors.items()}
    terms = torch.stack(list(terms_of(case, tensors).values()))
    terms.sum().backward()
    loss = terms.detach().sum() if gathered else all_reduce_sum(terms.detach().sum()) / world_size()
    gradients = [p.grad for p in network.parameters() if p.grad is not None]
    return RankStep(loss=loss.item(), scale=terms.detach().abs().sum().item() or 1.0, gradients=gradients)


def run_task(task: Task, folder: Path, rank: int) -> RankSteps:
    """Return the steps of this rank for every case, in a process group of each world size that includes this rank.

    All groups use the same processes, because a process takes seconds to start, and a group milliseconds. Each case
    uses new groups, so that a message that one case fails to send or receive cannot reach the next case.
    """
    steps: RankSteps = {}
    for i, case in enumerate(task.cases):
        for size in task.world_sizes:
            for gathered in (True, False):
                if rank < size:
                    init_method = f"file://{folder}/rendezvous-{i}-{size}-{gathered}"
                    dist.init_process_group(
                        "gloo", init_method=init_method, rank=rank, world_size=size, timeout=TIMEOUT
                    )
                    try:
                        steps[case.name, size, gathered] = run_step(case, N=task.N, gathered=gathered)
                    except Exception as error:  # of any type, from the user's function
                        steps[case.name, size, gathered] = exception_line(error)
                    finally:
                        dist.destroy_process_group()
    return steps


def main() -> None:
    """Read FOLDER/task.pkl and write FOLDER/RANK.pkl; the arguments of the process are FOLDER and RANK."""
    folder, rank = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    steps = run_task(pickle.loads((folder / "task.pkl").read_bytes()), folder, rank)
    (folder / f"{rank}.pkl").write_bytes(pickle.dumps(steps))
