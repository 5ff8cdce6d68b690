"""Fig. 2: the singular values of the covariance of SimCLR's embeddings (two-layer projector). In the paper some of 128
are zero.

Here "zero" means at most 1e-6 of the largest, on images that were not trained on. Embeddings are not normalised, as in
the paper's eq. 1; the authors' code divides each by its length first. At size small the projector's output has 64
dimensions, half of those of r.
"""

from fullrank_papers.figures.directclr.comparison import plot_spectra
from fullrank_papers.figures.directclr.study import SIZES as SIZES
from fullrank_papers.figures.directclr.study import Size, run_projectors
from fullrank_papers.figures.figure import MplFigure, Rows, Verdicts, verdict
from fullrank_papers.figures.numerics import holds_in_every_run
from fullrank_papers.plot_style import subplots

PLACES = {"embedding": "z, after the projector", "representation": "r, before the projector"}


def compute(size: Size, *, data: str | None, seed: int) -> Rows:
    return run_projectors(size, ["two layers"], data=data, seed=seed)


def plot(rows: Rows) -> MplFigure:
    figure, axes = subplots(1, 1, width=6.0, height=3.2)
    plot_spectra(axes[0, 0], {label: [run[place] for run in rows["two layers"]] for place, label in PLACES.items()})
    axes[0, 0].set_title("One line per seed")
    return figure


def evaluate_claims(rows: Rows) -> Verdicts:
    spectra = [run["embedding"] for run in rows["two layers"]]
    counts = [(spectrum["collapsed_dimensions"], spectrum["D"]) for spectrum in spectra]
    smallest = min(spectrum["eigenvalues"][-1] / spectrum["eigenvalues"][0] for spectrum in spectra)
    shares = [spectrum["effective_rank"] / spectrum["D"] for spectrum in spectra]
    zeros = f"{', '.join(f'{n} of {D}' for n, D in counts)}; smallest {smallest:.1g} of the largest"
    return {
        "zeros": verdict(zeros, holds_in_every_run(n > 0 for n, _ in counts)),
        "space": verdict(", ".join(f"{x:.2f} D" for x in shares), holds_in_every_run(x < 0.9 for x in shares)),
    }
