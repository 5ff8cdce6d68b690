"""Table 1, Figs. 7 and 9: SimCLR with two layers, a linear layer and no projector, and DirectCLR: accuracy, and the
spectrum of r.

The paper shows one spectrum each. It says that the spectrum collapses without a projector, but not how small
eigenvalues must be. Here we count collapsed dimensions, and compare projectors by the effective rank of r.
"""

from fullrank_papers.figures.directclr.comparison import better, plot_accuracies, plot_spectra, ranks
from fullrank_papers.figures.directclr.study import LABELS, Size, run_projectors
from fullrank_papers.figures.directclr.study import SIZES as SIZES
from fullrank_papers.figures.figure import MplFigure, Rows, Verdicts, verdict
from fullrank_papers.figures.numerics import check_higher, holds_in_every_run
from fullrank_papers.plot_style import subplots

# Top-1 accuracy on ImageNet in %.
PAPER = {"two layers": 66.5, "linear": 61.1, "none": 51.5, "DirectCLR": 62.7}
ORDER = (("two layers", "DirectCLR"), ("DirectCLR", "linear"), ("linear", "none"), ("DirectCLR", "none"))


def compute(size: Size, *, data: str | None, seed: int) -> Rows:
    return run_projectors(size, PAPER, data=data, seed=seed)


def plot(rows: Rows) -> MplFigure:
    figure, ((left, right),) = subplots(1, 2, width=10.0, height=3.2)
    plot_accuracies(left, rows, PAPER)
    plot_spectra(right, {LABELS[name]: [run["representation"] for run in rows[name]] for name in PAPER})
    right.set_title("Spectrum of r, one line per seed")
    return figure


def evaluate_claims(rows: Rows) -> Verdicts:
    counts = [(run["representation"]["collapsed_dimensions"], run["representation"]["D"]) for run in rows["none"]]
    collapsed = holds_in_every_run(count > 0 for count, _ in counts)
    verdicts = {f"better: {a}, {b}": better(rows, a, b, PAPER) for a, b in ORDER}
    verdicts["collapse"] = verdict(", ".join(f"{count} of {D}" for count, D in counts), collapsed)
    for name in ("two layers", "linear", "DirectCLR"):
        higher = check_higher(ranks(rows[name]), ranks(rows["none"]), unit="", scale=1.0, label=LABELS[name])
        verdicts[f"rank: {name}"] = higher
    return verdicts
