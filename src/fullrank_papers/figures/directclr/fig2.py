"""Fig. 2: the singular values of the covariance of SimCLR's embeddings (two-layer projector). In the paper some of 128
are zero.

Here "zero" means at most 1e-6 of the largest, on images that were not trained on. Embeddings are not normalised, as in
the paper's eq. 1; the authors' code divides each by its length first. At size small the projector's output has 64
dimensions, half of those of r.
"""

from fullrank.report.plot_style import subplots
from fullrank_papers.figures.directclr.comparison import plot_spectra
from fullrank_papers.figures.directclr.study import IMAGES, SIZES, Size, run_projectors
from fullrank_papers.figures.figure import ClaimResult, Figure, MplFigure, Rows, paper_claim
from fullrank_papers.figures.seeds import holds_in_every_run

PLACES = {"embedding": "z, after the projector", "representation": "r, before the projector"}


def compute(size: Size, *, data: str | None, seed: int) -> Rows:
    return run_projectors(size, ["two layers"], data=data, seed=seed)


def plot(rows: Rows) -> MplFigure:
    figure, axes = subplots(1, 1, width=6.0, height=3.2)
    plot_spectra(axes[0, 0], {label: [run[place] for run in rows["two layers"]] for place, label in PLACES.items()})
    axes[0, 0].set_title("One line per seed")
    return figure


def evaluate_claims(rows: Rows) -> dict[str, ClaimResult]:
    spectra = [run["embedding"] for run in rows["two layers"]]
    collapsed = ", ".join(f"{spectrum['collapsed_dimensions']} of {spectrum['D']}" for spectrum in spectra)
    smallest = min(spectrum["eigenvalues"][-1] / spectrum["eigenvalues"][0] for spectrum in spectra)
    shares = [spectrum["effective_rank"] / spectrum["D"] for spectrum in spectra]
    return {
        "some singular values of the embeddings' covariance drop to zero": paper_claim(
            "some of at most 1e-6 of the largest, in every run",
            f"{collapsed}; smallest {smallest:.1g} of the largest",
            holds_in_every_run(spectrum["collapsed_dimensions"] > 0 for spectrum in spectra),
        ),
        "the embeddings do not fill their space": paper_claim(
            "an effective rank below 0.9 D in every run",
            ", ".join(f"{share:.2f} D" for share in shares),
            holds_in_every_run(share < 0.9 for share in shares),
        ),
    }


FIGURE = Figure(
    title="Fig. 2 of Jing et al. 2022, DirectCLR",
    claim="SimCLR's embeddings collapse to a subspace: some singular values of their covariance are zero.",
    sizes=SIZES,
    compute=compute,
    plot=plot,
    evaluate_claims=evaluate_claims,
    images=IMAGES,
)
