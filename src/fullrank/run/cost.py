"""What a run costs: the time of a step, measured on real steps, and what follows from it; the share of the evaluations.

Nothing is said about time before three steps are measured.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from fullrank.distributed import all_reduce_max, world_size
from fullrank.recipes import Recipe, resolve
from fullrank.recipes.recipe import view_sizes
from fullrank.spectrum.metrics import SAMPLES_PER_DIMENSION

# Steps before the measurement, which also allocate memory and start workers, and least number of measured steps.
WARM_UP, MEASURED = 2, 3
# Time of a run divided by that of its steps: evaluations of spectra, checkpoints, logs.
REST = 1.05

# Largest number of forward passes of all spectrum evaluations, as a share of the passes of the training.
EVALUATION_SHARE = 0.015
PER_DIMENSION = (SAMPLES_PER_DIMENSION, 5, 2)  # images that estimate a spectrum well; two are the minimum
MIN_EVALUATIONS, PREFERRED_EVALUATIONS, MAX_EVALUATIONS = 20, 50, 100  # the slider of the report shows 100
# An eigenvalue that is estimated from n images has a relative standard error of √(2/n), 18 % for 64 images.
MIN_SAMPLES = 64


class Pace:
    """The time of a step, `step_seconds`, measured on the first steps after `WARM_UP`; None while it is measured.

    Args:
        device: the device of the training.
        least: seconds of the measurement.
    """

    def __init__(self, device: torch.device, *, least: float = 1.0) -> None:
        self.step_seconds: float | None = None
        self._device, self._least, self._steps, self._began = device, least, 0, 0.0

    def tick(self, elsewhere: float = 0.0) -> bool:
        """Count a step; return whether the measurement ends with it.

        Args:
            elsewhere: seconds so far that were not spent on steps.
        """
        self._steps += 1
        measured, now = self._steps - WARM_UP, time.perf_counter() - elsewhere
        if measured and (self.step_seconds or measured < MEASURED or now - self._began < self._least):
            return False
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        now = time.perf_counter() - elsewhere
        if measured == 0:
            self._began = now
            return False
        self.step_seconds = (now - self._began) / measured
        return True


def measure_step(steps: Iterator[object], device: torch.device) -> float:
    """Take steps until their time is measured, and return the seconds of a step, those of the slowest process."""
    pace = Pace(device, least=10.0)
    for _ in steps:
        pace.tick()
        if all_reduce_max(int(pace.step_seconds is None)) == 0:
            break
    assert pace.step_seconds, "there are steps for ten seconds"
    return all_reduce_max(round(1e6 * pace.step_seconds)) / 1e6


def explain_busy_cores(share: float, threads: int) -> str:
    """Return a warning if other programs use the cores of a run on a CPU, or an empty string.

    Threads that share a core wait for each other: two of them took six times as long as one. On free cores the main
    thread computes or polls nearly all the time, whatever the number of threads.

    Args:
        share: share of the time in which the main thread computed or waited for batches.
        threads: number of threads of the run.

    >>> explain_busy_cores(0.9, 2), explain_busy_cores(0.2, 1), explain_busy_cores(0.2, 2)[:65]
    ('', '', '; warning: other programs use the cores (20% of the time is left)')
    """
    busy = f"other programs use the cores ({share:.0%} of the time is left), and {threads} threads wait for each other"
    return "" if threads == 1 or share >= 0.5 else f"; warning: {busy}; fewer may be faster: OMP_NUM_THREADS=1"


def choose_epochs(recipe: Recipe, hours: float, seconds: float, steps: int, **given: Any) -> tuple[Recipe, str]:
    """Return the recipe with the largest number of epochs that fit into a time, at least 1, and a line for the user.

    A step takes `seconds`, and an epoch has `steps`; `given` are fields of the user, which do not follow from the
    epochs.
    """
    each = REST * seconds * steps / 3600  # hours of an epoch
    recipe = resolve(recipe, {**given, "epochs": min(max(int(hours / each), 1), 1_000_000)})
    line = (
        f"--epochs {recipe.epochs} of {steps} steps, {seconds:.3g} s each, measured: {each * recipe.epochs:.3g} hours"
    )
    return recipe, line + "; one epoch already takes longer" * (each > hours)


@dataclass(frozen=True)
class SpectrumPlan:
    """The plan of a run's spectrum evaluations.

    Attributes:
        samples: Held-out images per evaluation.
        every: Steps between two evaluations.
        loss_every: Evaluations between two evaluations with the held-out loss; the last evaluation of a run has one.
    """

    samples: int
    every: int
    loss_every: int = 1

    def has_loss(self, step: int, total: int) -> bool:
        """Return whether the evaluation after `step` of `total` steps includes the held-out loss; that before the first
        step never does.

        >>> [step for step in range(0, 50, 10) if SpectrumPlan(samples=64, every=10, loss_every=2).has_loss(step, 40)]
        [20, 40]
        """
        return step > 0 and math.ceil((total - step) / self.every) % self.loss_every == 0


def plan_evaluations(recipe: Recipe, *, steps: int, dimensions: int, available: int, samples: int = 0) -> SpectrumPlan:
    """Return the plan of a run's spectrum evaluations, which take 1.5 % of the forward passes of its training.

    A step passes each view forward and backward, which counts as three passes; views are counted by their pixels. An
    evaluation passes n held-out images, and with the held-out loss the views of a batch. n is the first of 10 D, 5 D
    and 2 D that leaves at least 50 evaluations, or else 2 D. A run too short for 20 of these has 20 evaluations of
    fewer images, at least 64, with the loss in as many as 60 % of the passes pay for. There is an evaluation before the
    first step and after the last.

    Args:
        recipe: the recipe; its `spectrum.every` decides the interval if it is not 0.
        steps: number of training steps.
        dimensions: the largest number D of dimensions of a spectrum.
        available: number of held-out images, limited by memory.
        samples: images per evaluation; 0: computed as above. A run with a given number has at least 20 evaluations.

    >>> plan_evaluations(Recipe(batch_size=256), steps=20_000, dimensions=128, available=10_000)
    SpectrumPlan(samples=1280, every=203, loss_every=1)
    """
    largest, *_ = sizes = view_sizes(recipe)
    views = recipe.batch_size * sum(V * (size / largest) ** 2 for size, V in sizes.items())
    budget = EVALUATION_SHARE * steps * 3 * views / world_size()
    counts = [samples] if samples else [min(k * dimensions, available) for k in PER_DIMENSION]
    n = next((n for n in counts if budget / (n + views) >= PREFERRED_EVALUATIONS), counts[-1])
    evaluations, losses, every = budget / (n + views), MAX_EVALUATIONS, recipe.spectrum.every
    if evaluations < MIN_EVALUATIONS and samples:
        every = every or max(steps // (MIN_EVALUATIONS - 1), 1)
    elif evaluations < MIN_EVALUATIONS:
        losses = min(max(int(0.6 * budget / views), 1), MIN_EVALUATIONS)
        n = min(max(int((budget - losses * views) / MIN_EVALUATIONS), MIN_SAMPLES), n)
        evaluations = min(max((budget - losses * views) / n, 2), MIN_EVALUATIONS)
    every = every or math.ceil(steps / (int(min(evaluations, MAX_EVALUATIONS)) - 1))
    return SpectrumPlan(n, every, loss_every=1 if samples else math.ceil(math.ceil(steps / every) / losses))
