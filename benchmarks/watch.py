"""What the spectrum watch costs: a look at held-out images against a training step, and its share of runs of many lengths.

    python benchmarks/watch.py              # two minutes
    python benchmarks/watch.py --runs RUN…  # and the share that these runs noted, from end to end

The network is that of the recipe cifar10-small with a projector to D dimensions; a look takes ten images a dimension. Everything runs on
one thread and is measured in CPU seconds of the process, which other processes hardly change; pixels are random. The share of a run is
looks · look / (steps · step + looks · look), with as many looks as `plan_interval` plans. Writes `results/watch.json`.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fullrank.methods import Method, Projector
from fullrank.objectives import total
from fullrank.recipes import RECIPES, Recipe, assemble
from fullrank.run import Run, read_json, write_json
from fullrank.run.environment import platform_of
from fullrank.run.watch import plan_interval
from fullrank.spectrum import Moments, Spectrum
from fullrank.training import build_optimizer

SETTINGS = (("cifar10-small", 256), ("cifar10-small", 2048))
STEPS = 3
PASSED = 512  # images that a look passes at a time, and that it is timed on
LENGTHS = (5_000, 10_000, 20_000, 50_000, 100_000, 200_000)
LOOKS, ALLOWED = 50, 0.02


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, nargs="*", default=[])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "watch.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name, D in SETTINGS:
        rows.append({"recipe": name, "D": D} | costs(recipe_of(name, D)))
        print(rows[-1], flush=True)
    runs = [noted(Run(path)) for path in options.runs]
    write_json(options.out, {"unit": "CPU seconds, one thread", "rows": rows, "runs": runs, "environment": platform_of()})


def recipe_of(name: str, D: int) -> Recipe:
    recipe = RECIPES[name]
    data = replace(recipe.data, mean=(0.5,) * 3, std=(0.25,) * 3)
    return replace(recipe, data=data, projector=Projector(widths=(*recipe.projector.widths[:-1], D)))


def costs(recipe: Recipe) -> dict[str, Any]:
    """CPU seconds of a step, of a look and of its parts, and what follows for runs of many lengths."""
    parts = assemble(recipe)
    method, D = parts.method.to(memory_format=torch.channels_last), recipe.projector.widths[-1]
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (max(PASSED, recipe.batch), 3, 32, 32), dtype=torch.uint8, generator=generator)
    optimizer = build_optimizer(recipe.optimizer, method)
    step = seconds(lambda: train(method, optimizer, parts.views, pixels[: recipe.batch]), repeat=STEPS)
    samples = 10 * D
    some = pixels[:PASSED]
    backbone, projector = embeddings(method, parts.preprocess.normalize(some))
    passed = seconds(lambda: embeddings(method, parts.preprocess.normalize(some))) / PASSED * samples
    moments = (
        sum(
            seconds(lambda Z=Z: Moments.from_embeddings(Z[:PASSED]).merge(Moments.from_embeddings(Z[:PASSED])), repeat=5)
            for Z in (backbone, projector)
        )
        / (2 * PASSED)
        * samples
    )
    found = [Moments.from_embeddings(torch.randn(2 * Z.shape[1], Z.shape[1])) for Z in (backbone, projector)]  # of full rank
    eigenvalues = sum(seconds(lambda m=m: Spectrum.from_moments(m)) for m in found)
    spent = passed + moments + eigenvalues
    views = sum(view.count for view in recipe.views)
    return {
        "batch": recipe.batch,
        "samples": samples,
        "step": step,
        "look": {"forward": passed, "moments": moments, "eigenvalues": eigenvalues, "total": spent, "in_steps": spent / step},
        "runs": [planned(steps, step, spent, batch=recipe.batch, views=views, samples=samples) for steps in LENGTHS],
        f"steps_from_which_{LOOKS}_looks_cost_{ALLOWED:.0%}": math.ceil(LOOKS * spent * (1 - ALLOWED) / (ALLOWED * step)),
    }


def train(method: Method, optimizer: torch.optim.Optimizer, views: Any, pixels: torch.Tensor) -> None:
    """A step as `fit` takes it, with its views."""
    optimizer.zero_grad()
    method.train()
    found = method(views(pixels, views.draw(0, 0, len(pixels))))
    total(method.terms({name: found[name] for name in method.needs})).backward()
    optimizer.step()


@torch.no_grad()
def embeddings(method: Method, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of backbone and projector, in eval mode, as a look passes them."""
    method.eval()
    R = torch.cat([method.backbone(part) for part in images.split(PASSED)])
    return R, method.projector(R)


def planned(steps: int, step: float, look: float, *, batch: int, views: int, samples: int) -> dict[str, float]:
    """Looks of a run as long as this, and their share of its time."""
    looks = 1 + math.ceil(steps / plan_interval(steps=steps, batch=batch, views=views, samples=samples))
    return {"steps": steps, "looks": looks, "share": looks * look / (steps * step + looks * look)}


def noted(run: Run) -> dict[str, Any]:
    """The share of its wall time that a run noted, and how many looks it took."""
    recipe, environment = run.recipe, read_json(run.path / "environment.json")
    looks = [row for row in run.metrics if row["kind"] == "watch"]
    return {
        "recipe": recipe.name,
        "D": looks[-1]["projector"]["dimensions"],
        "samples": looks[-1]["projector"]["samples"],
        "steps": looks[-1]["step"],
        "looks": len(looks),
        "share": environment["watch_share"],
        "seconds": environment["duration_seconds"],
    }


def seconds(f: Callable[[], Any], *, repeat: int = 3) -> float:
    """Median CPU time of a call, after one that is not counted."""
    f()
    found = []
    for _ in range(repeat):
        started = time.process_time()
        f()
        found.append(time.process_time() - started)
    return statistics.median(found)


if __name__ == "__main__":
    main()
