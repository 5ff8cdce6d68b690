"""Measure the rank and the effective number of directions of the gradient at the last block if the loss takes only a
part of r.

    python benchmarks/gradients.py --data PATH/TO/cifar10        # two minutes

The objective is SimCLR with a projector, in the recipe cifar10-projectors, with and without the last shortcut. The
gradients at r and at the input h of the last block are computed on one batch, in float64, before the first step and
after ten steps of AdamW on other batches. A gradient with singular values σ has (Σ σ²)² / Σ σ⁴ directions. Results are
means over three seeds. Writes `results/gradients.json`.
"""

import argparse
import statistics
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.images import load_images, train_and_test
from fullrank.methods import Method
from fullrank.methods.directclr_projectors import channel_gradients
from fullrank.objectives import total
from fullrank.recipes import RECIPES, Recipe, assemble
from fullrank.run import write_json
from fullrank.run.environment import platform_info
from fullrank.spectrum import functional
from fullrank.training import OptimizerConfig, build_optimizer

RECIPE = RECIPES["cifar10-projectors"]
PAIRS = (
    ("sub-vector", True),
    ("sub-vector", False),
    ("low-rank", True),
    ("low-rank", False),
    ("mlp", True),
)  # (kind, last shortcut)
STEPS, SEEDS = 10, 3
OPTIMIZER = OptimizerConfig(name="adamw", lr=1e-3)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "gradients.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    images = train_and_test(options.data).train.subset(torch.arange((1 + STEPS) * RECIPE.batch_size).numpy())
    pixels = load_images(images, channels=3, size=RECIPE.views[0].size).pixels
    rows = []
    for kind, shortcut in PAIRS:
        runs = [gradients(build_recipe(kind, shortcut, seed), pixels) for seed in range(SEEDS)]
        rows.append({"projector": kind, "last shortcut": shortcut} | summary(runs))
        print(rows[-1], flush=True)
    settings = {
        "recipe": RECIPE.name,
        "d0": RECIPE.projector.d0,
        "images": RECIPE.batch_size,
        "optimizer": vars(OPTIMIZER),
        "seeds": SEEDS,
    }
    write_json(options.out, {"settings": settings, "rows": rows, "environment": platform_info()})


def build_recipe(kind: Any, shortcut: bool, seed: int) -> Recipe:
    return replace(
        RECIPE,
        seed=seed,
        data=replace(RECIPE.data, mean=(0.5,) * 3, std=(0.25,) * 3),
        projector=replace(RECIPE.projector, kind=kind),
        backbone=replace(RECIPE.backbone, last_residual=shortcut),
    )


def gradients(recipe: Recipe, pixels: Tensor) -> dict[str, dict[str, float]]:
    """Return rank and directions of the gradients on the first batch, before and after training on the other
    batches."""
    parts = assemble(recipe)
    method, (first, *others) = parts.method, pixels.split(recipe.batch_size)

    def views(batch: Tensor, step: int) -> list[Tensor]:
        return parts.views(batch, parts.views.make_params(recipe.seed, step, len(batch)))

    optimizer, first_views = build_optimizer(OPTIMIZER, method), views(first, 0)
    before = {"step 0": measure(method, first_views)}
    for step, batch in enumerate(others, start=1):
        optimizer.zero_grad()
        total(method.terms(method(views(batch, step)))).backward()
        optimizer.step()
    return before | {f"step {len(others)}": measure(method, first_views)}


def measure(method: Method, views: list[Tensor]) -> dict[str, float]:
    G = channel_gradients(deepcopy(method).double(), [view.double() for view in views])
    ranks = {
        f"rank at {place}": float(torch.linalg.matrix_rank(G[name]))
        for place, name in (("r", "representation"), ("h", "block"))
    }
    return ranks | {"directions at r": directions(G["representation"]), "directions at h": directions(G["block"])}


def directions(G: Float[Tensor, "n C"]) -> float:
    return functional.participation_ratio(torch.linalg.svdvals(G).square()).item()


def summary(runs: list[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    return {
        when: {what: statistics.mean(run[when][what] for run in runs) for what in runs[0][when]} for when in runs[0]
    }


if __name__ == "__main__":
    main()
