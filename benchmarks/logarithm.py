"""What does FroSSL lose without the logarithms, and which weight must its variance term have then?

    python benchmarks/logarithm.py              # six minutes on one core

First the ratio of the norms of the gradients of the two terms, variance and invariance, with and without logarithms, on
random embeddings whose eigenvalues decay as a power law. Then runs on the digits with D/N = 4, the paper's 1024/256,
for each weight and seed: accuracy of a linear probe early and at the end, and effective rank of the embeddings. Writes
`results/logarithm.json`.
"""

import argparse
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from fullrank import evaluate, pretrain
from fullrank.methods import BackboneConfig, ProjectorConfig
from fullrank.models import load_run
from fullrank.objectives import frossl
from fullrank.recipes import RECIPES, SpectrumConfig
from fullrank.recipes.recipe import Recipe
from fullrank.run import write_json
from fullrank.run.environment import platform_info

SIZES = [(256, 1024), (256, 256), (256, 64), (1024, 1024), (128, 512)]
DECAYS = (0.0, 0.5, 1.0, 2.0)
N, D = 128, 512
MINIMUM = D**2 / min(D, N - 1)
"""The smallest ‖ZᵀZ‖_F² of N centred samples whose D columns have unit norm."""
VARIANTS: dict[str, dict[str, Any]] = {
    "logarithm": {},
    "raw, weight 1": {"log": False},
    "columns of unit variance, ZᵀZ/N: weight 1/N": {"log": False, "variance": 1 / N},
    "weight 1/minimum": {"log": False, "variance": 1 / MINIMUM},
    "trace one: weight 1/D²": {"log": False, "variance": 1 / D**2},
}
EPOCHS = (1, 3, 10)
SEEDS = (0, 1, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--epochs", type=int, nargs="+", default=EPOCHS)
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "logarithm.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    started = time.process_time()
    ratios = [gradient_ratios(n, d, decay) for n, d in SIZES for decay in DECAYS]
    for row in ratios:
        print(row)
    runs: dict[str, list[dict[str, Any]]] = {}
    for name in options.variants:
        for seed in options.seeds:
            runs.setdefault(name, []).append(train(recipe(max(options.epochs)), VARIANTS[name], seed, options.epochs))
            print(name, seed, runs[name][-1], flush=True)
    summary = {name: {key: mean_and_sd([run[key] for run in rows]) for key in rows[0]} for name, rows in runs.items()}
    for name, row in summary.items():
        print(name, row)
    seconds = round(time.process_time() - started)
    settings = {"N": N, "D": D, "seeds": list(options.seeds), "variants": VARIANTS}
    write_json(
        options.out,
        {
            "gradients": ratios,
            "runs": summary,
            "settings": settings,
            "seconds": seconds,
            "environment": platform_info(),
        },
    )


def gradient_ratios(N: int, D: int, decay: float) -> dict[str, Any]:
    """Return ‖∂variance/∂Z‖ / ‖∂invariance/∂Z‖ with and without logarithms; the eigenvalues of the data decay as
    k^(−2·decay)."""
    rng = torch.Generator().manual_seed(0)
    scales = torch.arange(1, D + 1, dtype=torch.float64) ** -decay
    rotation = torch.linalg.qr(torch.randn(D, D, generator=rng, dtype=torch.float64)).Q
    common, noise = (
        torch.randn(N, D, generator=rng, dtype=torch.float64),
        torch.randn(2, N, D, generator=rng, dtype=torch.float64),
    )
    Z = ((common + 0.5 * noise) * scales @ rotation).requires_grad_()
    row: dict[str, Any] = {"N": N, "D": D, "decay": decay}
    for name, log in (("with logarithms", True), ("without", False)):
        terms = frossl(Z, log=log)
        variance, invariance = (
            torch.autograd.grad(terms[key], Z, retain_graph=True)[0].norm().item() for key in ("variance", "invariance")
        )
        row[name] = variance / invariance
    value = frossl(Z, log=False)["variance"].item() / 2
    return row | {
        "value over minimum": value / (D**2 / min(D, N - 1)),
        "with weight 1/minimum": row["without"] * min(D, N - 1) / D**2,
    }


def recipe(epochs: int) -> Recipe:
    """Return a recipe on the digits that takes seconds."""
    digits = RECIPES["digits"]
    return replace(
        digits,
        epochs=epochs,
        backbone=BackboneConfig(
            name="resnet18", arguments=digits.backbone.arguments | {"channels": [16, 32, 48, 64]}, stem="small"
        ),
        projector=ProjectorConfig(widths=(256, D)),
        batch_size=N,
        checkpoints=epochs,
        keep_checkpoints=-1,
        schedule=replace(digits.schedule, warmup=0.5),
        spectrum=SpectrumConfig(samples=1200),
    )


def train(recipe: Recipe, hyper: dict[str, Any], seed: int, epochs: list[int]) -> dict[str, Any]:
    """Train one run, and return its accuracies and effective rank."""
    quiet = Console(quiet=True)
    with tempfile.TemporaryDirectory() as folder:
        run = pretrain(replace(recipe, hyper=recipe.hyper | hyper, seed=seed), out=Path(folder) / "run", console=quiet)
        measures = {}
        for epoch in epochs:
            model = load_run(run.path, run.checkpoints[epoch - 1].step)
            scores = evaluate(model, probes=["linear"], baselines=False, store=False).scores
            measures[f"linear probe after epoch {epoch}"] = scores[0].accuracy
        last = run.metrics.spectrum[-1]
        return measures | {"effective rank of the embeddings": last.projector.effective_rank}


def mean_and_sd(values: list[float]) -> dict[str, float]:
    return {"mean": statistics.mean(values), "sd": statistics.stdev(values) if len(values) > 1 else 0.0}


if __name__ == "__main__":
    main()
