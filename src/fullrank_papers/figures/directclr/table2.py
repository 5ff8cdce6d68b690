"""Table 2: a linear probe of r after SimCLR with six projectors, and, from Appendix F, with a new random set of d0
features at each step.

The paper trains each network once, and concludes that a projector only needs to be diagonal and of low rank.
"""

from fullrank_papers.figures.directclr.comparison import better, equal, plot_accuracies
from fullrank_papers.figures.directclr.study import SIZES as SIZES
from fullrank_papers.figures.directclr.study import Size, run_projectors
from fullrank_papers.figures.figure import MplFigure, Rows, Verdicts
from fullrank_papers.plot_style import subplots

PAPER = {"none": 51.5, "orthogonal": 52.2, "linear": 61.1, "diagonal": 60.2, "low-rank": 62.3}
PAPER |= {"low-rank-diagonal": 62.7, "dropout": 43.0}
"""Top-1 accuracy on ImageNet in %, Table 2 and (dropout) Appendix F."""
EQUAL_PAIRS = (("orthogonal", "none"), ("low-rank-diagonal", "low-rank"), ("diagonal", "linear"))
# `table1` has linear against none, and `fig12` low-rank-diagonal against none, of the same runs.
ORDER = (("diagonal", "none"), ("low-rank", "linear"), ("low-rank-diagonal", "diagonal"), ("none", "dropout"))


def compute(size: Size, *, data: str | None, seed: int) -> Rows:
    return run_projectors(size, PAPER, data=data, seed=seed)


def plot(rows: Rows) -> MplFigure:
    figure, axes = subplots(1, 1, width=8.0, height=3.2)
    plot_accuracies(axes[0, 0], rows, PAPER)
    return figure


def evaluate_claims(rows: Rows) -> Verdicts:
    verdicts = {f"equal: {a}, {b}": equal(rows, a, b, PAPER) for a, b in EQUAL_PAIRS}
    return verdicts | {f"better: {a}, {b}": better(rows, a, b, PAPER) for a, b in ORDER}
