"""Compare the loss and the gradient of every parameter on several processes with those of one process that has the
whole batch.

The objective gets the gathered embeddings, which is exact for any pure function. The comparison fails for a function
that communicates with other processes, keeps state, or draws random numbers from another source than its `generator`.
It also measures the error if each process uses only its part of the batch.
"""

import math
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from fullrank.distributed import all_reduce_sum, convert_sync_batchnorm, gather, rank_slice, world_size
from fullrank.errors import UserError, exception_line
from fullrank.testing.case import ObjectiveCase, terms_of
from fullrank.testing.report import CheckResult, info, required

# Embedding dimension, samples of a process in the largest group, and features of an image.
D, SAMPLES, FEATURES = 5, 8, 6
# Largest ‖g_W − g_1‖ of a parameter, in units of the norm of the whole gradient, and largest |ℒ_W − ℒ_1| / Σ|terms|.
GRADIENT_TOLERANCE, VALUE_TOLERANCE = 1e-10, 1e-12
# Seconds until the processes of ten objectives are stopped; time that one waits for the others, which may fail.
TIMEOUT, WAIT = 120, timedelta(seconds=20)


@dataclass(frozen=True, kw_only=True)
class Exactness:
    """The errors of W processes, relative to one process.

    Attributes:
        value_error: Error of the loss in units of Σ|terms|, the largest of all processes.
        gradient_error: Error of a parameter's gradient in units of the norm of the whole gradient, the largest of all.
        local_value_error: Error of the loss if each process uses only its part of the batch, and
            DistributedDataParallel averages.
        local_gradient_error: Error of a gradient in the same situation.
        exception: Type and first line of an exception in a process.
    """

    processes: int
    value_error: float = math.nan
    gradient_error: float = math.nan
    local_value_error: float = math.nan
    local_gradient_error: float = math.nan
    exception: str = ""

    @property
    def exact(self) -> bool:
        """Whether both errors are rounding errors."""
        return self.value_error <= VALUE_TOLERANCE and self.gradient_error <= GRADIENT_TOLERANCE


@dataclass(frozen=True, kw_only=True)
class Step:
    """Loss, Σ|terms| and gradients of the network's parameters on one process, after backward."""

    loss: float
    scale: float
    gradients: list[Tensor]


# (name, world size, whether the embeddings are gathered) → the step, or the line of the exception.
Steps = dict[tuple[str, int, bool], Step | str]


def measure_exactness(
    cases: Sequence[ObjectiveCase], *, processes: Sequence[int] = (1, 2, 4)
) -> dict[str, list[Exactness]]:
    """Compare every case on each number of processes with one process. All cases use the same processes, so many cases
    cost little more.

    Args:
        cases: the objectives; other processes must be able to import each function, so define it with `def` at the top
            level of a module.
        processes: numbers of processes; one process is always included, as the reference.

    Returns:
        Name of the case → the errors for each number of processes above one.

    Raises:
        UserError: other processes cannot import a function.
    """
    sizes = sorted({1, *processes})
    if sizes == [1]:
        return {case.name: [] for case in cases}
    steps = _run_processes(tuple(cases), sizes)
    return {case.name: [_compare(steps, case.name, W) for W in sizes[1:]] for case in cases}


def _run_processes(cases: tuple[ObjectiveCase, ...], sizes: list[int]) -> list[Steps]:
    """Start a process for each rank of the largest group; return the steps of each, or an error for a process that
    wrote none.
    """
    try:
        task = pickle.dumps((cases, sizes))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        remedy = "define it with `def` at the top level of a module"
        raise UserError(f"other processes cannot import the function ({exception_line(error)}); {remedy}") from error
    path = os.pathsep.join([*filter(None, sys.path), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-c", "from fullrank.testing.processes import main; main()"]
    with tempfile.TemporaryDirectory() as name, (Path(name) / "output").open("w+") as output:
        folder = Path(name)
        (folder / "task.pkl").write_bytes(task)
        workers = [
            subprocess.Popen([*command, name, str(rank)], env=environment, stdout=output, stderr=output)
            for rank in range(sizes[-1])
        ]
        try:
            for worker in workers:
                worker.wait(timeout=TIMEOUT * (1 + len(cases) // 10))
        except subprocess.TimeoutExpired:
            pass  # the missing files are reported below
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
        lines = (folder / "output").read_text(errors="replace").strip().splitlines() or ["the process timed out"]
        missing: Steps = {(case.name, W, whole): lines[-1] for case in cases for W in sizes for whole in (True, False)}
        files = [folder / f"{rank}.pkl" for rank in range(sizes[-1])]
        return [pickle.loads(file.read_bytes()) if file.exists() else missing for file in files]


def main() -> None:
    """Read FOLDER/task.pkl and write FOLDER/RANK.pkl; the arguments of the process are FOLDER and RANK.

    All groups use the same processes, because a process takes seconds to start, and a group milliseconds. Each case
    uses new groups, so that a message that one case fails to send or receive cannot reach the next case.
    """
    folder, rank = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    cases, sizes = pickle.loads((folder / "task.pkl").read_bytes())
    groups = [(i, W, whole) for i in range(len(cases)) for W in sizes for whole in (True, False) if rank < W]
    steps: Steps = {}
    for i, W, whole in groups:
        case, meeting = cases[i], f"file://{folder}/meeting-{i}-{W}-{whole}"
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=W, timeout=WAIT)
        try:
            steps[case.name, W, whole] = run_step(case, N=SAMPLES * math.lcm(*sizes), whole=whole)
        except Exception as error:  # of any type, from the user's function
            steps[case.name, W, whole] = exception_line(error)
        finally:
            dist.destroy_process_group()
    (folder / f"{rank}.pkl").write_bytes(pickle.dumps(steps))


def run_step(case: ObjectiveCase, *, N: int, whole: bool) -> Step:
    """Return loss and gradients on this process; the objective gets the whole batch, or only its part of it."""
    torch.manual_seed(dist.get_rank())  # so that random numbers in an objective differ between processes
    network = build_network(D)
    student = DistributedDataParallel(network) if world_size() > 1 else network
    x = images(case.views, N)[:, rank_slice(N)]
    with torch.no_grad():
        T = embed(build_network(D, perturbation=0.1), x)
    tensors = case.tensors(embed(student, x), T, case.sample_state(torch.Generator().manual_seed(0), D=D))
    if whole:
        tensors = {name: t if name in case.state_names else gather(t, dim=t.ndim - 2) for name, t in tensors.items()}
    terms = torch.stack(list(terms_of(case, tensors).values()))
    terms.sum().backward()
    loss = terms.detach().sum() if whole else all_reduce_sum(terms.detach().sum()) / world_size()
    gradients = [p.grad for p in network.parameters() if p.grad is not None]
    return Step(loss=loss.item(), scale=terms.detach().abs().sum().item() or 1.0, gradients=gradients)


def _compare(steps: list[Steps], name: str, processes: int) -> Exactness:
    reference = steps[0][name, 1, True]
    whole, local = ([steps[rank][name, processes, which] for rank in range(processes)] for which in (True, False))
    if isinstance(reference, str) or any(isinstance(step, str) for step in whole):
        lines = [step for step in (reference, *whole) if isinstance(step, str)]
        first = next((line for line in lines if "gloo" not in line), lines[0])  # gloo's error follows from another
        return Exactness(processes=processes, exception=first)
    value, gradient = _errors(whole, reference)
    local_value, local_gradient = _errors(local, reference)
    return Exactness(
        processes=processes,
        value_error=value,
        gradient_error=gradient,
        local_value_error=local_value,
        local_gradient_error=local_gradient,
    )


def _errors(steps: Sequence[Step | str], reference: Step) -> tuple[float, float]:
    """Return the largest error of the loss and of a parameter's gradient; infinite if a parameter has no gradient, NaN
    if a process failed.
    """
    finished = [step for step in steps if isinstance(step, Step)]
    if len(finished) < len(steps):  # the part of the batch on one process may be too small for the objective
        return math.nan, math.nan
    value = _max_or_nan(abs(step.loss - reference.loss) / reference.scale for step in finished)
    if any(len(step.gradients) != len(reference.gradients) for step in finished):
        return value, math.inf
    norm = torch.cat([g.flatten() for g in reference.gradients]).norm().item() or 1.0
    pairs = [(g, e) for step in finished for g, e in zip(step.gradients, reference.gradients, strict=True)]
    return value, _max_or_nan((g - e).norm().item() / norm for g, e in pairs)


def _max_or_nan(errors: Iterable[float]) -> float:
    return max(errors, key=lambda error: math.inf if math.isnan(error) else error)  # `max` alone may ignore NaN


def exactness_results(exactness: Sequence[Exactness]) -> list[CheckResult]:
    """Report for each number of processes whether it is exact, and the error without gathering."""
    off, results = "value off by {:.1e}, gradient by {:.1e}", []
    for found in exactness:
        measured = found.exception or off.format(found.value_error, found.gradient_error)
        results.append(required(f"{found.processes} processes", found.exact, measured))
        if not math.isnan(found.local_gradient_error):
            local = off.format(found.local_value_error, found.local_gradient_error)
            results.append(info(f"{found.processes} processes without gathering", local))
    return results


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
