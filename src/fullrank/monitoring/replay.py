"""The alarm on the log of a run that is there: an older one, or one whose alarms are doubted."""

from collections.abc import Sequence

from fullrank.monitoring.collapse_detector import FIRST_STEPS, Alarm, Row, burn_in_end, replay
from fullrank.recipes import Recipe, to_dict
from fullrank.run.directory import Run
from fullrank.run.rows import row_to_json


def alarms(run: Run) -> list[tuple[int, Alarm]]:
    """Return (step, alarm) for each alarm that a run's log raises by today's thresholds, in order; 'not finite' is in the log alone.

    Args:
        run: with its recipe and as much of a log as there is.

    Raises:
        UserError: a recipe or a log that cannot be read.
    """
    rows, recipe = [row_to_json(row) for row in run.metrics], run.recipe
    return replay(rows, burn_in_end=judged_from(rows, recipe), recipe=to_dict(recipe))


def judged_from(rows: Sequence[Row], recipe: Recipe) -> int:
    """Return the step from which a log's spectra are judged, or the least there is where it has not counted an epoch's steps yet."""
    per_epoch = steps_per_epoch(rows)
    return burn_in_end(steps=per_epoch * recipe.epochs, warmup=round(recipe.schedule.warmup * per_epoch)) if per_epoch else FIRST_STEPS


def steps_per_epoch(rows: Sequence[Row]) -> int:
    """Return how many steps an epoch has by a log's last row; 0 where that is not known, as `epoch` is rounded.

    >>> steps_per_epoch([{"step": 0, "epoch": 0.0}, {"step": 60, "epoch": 1.5385}]), steps_per_epoch([])
    (39, 0)
    """
    last = max(rows, key=lambda row: row["step"], default={"epoch": 0.0})
    return round(last["step"] / last["epoch"]) if last["epoch"] else 0
