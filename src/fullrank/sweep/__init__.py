"""Sweeps: a list of runs, their results as rows, and the choice of a setting between two stages."""

from typing import TYPE_CHECKING

from fullrank.lazy import lazy_attributes

if TYPE_CHECKING:
    from fullrank.sweep.cell import Cell, EvaluationPlan
    from fullrank.sweep.choice import choose
    from fullrank.sweep.dataset import identify
    from fullrank.sweep.engine import Plan, collect_rows, find_cell, require_success, run_sweep
    from fullrank.sweep.row import OnlineScore, Row, read_row, require_same_images
    from fullrank.sweep.sweeping import sweep

__all__ = [
    "Cell",
    "EvaluationPlan",
    "OnlineScore",
    "Plan",
    "Row",
    "choose",
    "collect_rows",
    "find_cell",
    "identify",
    "read_row",
    "require_same_images",
    "require_success",
    "run_sweep",
    "sweep",
]

_HOME = {
    "Cell": "cell",
    "EvaluationPlan": "cell",
    "OnlineScore": "row",
    "Plan": "engine",
    "Row": "row",
    "choose": "choice",
    "collect_rows": "engine",
    "find_cell": "engine",
    "identify": "dataset",
    "read_row": "row",
    "require_same_images": "row",
    "require_success": "engine",
    "run_sweep": "engine",
    "sweep": "sweeping",
}

__getattr__ = lazy_attributes(__name__, _HOME)


def __dir__() -> list[str]:
    return sorted(__all__)
