"""The spectrum that each objective reaches on the same small problem: free embeddings, without a network."""

from pathlib import Path
from typing import Any

from matplotlib import rc_context

from fullrank.objectives import OBJECTIVES
from fullrank.testing import objective_case, optimize_free_embeddings
from fullrank_papers import studies
from fullrank_papers.figures.frossl.contenders import CONTENDERS, LABELS
from fullrank_papers.plot_style import MATPLOTLIB_STYLE, label_ends, subplots

FIGURE = Path("docs/figures/spectra.svg")
HALF, FEW = {"d0": 16}, {"slices": 64}
HYPER = {"directclr": HALF, "directclr_paper": HALF, "lejepa": FEW, "visreg": FEW, "rdmreg": FEW}


def of(*families: str, later: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the objectives of some families of the tables, and later ones."""
    return (*(name for name, each in CONTENDERS.items() if each.family in families and name != "nologs"), *later)


FAMILIES = {
    "compare samples": of("sample-contrastive", "without a projector"),
    "predict": of("asymmetric", later=("moco_v3",)),
    "compare dimensions": of("dimension-contrastive", later=("vibcreg",)),
    "kernels and entropies": of("kernel or entropy", later=("lejepa", "visreg", "rdmreg", "mmcr", "emp_ssl")),
}


def measure(
    *, N: int = 256, D: int = 32, steps: int = 2000, learning_rate: float = 0.02, seeds: tuple[int, ...] = (0, 1, 2)
) -> dict[str, Any]:
    """Minimise each objective over N embeddings in D dimensions, from near a subspace of 4 dimensions, by Adam."""
    rows: dict[str, Any] = {}
    for name, objective in OBJECTIVES.items():
        case, size = objective_case(objective, hyper=HYPER.get(name)), {"N": N, "D": D, "steps": steps}
        runs = [optimize_free_embeddings(case, **size, learning_rate=learning_rate, seed=seed) for seed in seeds]
        ends = {"start": [run.before for run in runs], "end": [run.after for run in runs]}
        first = {when: [float(f"{v:.6g}") for v in spectra[0].eigenvalues.tolist()] for when, spectra in ends.items()}
        before, after = ([spectrum.effective_rank() for spectrum in spectra] for spectra in ends.values())
        rows[name] = {"before": before, "after": after, "eigenvalues": first}
        print(f"{name:22} {before} → {after}", flush=True)
    with rc_context(MATPLOTLIB_STYLE):
        draw(rows)
    return {"objectives": rows}


def draw(rows: dict[str, Any]) -> None:
    """Draw the spectra, one panel for each family."""
    figure, axes = subplots(2, 2, height=6.4, sharex=True, sharey=True)
    for axis, (family, names) in zip(axes.flat, FAMILIES.items(), strict=True):
        for k, name in enumerate(names):
            end = rows[name]["eigenvalues"]["end"]
            style = {"markersize": 3, "linewidth": 1, "color": f"C{k}", "label": LABELS[name]}
            axis.semilogy(range(1, len(end) + 1), relative(end), marker="osD^v<>p"[k], **style)
        start = rows["frossl"]["eigenvalues"]["start"]
        axis.semilogy(range(1, len(start) + 1), relative(start), "--", color="0.7", linewidth=1, label="start")
        axis.set_title(family)
    axes[0, 0].set_ylim(1e-6, 2)
    for axis in axes[1]:
        axis.set_xlabel("index $j$ of the eigenvalue")
    for axis in axes[:, 0]:
        axis.set_ylabel("$λ_j / λ_1$")
    label_ends(*axes.flat)
    figure.savefig(FIGURE, metadata={"Date": None})


def relative(eigenvalues: list[float]) -> list[float]:
    return [max(value / eigenvalues[0], 1e-9) for value in eigenvalues]


if __name__ == "__main__":
    studies.run(measure, "spectra")
