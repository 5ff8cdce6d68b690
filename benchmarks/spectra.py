"""Compute the spectrum that each objective reaches on the same small problem: free embeddings, without a network.

    python benchmarks/spectra.py            # two minutes

256 samples in 32 dimensions start near a subspace of 4 dimensions; Adam minimises each objective with its default
hyperparameters (`fullrank.testing.free_embeddings`). Writes `benchmarks/results/spectra.json` and
`docs/figures/spectra.svg`.
"""

from importlib.metadata import version
from pathlib import Path

import torch
from matplotlib import rc_context

from fullrank.objectives import OBJECTIVES
from fullrank.report.plot_style import MATPLOTLIB_STYLE, subplots
from fullrank.run import write_json
from fullrank.testing import objective_case, optimize_free_embeddings
from fullrank.testing.free_embeddings import INITIAL_RANK

HERE = Path(__file__).parent
FIGURE = HERE.parent / "docs" / "figures" / "spectra.svg"
N, D, STEPS, LEARNING_RATE, SEEDS = 256, 32, 2000, 0.02, (0, 1, 2)
D0 = {"directclr": {"d0": 16}, "directclr_paper": {"d0": 16}}
FAMILIES = {
    "compare samples": ("simclr", "moco", "swav", "spectral_contrastive", "directclr", "directclr_paper"),
    "predict": ("simsiam", "byol", "dino"),
    "compare dimensions": ("frossl", "vicreg", "barlow_twins", "wmse", "corinfomax", "corinfomax_batch", "tico"),
    "kernels and entropies": ("ssl_hsic", "ivne", "simmer"),
}


def main():
    torch.set_num_threads(1)
    rows = {name: measure(name, f) for name, f in OBJECTIVES.items()}
    settings = {
        "N": N,
        "D": D,
        "steps": STEPS,
        "learning_rate": LEARNING_RATE,
        "seeds": SEEDS,
        "rank_at_start": INITIAL_RANK,
        "numbers": D0,
    }
    write_json(HERE / "results" / "spectra.json", {"settings": settings, "torch": version("torch"), "objectives": rows})
    with rc_context(MATPLOTLIB_STYLE):
        draw(rows)


def measure(name: str, objective) -> dict:
    runs = [
        optimize_free_embeddings(
            objective_case(objective, hyper=D0.get(name)), N=N, D=D, steps=STEPS, learning_rate=LEARNING_RATE, seed=s
        )
        for s in SEEDS
    ]
    before = [f.before.effective_rank() for f in runs]
    assert all(f.after is not None for f in runs), f"{name} became infinite"
    after = [f.after.effective_rank() for f in runs]
    first = runs[0].after
    print(f"{name:22} {before} → {after}", flush=True)
    eigenvalues = {
        when: [float(f"{v:.6g}") for v in spectrum.eigenvalues.tolist()]
        for when, spectrum in (("start", runs[0].before), ("end", first))
    }
    return {"before": before, "after": after, "eigenvalues": eigenvalues}


def draw(rows: dict) -> None:
    figure, axes = subplots(2, 2, height=6.4, sharex=True, sharey=True)
    for ax, (family, names) in zip(axes.flat, FAMILIES.items(), strict=True):
        for k, name in enumerate(names):
            ax.semilogy(
                range(1, D + 1),
                relative(rows[name]["eigenvalues"]["end"]),
                marker="osD^v<>"[k],
                markersize=3,
                linewidth=1,
                color=f"C{k}",
                label=name,
            )
        ax.semilogy(
            range(1, D + 1),
            relative(rows["frossl"]["eigenvalues"]["start"]),
            color="0.7",
            linewidth=1,
            linestyle="--",
            label="start",
            zorder=0,
        )
        ax.set_title(family)
        ax.legend(loc="lower left", ncol=2)
    axes[0, 0].set_ylim(1e-6, 2)
    for ax in axes[1]:
        ax.set_xlabel("eigenvalue j")
    for ax in axes[:, 0]:
        ax.set_ylabel("λ_j / λ_1")
    FIGURE.parent.mkdir(exist_ok=True)
    figure.savefig(FIGURE, metadata={"Date": None})


def relative(eigenvalues: list[float]) -> list[float]:
    return [max(v / eigenvalues[0], 1e-9) for v in eigenvalues]


if __name__ == "__main__":
    main()
