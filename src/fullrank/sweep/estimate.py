"""What a sweep will cost: steps, time and memory, before it starts, and the time that is left while it runs."""

import json
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from fullrank.recipes import Recipe, build_method, to_dict
from fullrank.recipes.forecast import STATE_PER_WEIGHT, duration, measure_pass, readable, saved_bytes, weight_bytes
from fullrank.run.precision import on_cuda
from fullrank.sweep.cell import Cell
from fullrank.sweep.dataset import count_training_images
from fullrank.sweep.executor import Slot
from fullrank.sweep.grid import CHOICE, STAGE
from fullrank.sweep.row import Row

MEASURE_SECONDS = 10.0
"""After this time, no more recipes are measured; the others are taken to be as slow as the slowest that was
measured."""
PROCESS_BYTES = 500_000_000
"""Memory of a process with torch before it holds images or weights."""


@dataclass(frozen=True)
class Estimate:
    """The expected cost of the cells that are not done."""

    steps: dict[str, int]
    """Name of a cell → its steps."""
    seconds: dict[str, float]
    """Name of a cell → expected seconds of training on one slot; empty if nothing was measured."""
    memory: int
    """Bytes of the largest cell on its device, beside its images."""
    source: str
    """How the time was estimated."""
    choices: int = 0
    """Number of the cells that choose a value: the cells with the chosen values are not known yet."""

    def lines(self, cells: int, slots: Sequence[Slot]) -> list[str]:
        """Return the lines to print before the first run.

        >>> Estimate({"choice-lr0.1": 8, "choice-lr0.3": 8}, {}, 10**9, "", choices=2).lines(2, [Slot(threads=1)])[-1]
        '2 of these cells choose a value; the cells with the chosen values follow, and are not in these numbers'
        """
        n = len(slots)
        device = "GPU" if slots[0].gpus else "process"
        many = f"{n} at a time, one {device} each" if n > 1 else "one at a time"
        threads = f" with {slots[0].threads} threads" if slots[0].threads > 1 else ""
        length = (
            f"sweep: {len(self.steps)} of {cells} cells to run, {sum(self.steps.values()):,} steps; {many}{threads}"
        )
        expected = "the time is known after the first cell"
        if self.seconds:
            expected = f"about {duration(sum(self.seconds.values()) / min(n, len(self.steps)))} of training, estimated from {self.source}"
        cost = f"time: {expected} · memory: about {readable(self.memory * min(n, len(self.steps)))} beside the images"
        if not self.choices:
            return [length, cost]
        chosen = f"{self.choices} of these cells choose a value; the cells with the chosen values follow, and are not in these numbers"
        return [length, cost, chosen]


def estimate(
    cells: Sequence[Cell], rows: Mapping[str, Row], known: Mapping[str, Cell], slots: Sequence[Slot]
) -> Estimate:
    """Return the expected cost of cells: from finished rows of the same recipe, or else from a measured pass of each
    network.

    Args:
        cells: the cells to run.
        rows: the rows that exist, by cell.
        known: all cells of the sweep, by name.
        slots: the processes at the same time.
    """
    steps = {
        cell.name: count_training_images(cell.recipe.data) // cell.recipe.batch_size * cell.recipe.epochs
        for cell in cells
    }
    finished: dict[str, list[float]] = defaultdict(list)
    for name, row in rows.items():
        if row.is_done and row.steps and name in known:
            finished[cost_key(known[name].recipe, objective=True)].append(row.seconds / row.steps)
    measured: dict[str, tuple[float | None, int]] = {}
    seconds, memory, sources, started = {}, 0, set(), time.perf_counter()
    threads = torch.get_num_threads()
    torch.set_num_threads(slots[0].threads)
    try:
        for cell in cells:
            same, key = finished.get(cost_key(cell.recipe, objective=True)), cost_key(cell.recipe, objective=False)
            if key not in measured:
                measure = same is None and time.perf_counter() - started < MEASURE_SECONDS
                measured[key] = measure_recipe(cell.recipe, measure=measure)
            per_step, size = measured[key]
            memory = max(memory, size)
            if same:
                seconds[cell.name] = steps[cell.name] * sum(same) / len(same)
                sources.add("finished cells")
            elif per_step is not None:
                seconds[cell.name] = steps[cell.name] * per_step
                sources.add("one pass of each network")
    finally:
        torch.set_num_threads(threads)
    if seconds and (unknown := [name for name in steps if name not in seconds]):
        slowest = max(seconds[name] / max(steps[name], 1) for name in seconds)
        seconds |= {name: steps[name] * slowest for name in unknown}
    choices = sum(cell.settings.get(STAGE) == CHOICE for cell in cells)
    return Estimate(steps, seconds, memory + PROCESS_BYTES, " and ".join(sorted(sources)), choices)


def cost_key(recipe: Recipe, *, objective: bool) -> str:
    """Return what decides the time of a step, as text: networks, views, batch, precision, and the objective if it is
    asked for.
    """
    values = to_dict(recipe)
    names = ("views", "custom_transforms", "backbone", "projector", "batch_size", "method_builder", "method", "machine")
    names += ("objective", "hyper") if objective else ()
    return json.dumps([*(values[name] for name in names), recipe.data.channels, recipe.data.storage, recipe.data.size])


def measure_recipe(recipe: Recipe, *, measure: bool = True) -> tuple[float | None, int]:
    """Return the seconds of a step, None if they are not measured, and the bytes of a run beside its images."""
    method = build_method(recipe)
    images = min(recipe.batch_size // recipe.machine.devices, recipe.machine.micro_batch or recipe.batch_size)
    memory = weight_bytes(method) * (2 + STATE_PER_WEIGHT.get(recipe.optimizer.name, 2)) + saved_bytes(
        method, recipe, images
    )
    if not measure or on_cuda(recipe) or recipe.method_builder:
        return None, memory
    n, seconds = measure_pass(method, recipe, images)
    return seconds * recipe.batch_size / recipe.machine.devices / n, memory
