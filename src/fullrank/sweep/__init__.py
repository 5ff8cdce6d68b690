"""Sweeps: a list of runs, their results as rows, and the choice of a setting between two stages."""

from typing import TYPE_CHECKING

from fullrank.lazy import lazy_attributes

if TYPE_CHECKING:
    from fullrank.sweep.cell import Cell, EvaluationPlan
    from fullrank.sweep.choice import choose
    from fullrank.sweep.engine import Plan, run_sweep
    from fullrank.sweep.row import OnlineScore, Row, read_row, require_same_images

__all__ = ["Cell", "EvaluationPlan", "OnlineScore", "Plan", "Row", "choose", "read_row", "require_same_images", "run_sweep"]

_HOME = {
    "Cell": "cell",
    "EvaluationPlan": "cell",
    "OnlineScore": "row",
    "Plan": "engine",
    "Row": "row",
    "choose": "choice",
    "read_row": "row",
    "require_same_images": "row",
    "run_sweep": "engine",
}

__getattr__ = lazy_attributes(__name__, _HOME)


def __dir__() -> list[str]:
    return sorted(__all__)
