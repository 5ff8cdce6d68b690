"""Compare the loss and the gradient of every parameter on several processes with those of one process that has the
whole batch.

The objective gets the gathered embeddings, which is exact for any pure function. The comparison fails for a function
that communicates with other processes, keeps state, or draws random numbers from another source than its `generator`.
"""

import math
import pickle
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from fullrank.distributed import all_reduce_sum, convert_sync_batchnorm, gather, rank_slice, world_size
from fullrank.errors import UserError, exception_line
from fullrank.images.parallel import hidden_main, process_context
from fullrank.testing.case import LossAndGradients, ObjectiveCase, max_abs, terms_of
from fullrank.testing.report import CheckResult

SAMPLES, FEATURES = 8, 6  # by default of a process in the largest group; of an image
MOST_HIDDEN = 512  # units
# Largest ‖g_W − g_1‖ of a parameter, in units of the norm of the whole gradient, and largest |ℒ_W − ℒ_1| / Σ|terms|.
GRADIENT_TOLERANCE, VALUE_TOLERANCE = 1e-10, 1e-12
# Time that one process waits for the others, which may fail, for each 256 dimensions.
WAIT = timedelta(seconds=20)


class Exactness(NamedTuple):
    """The errors of W processes, relative to one process.

    Attributes:
        value_error: Error of the loss in units of Σ|terms|, the largest of all processes.
        gradient_error: Error of a parameter's gradient in units of the norm of the whole gradient, the largest of all.
        exception: Type and first line of an exception in a process.
    """

    processes: int
    value_error: float = math.nan
    gradient_error: float = math.nan
    exception: str = ""

    @property
    def exact(self) -> bool:
        """Whether both errors are rounding errors."""
        return self.value_error <= VALUE_TOLERANCE and self.gradient_error <= GRADIENT_TOLERANCE


class Batch(NamedTuple):
    """The whole batch: its samples, the dimensions of an embedding, and whether its halves differ."""

    N: int
    D: int
    sorted_data: bool


# (name, world size) → the step, or the line of the exception.
Steps = Mapping[tuple[str, int], LossAndGradients | str]


def measure_exactness(
    cases: Sequence[ObjectiveCase],
    *,
    processes: Sequence[int] = (1, 2, 4),
    gathered: bool = True,
    N: int | None = None,
    D: int = 5,
    sorted_data: bool = True,
) -> dict[str, list[Exactness]]:
    """Compare every case on each number of processes with one process. All cases use the same processes, so many cases
    cost little more.

    Args:
        cases: the objectives; other processes must be able to import each function, so define it with `def` at the top
            level of a module.
        processes: numbers of processes; one process is always included, as the reference.
        gathered: False: each process calls the objective on its part of the batch, and DistributedDataParallel
            averages.
        N: samples of the whole batch; None: 8 for each of the most processes.
        D: dimensions of an embedding.
        sorted_data: whether the halves of the batch differ in mean and scale; else the samples are i.i.d.

    Returns:
        Name of the case → the errors for each number of processes above one.

    Raises:
        UserError: other processes cannot import a function.
    """
    sizes = sorted({1, *processes})
    if sizes == [1]:
        return {case.name: [] for case in cases}
    try:
        batch = Batch(N or SAMPLES * math.lcm(*sizes), D, sorted_data)
        task = pickle.dumps((list(cases), sizes, gathered, batch))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        remedy = "define it with `def` at the top level of a module"
        raise UserError(f"other processes cannot import the function ({exception_line(error)}); {remedy}") from error
    with (
        tempfile.TemporaryDirectory() as folder,
        hidden_main(),
        ProcessPoolExecutor(sizes[-1], mp_context=process_context()) as pool,
    ):
        futures = [pool.submit(run_steps, task, folder, rank) for rank in range(sizes[-1])]
        try:
            steps = [pickle.loads(future.result()) for future in futures]
        except Exception as error:  # of any type: the function cannot be imported, or ended its process
            steps = [{(case.name, W): exception_line(error) for case in cases for W in sizes}] * sizes[-1]
    return {case.name: [_compare(steps, case.name, W) for W in sizes[1:]] for case in cases}


def run_steps(task: bytes, folder: str, rank: int) -> bytes:
    """Return the pickled `Steps` of one process in groups of all sizes.

    All groups use the same processes, because a process takes seconds to start, and a group milliseconds. Each case
    uses new groups, so that a message that one case fails to send or receive cannot reach the next case.
    """
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    cases, sizes, gathered, batch = pickle.loads(task)
    wait = WAIT * math.ceil(batch.D / 256)
    steps: dict[tuple[str, int], LossAndGradients | str] = {}
    for i, W in [(i, W) for i in range(len(cases)) for W in sizes if rank < W]:
        meeting = f"file://{folder}/meeting-{i}-{W}"
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=W, timeout=wait)
        try:
            found = run_step(cases[i], batch, gathered=gathered)
        except Exception as error:  # of any type, from the user's function
            found = exception_line(error)
        finally:
            dist.destroy_process_group()
        steps[cases[i].name, W] = found
    return pickle.dumps(steps)


def run_step(case: ObjectiveCase, batch: Batch, *, gathered: bool) -> LossAndGradients:
    """Return the loss and the gradients of the parameters on this process; the objective gets the whole batch, or only
    its part of it.
    """
    torch.manual_seed(dist.get_rank())  # so that random numbers in an objective differ between processes
    N, D, sorted_data = batch
    network = build_network(D)
    student = DistributedDataParallel(network) if world_size() > 1 else network
    x = images(case.views, N, sorted_data=sorted_data)[:, rank_slice(N)]
    with torch.no_grad():
        T = embed(build_network(D, perturbation=0.1), x)
    tensors = case.tensors(embed(student, x), T, case.sample_state(torch.Generator().manual_seed(0), D=D))
    if gathered:
        tensors = {name: t if name in case.state_names else gather(t) for name, t in tensors.items()}
    terms = torch.stack(list(terms_of(case, tensors).values()))
    terms.sum().backward()
    loss = terms.detach().sum() if gathered else all_reduce_sum(terms.detach().sum()) / world_size()
    gradients = {name: p.grad for name, p in network.named_parameters() if p.grad is not None}
    return LossAndGradients(loss, terms.detach().abs().sum().item() or 1.0, gradients)


def _compare(steps: Sequence[Steps], name: str, processes: int) -> Exactness:
    found = [steps[0][name, 1], *(of_rank[name, processes] for of_rank in steps[:processes])]
    if lines := [step for step in found if isinstance(step, str)]:
        first = next((line for line in lines if "gloo" not in line), lines[0])  # gloo's error follows from another
        return Exactness(processes, exception=first)
    return Exactness(processes, *largest_errors(*(step for step in found if not isinstance(step, str))))


def largest_errors(reference: LossAndGradients, *steps: LossAndGradients) -> tuple[float, float]:
    """Return the largest error of the loss and of a parameter's gradient; infinite if a parameter has no gradient, NaN
    if any is NaN.
    """
    value = max_abs([(step.loss - reference.loss) / reference.scale for step in steps])
    if any(step.gradients.keys() != reference.gradients.keys() for step in steps):
        return value, math.inf
    norm = torch.cat([g.flatten() for g in reference.gradients.values()]).norm().item() or 1.0
    off = [(step.gradients[name] - g).norm() for step in steps for name, g in reference.gradients.items()]
    return value, max_abs(off) / norm


def exactness_results(exactness: Sequence[Exactness]) -> Iterator[CheckResult]:
    """Report for each number of processes whether it is exact."""
    remedy = "expected the value to 1e-12, the gradient to 1e-10; call no torch.distributed in the objective, and draw "
    remedy += "random numbers from a keyword argument `generator` only"
    for found in exactness:
        off = f"value off by {found.value_error:.1e}, gradient by {found.gradient_error:.1e}"
        yield CheckResult(f"{found.processes} processes", found.exact, found.exception or off, remedy)


def images(V: int, N: int, *, sorted_data: bool = True) -> Float[Tensor, "V N F"]:
    """Return V views of N samples; if they are sorted, the two halves of the batch differ in mean and scale, so that
    the parts of two processes differ.
    """
    rng = torch.Generator().manual_seed(0)
    samples = torch.randn(N, FEATURES, generator=rng, dtype=torch.float64)
    views = samples + 0.5 * torch.randn(V, N, FEATURES, generator=rng, dtype=torch.float64)
    first, second = views.tensor_split(2, dim=1)
    return torch.cat([first, 3 * second + 2], dim=1) if sorted_data else views


def build_network(D: int, *, perturbation: float = 0.0) -> nn.Module:
    """Build a network in float64, with BatchNorm over the whole batch; `perturbation` scales a random change of the
    weights.
    """
    hidden = min(4 * D, MOST_HIDDEN)  # more than D or N, so that the embeddings span all dimensions
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
