"""Table 1, Figs. 7 and 9: SimCLR with two layers, a linear layer and no projector, and DirectCLR: accuracy, and the
spectrum of r.

The paper shows one spectrum each. It says that the spectrum collapses without a projector, but not how small
eigenvalues must be. Here we count collapsed dimensions, and compare projectors by the effective rank of r.
"""

from fullrank.report.plot_style import subplots
from fullrank_papers.figures.directclr.comparison import better, plot_accuracies, plot_spectra
from fullrank_papers.figures.directclr.study import IMAGES, LABELS, SIZES, Size, run_projectors, values_per_seed
from fullrank_papers.figures.figure import ClaimResult, Figure, MplFigure, Rows, paper_claim
from fullrank_papers.figures.seeds import check_higher, holds_in_every_run

PAPER = {"two layers": 66.5, "linear": 61.1, "none": 51.5, "DirectCLR": 62.7}
"""Top-1 accuracy on ImageNet in %."""
ORDER = (("two layers", "DirectCLR"), ("DirectCLR", "linear"), ("linear", "none"), ("DirectCLR", "none"))


def compute(size: Size, *, data: str | None, seed: int) -> Rows:
    return run_projectors(size, PAPER, data=data, seed=seed)


def plot(rows: Rows) -> MplFigure:
    figure, ((left, right),) = subplots(1, 2, width=10.0, height=3.2)
    plot_accuracies(left, rows, PAPER)
    plot_spectra(right, {LABELS[name]: [run["representation"] for run in rows[name]] for name in PAPER})
    right.set_title("Spectrum of r, one line per seed")
    return figure


def evaluate_claims(rows: Rows) -> dict[str, ClaimResult]:
    ranks = {name: values_per_seed(rows[name], "representation", "effective_rank") for name in PAPER}
    spectra = [run["representation"] for run in rows["none"]]
    collapse = {
        "without a projector the representation collapses: some of its dimensions are collapsed": paper_claim(
            "eigenvalues of at most 1e-6 of the largest, in every run",
            ", ".join(f"{spectrum['collapsed_dimensions']} of {spectrum['D']}" for spectrum in spectra),
            holds_in_every_run(spectrum["collapsed_dimensions"] > 0 for spectrum in spectra),
        )
    }
    higher_ranks = {
        f"r has a higher effective rank with {LABELS[name]} than with none": check_higher(
            ranks[name], ranks["none"], unit="", scale=1.0
        )
        for name in ("two layers", "linear", "DirectCLR")
    }
    return dict(better(rows, a, b, PAPER) for a, b in ORDER) | collapse | higher_ranks


FIGURE = Figure(
    title="Table 1, Figs. 7 and 9 of Jing et al. 2022, DirectCLR",
    claim="DirectCLR is better than a linear projector, and prevents collapse of the representation as projectors do.",
    sizes=SIZES,
    compute=compute,
    plot=plot,
    evaluate_claims=evaluate_claims,
    images=IMAGES,
)
