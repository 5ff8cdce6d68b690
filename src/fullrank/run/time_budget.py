"""The number of epochs that fit into a time, from the first steps of a copy of the run."""

import time
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from itertools import islice, pairwise

import torch
from lightning.fabric import Fabric

from fullrank.distributed import all_reduce_max, convert_sync_batchnorm
from fullrank.errors import UserError
from fullrank.images import DecodeErrors
from fullrank.methods import Method, TrainingLength
from fullrank.recipes import Recipe, with_choices
from fullrank.recipes.start import start_warmup
from fullrank.run.data import SeededBatches, TrainingData, load_batches
from fullrank.run.evaluation_plan import count_cost, plan_evaluations
from fullrank.training import build_optimizer, fit
from fullrank.views import MultiViewTransform

STEPS, WARM_UP = 30, 2
"""Largest number of measured steps, and steps before them, which also allocate memory and start workers."""
SECONDS = 30.0
"""The measurement ends after the step in which it has taken this long."""
REST = 1.05
"""Time of a run divided by that of its steps: spectrum evaluations take at most 2 %; checkpoints, logs and the online
probe add to them."""
MAX_HOURS = 10_000


def check_hours(hours: object) -> None:
    """Check a number of hours.

    Raises:
        UserError: it is no positive number, or too large.
    """
    if isinstance(hours, bool) or not isinstance(hours, int | float) or not 0 < hours <= MAX_HOURS:
        raise UserError(f"hours is {hours!r:.60}, expected a number above 0 and at most {MAX_HOURS:,}")


def epochs_within(hours: float, step_seconds: float, steps_per_epoch: int) -> int:
    """Return the largest number of epochs that fit into a time, at least 1.

    >>> epochs_within(1.0, 0.5, 100), epochs_within(0.001, 10.0, 100)
    (68, 1)
    """
    return min(max(int(hours * 3600 / (REST * step_seconds * steps_per_epoch)), 1), 1_000_000)


def with_hours(
    recipe: Recipe, hours: float, step_seconds: float, data: TrainingData, method: Method
) -> tuple[Recipe, TrainingData, str]:
    """Return the recipe with the epochs that fit into a time, the data with the plan of its evaluations, and a line for
    the user.
    """
    steps_per_epoch = data.num_images // recipe.batch_size
    epochs = epochs_within(hours, step_seconds, steps_per_epoch)
    recipe = with_choices(recipe, epochs=epochs)
    if recipe.init:
        recipe = replace(recipe, schedule=replace(recipe.schedule, warmup=start_warmup(recipe)))
    plan = plan_evaluations(
        count_cost(method, recipe),
        steps=steps_per_epoch * epochs,
        available=len(data.held_out),
        samples=len(data.held_out),
        every=recipe.spectrum.every,
    )
    expected = REST * step_seconds * steps_per_epoch * epochs / 3600
    line = (
        f"--hours {hours:g}: --epochs {epochs}, of {steps_per_epoch} steps; {step_seconds:.3g} seconds a step, measured: "
        f"{expected:.3g} hours with evaluations and checkpoints; warm-up over {recipe.schedule.warmup:.3g} epochs"
    )
    return recipe, replace(data, plan=plan), line + ("; one epoch already takes longer" if expected > hours else "")


def measure_step(
    recipe: Recipe, method: Method, views: MultiViewTransform, data: TrainingData, fabric: Fabric
) -> float:
    """Return the mean time of a step in seconds: images, views, forward and backward pass, and optimizer, in all
    processes together.

    The steps change only a copy of the method, which is not compiled.
    """
    copy = deepcopy(method)
    convert_sync_batchnorm(copy)
    copy.to(fabric.device, torch.get_default_dtype())
    if recipe.machine.channels_last:
        copy.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    steps_per_epoch = data.num_images // recipe.batch_size
    copy.training_length = TrainingLength(steps_per_epoch, recipe.epochs * steps_per_epoch)
    ddp_method, ddp_optimizer = fabric.setup(copy, build_optimizer(recipe.optimizer, copy))
    unread = replace(
        data, decode_errors=DecodeErrors(max_error_fraction=recipe.data.max_error_fraction)
    )  # the run reads them again
    batches = SeededBatches(
        load_batches(recipe, views, unread, fabric.device, start=0, stop=WARM_UP + STEPS + 1), seed=recipe.seed, start=0
    )
    options = {"micro_batch": recipe.machine.micro_batch, "clip_norm": recipe.optimizer.clip_norm}
    steps = fit(fabric, ddp_method, ddp_optimizer, batches, lambda step: recipe.optimizer.lr * 1e-3, **options)
    seconds = [later - earlier for earlier, later in pairwise(islice(_times(steps, fabric.device), WARM_UP - 1, None))]
    return all_reduce_max(round(1e6 * sum(seconds) / len(seconds))) / 1e6


def _times(steps: Iterator[object], device: torch.device) -> Iterator[float]:
    """Yield the time after each step, until the measurement has taken long enough in one of the processes."""
    begun = time.perf_counter()
    for number, _ in enumerate(steps, start=1):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        now = time.perf_counter()
        yield now
        if all_reduce_max(int(now - begun > SECONDS)) and number > WARM_UP:
            return
