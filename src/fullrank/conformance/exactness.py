"""Several processes with different data against one with the whole batch: the loss, and the gradient of every parameter.

The function is called on the gathered embeddings, which is exact for any pure function; one that talks to other processes itself, keeps
state or draws random numbers is found out. Beside it, what the same function would give on each process's own share.
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
from torch import Tensor

from fullrank.conformance.finding import CheckResult, noted, one_line, required
from fullrank.conformance.share import EACH, Found, Step, Task
from fullrank.conformance.subject import ObjectiveCase
from fullrank.errors import UserError

GRADIENT, VALUE = 1e-10, 1e-12
"""‖g_W − g_1‖ / ‖g_1‖ of each parameter, by the norm of the whole gradient, and |ℒ_W − ℒ_1| / Σ|terms|, that count as equal."""

PATIENCE = 120
"""Seconds for all processes, and as many more for each ten subjects."""


@dataclass(frozen=True, kw_only=True)
class Exactness:
    """W processes against one."""

    processes: int
    value: float = math.nan
    """Error of the loss by Σ|terms|, the worst of all processes."""
    gradient: float = math.nan
    """Error of a parameter's gradient by the norm of the whole gradient, the worst of all."""
    alone_value: float = math.nan
    """The same if each process takes its own share, and DistributedDataParallel averages."""
    alone_gradient: float = math.nan
    trouble: str = ""
    """What a process raised."""

    @property
    def exact(self) -> bool:
        """Whether nobody can tell how many processes there were."""
        return self.value <= VALUE and self.gradient <= GRADIENT


def exactness(subjects: Sequence[ObjectiveCase], *, processes: Sequence[int] = (1, 2, 4)) -> dict[str, list[Exactness]]:
    """Take every subject in groups of each number of processes; all of them in one set of processes, so that a hundred cost little more.

    Args:
        subjects: functions that other processes can import: defined in a module, by def.
        processes: numbers of processes; one is always taken, as the measure.

    Returns:
        For each subject's name, what each number of processes above one gave.

    Raises:
        UserError: a function that other processes cannot import.
    """
    sizes = tuple(sorted({1, *processes}, reverse=True))
    if sizes == (1,):
        return {subject.name: [] for subject in subjects}
    task = Task(subjects=tuple(subjects), processes=sizes, N=EACH * math.lcm(*sizes))
    found = _start(task)
    return {s.name: [_compare(found, s.name, W) for W in reversed(sizes) if W > 1] for s in subjects}


def _start(task: Task) -> list[Found]:
    """Start as many processes as the largest group has; return what each found, nothing of one that died or had to be ended."""
    count = max(task.processes)
    path = os.pathsep.join([*filter(None, sys.path), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "task.pkl").write_bytes(_pickled(task))
        command = [sys.executable, "-W", "ignore", "-m", "fullrank.conformance.worker", name]
        with (folder / "output").open("w") as output:
            workers = [subprocess.Popen([*command, str(r)], env=environment, stdout=output, stderr=output) for r in range(count)]
            try:
                for worker in workers:
                    worker.wait(timeout=PATIENCE * (1 + len(task.subjects) // 10))
            except subprocess.TimeoutExpired:
                pass  # those that have not written are missed
            finally:
                for worker in workers:
                    worker.kill()
                    worker.wait()
        last = (folder / "output").read_text(errors="replace").strip().splitlines()[-1:]
        files = [folder / f"{r}.pkl" for r in range(count)]
        return [pickle.loads(file.read_bytes()) if file.exists() else _missing(task, *last) for file in files]


def _pickled(task: Task) -> bytes:
    try:
        return pickle.dumps(task)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UserError(
            f"other processes cannot import the function ({one_line(error)}); define it by def in a module of its own"
        ) from error


def _missing(task: Task, last: str = "it did not end in time") -> Found:
    return {(s.name, W, gathered): last for s in task.subjects for W in task.processes for gathered in (True, False)}


def _compare(found: list[Found], name: str, processes: int) -> Exactness:
    one = found[0][name, 1, True]
    several = [found[r][name, processes, True] for r in range(processes)]
    alone = [found[r][name, processes, False] for r in range(processes)]
    if isinstance(one, str):
        return Exactness(processes=processes, trouble=one)
    if troubles := [step for step in several if isinstance(step, str)]:
        own = [trouble for trouble in troubles if "gloo" not in trouble]  # the others only missed the one that failed
        return Exactness(processes=processes, trouble=(own or troubles)[0])
    value, gradient = _errors([step for step in several if isinstance(step, Step)], one)
    if any(isinstance(step, str) for step in alone):  # a share may be too small for it
        return Exactness(processes=processes, value=value, gradient=gradient)
    alone_value, alone_gradient = _errors([step for step in alone if isinstance(step, Step)], one)
    return Exactness(processes=processes, value=value, gradient=gradient, alone_value=alone_value, alone_gradient=alone_gradient)


def _errors(steps: list[Step], one: Step) -> tuple[float, float]:
    """The worst error of the loss and of a parameter's gradient; infinite where a parameter has none."""
    value = _worst(abs(step.loss - one.loss) / one.scale for step in steps)
    if any(len(step.gradients) != len(one.gradients) for step in steps):
        return value, math.inf
    whole = _norm(one.gradients).item() or 1.0
    return value, _worst((g - e).norm().item() / whole for step in steps for g, e in zip(step.gradients, one.gradients, strict=True))


def _worst(errors: Iterable[float]) -> float:
    return max(errors, key=lambda error: math.inf if math.isnan(error) else error)  # a bare `max` may pass NaN over


def _norm(gradients: list[Tensor]) -> Tensor:
    return torch.cat([g.flatten() for g in gradients]).norm()


def findings(measured: Sequence[Exactness]) -> list[CheckResult]:
    """Say for each number of processes whether it is exact, and how wrong it would be without gathering."""
    found = []
    for one in measured:
        found.append(
            required(
                f"{one.processes} processes",
                one.exact,
                measured=one.trouble or f"value off by {one.value:.1e}, gradient by {one.gradient:.1e}",
                expected=f"value to {VALUE:.0e}, gradient to {GRADIENT:.0e}",
                remedy="no torch.distributed inside: gather the embeddings before the call, by `fullrank.distributed.gather`",
            )
        )
        if not math.isnan(one.alone_gradient):
            wrong = f"value off by {one.alone_value:.1e}, gradient by {one.alone_gradient:.1e}"
            found.append(noted(f"{one.processes} processes without gathering", wrong))
    return found
