"""Sweeps: a grid of settings and seeds, its runs as jobs, their results as rows, one table and one figure."""

from fullrank.sweep.cell import run_cell
from fullrank.sweep.grid import Cell, EvaluationPlan, Plan, choose, edge_of_grid
from fullrank.sweep.jobs import Jobs
from fullrank.sweep.row import OnlineScore, Row, identify, read_row, require_same_images
from fullrank.sweep.sweeping import collect_rows, list_cells, require_success, run_sweep, sweep
from fullrank.sweep.table import SweepResult, mean_sd

__all__ = [
    "Cell", "EvaluationPlan", "Jobs", "OnlineScore", "Plan", "Row", "SweepResult", "choose", "collect_rows",
    "edge_of_grid", "identify", "list_cells", "mean_sd", "read_row", "require_same_images", "require_success",
    "run_cell", "run_sweep", "sweep",
]  # fmt: skip
