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
from pathlib import Path

import torch

from fullrank.errors import UserError
from fullrank.testing.check_result import CheckResult, exception_line, info, required
from fullrank.testing.objective_case import ObjectiveCase
from fullrank.testing.rank_step import SAMPLES_PER_RANK, RankStep, RankSteps, Task

GRADIENT_TOLERANCE, VALUE_TOLERANCE = 1e-10, 1e-12
"""Largest ‖g_W − g_1‖ of a parameter, in units of the norm of the whole gradient, and largest |ℒ_W − ℒ_1| /
Σ|terms|."""

TIMEOUT = 120
"""Seconds until the processes are stopped if there are fewer than ten cases; each ten cases add the same time again."""


@dataclass(frozen=True, kw_only=True)
class Exactness:
    """The errors of W processes, relative to one process."""

    processes: int
    value_error: float = math.nan
    """Error of the loss in units of Σ|terms|, the largest of all processes."""
    gradient_error: float = math.nan
    """Error of a parameter's gradient in units of the norm of the whole gradient, the largest of all."""
    local_value_error: float = math.nan
    """Error of the loss if each process uses only its part of the batch, and DistributedDataParallel averages."""
    local_gradient_error: float = math.nan
    """Error of a gradient in the same situation."""
    exception: str = ""
    """Type and first line of an exception in a process."""

    @property
    def exact(self) -> bool:
        """Whether both errors are rounding errors."""
        return self.value_error <= VALUE_TOLERANCE and self.gradient_error <= GRADIENT_TOLERANCE


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
    sizes = tuple(sorted({1, *processes}, reverse=True))
    if sizes == (1,):
        return {case.name: [] for case in cases}
    task = Task(cases=tuple(cases), world_sizes=sizes, N=SAMPLES_PER_RANK * math.lcm(*sizes))
    steps = _run_processes(task)
    return {case.name: [_compare(steps, case.name, W) for W in reversed(sizes) if W > 1] for case in cases}


def _run_processes(task: Task) -> list[RankSteps]:
    """Start a process for each rank of the largest group; return the steps of each, or an error for a process that
    wrote none.
    """
    ranks = range(max(task.world_sizes))
    path = os.pathsep.join([*filter(None, sys.path), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "task.pkl").write_bytes(_pickle(task))
        command = [sys.executable, "-W", "ignore", "-c", "from fullrank.testing.rank_step import main; main()", name]
        with (folder / "output").open("w") as output:
            workers = [
                subprocess.Popen([*command, str(r)], env=environment, stdout=output, stderr=output) for r in ranks
            ]
            try:
                for worker in workers:
                    worker.wait(timeout=TIMEOUT * (1 + len(task.cases) // 10))
            except subprocess.TimeoutExpired:
                pass  # the missing files are reported below
            finally:
                for worker in workers:
                    worker.kill()
                    worker.wait()
        lines = (folder / "output").read_text(errors="replace").strip().splitlines() or ["the process timed out"]
        missing: RankSteps = {
            (c.name, W, gathered): lines[-1] for c in task.cases for W in task.world_sizes for gathered in (True, False)
        }
        files = [folder / f"{r}.pkl" for r in ranks]
        return [pickle.loads(file.read_bytes()) if file.exists() else missing for file in files]


def _pickle(task: Task) -> bytes:
    try:
        return pickle.dumps(task)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        remedy = "define it with `def` at the top level of a module"
        raise UserError(f"other processes cannot import the function ({exception_line(error)}); {remedy}") from error


def _compare(steps: list[RankSteps], name: str, processes: int) -> Exactness:
    reference = steps[0][name, 1, True]
    gathered, local = (
        [steps[r][name, processes, is_gathered] for r in range(processes)] for is_gathered in (True, False)
    )
    if isinstance(reference, str):
        return Exactness(processes=processes, exception=reference)
    if exceptions := [step for step in gathered if isinstance(step, str)]:
        first = next(
            (line for line in exceptions if "gloo" not in line), exceptions[0]
        )  # gloo's error is a consequence of another error
        return Exactness(processes=processes, exception=first)
    value, gradient = _errors(gathered, reference)
    local_value, local_gradient = _errors(local, reference)
    return Exactness(
        processes=processes,
        value_error=value,
        gradient_error=gradient,
        local_value_error=local_value,
        local_gradient_error=local_gradient,
    )


def _errors(steps: Sequence[RankStep | str], reference: RankStep) -> tuple[float, float]:
    """Return the largest error of the loss and of a parameter's gradient; infinite if a parameter has no gradient, NaN
    if a rank failed.
    """
    finished = [step for step in steps if isinstance(step, RankStep)]
    if len(finished) < len(steps):  # the part of the batch on one rank may be too small for the objective
        return math.nan, math.nan
    value = _max_or_nan(abs(step.loss - reference.loss) / reference.scale for step in finished)
    if any(len(step.gradients) != len(reference.gradients) for step in finished):
        return value, math.inf
    norm = torch.cat([g.flatten() for g in reference.gradients]).norm().item() or 1.0
    errors = (
        (g - e).norm().item() / norm
        for step in finished
        for g, e in zip(step.gradients, reference.gradients, strict=True)
    )
    return value, _max_or_nan(errors)


def _max_or_nan(errors: Iterable[float]) -> float:
    return max(errors, key=lambda error: math.inf if math.isnan(error) else error)  # `max` alone may ignore NaN


def exactness_results(measured: Sequence[Exactness]) -> list[CheckResult]:
    """Report for each number of processes whether it is exact, and the error without gathering."""
    results = []
    for errors in measured:
        results.append(
            required(
                f"{errors.processes} processes",
                errors.exact,
                measured=errors.exception
                or f"value off by {errors.value_error:.1e}, gradient by {errors.gradient_error:.1e}",
                expected=f"value to {VALUE_TOLERANCE:.0e}, gradient to {GRADIENT_TOLERANCE:.0e}",
                remedy="call no torch.distributed in the objective, and draw random numbers from a keyword argument `generator` only; "
                "gather the embeddings before, with `fullrank.distributed.gather`",
            )
        )
        if not math.isnan(errors.local_gradient_error):
            local = f"value off by {errors.local_value_error:.1e}, gradient by {errors.local_gradient_error:.1e}"
            results.append(info(f"{errors.processes} processes without gathering", local))
    return results
