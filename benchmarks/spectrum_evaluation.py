"""What the spectrum watch costs: a look at held-out images against a training step, and its share of runs of many lengths.

    python benchmarks/watch.py              # two minutes
    python benchmarks/watch.py --runs RUN…  # and the share that these runs noted, from end to end

Networks are those of the recipes with a projector to D dimensions. Everything runs on one thread and is measured in CPU seconds of the
process, which other processes hardly change; pixels are random. Of each length of run, the watch is planned as `pretrain` plans it; its
share is looks · look / (steps · step + looks · look). Writes `results/watch.json`.
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

from fullrank.methods import Method, ProjectorConfig
from fullrank.monitoring.evaluation_plan import plan, work_of
from fullrank.objectives import total
from fullrank.recipes import RECIPES, Recipe, assemble
from fullrank.run import Run, write_json
from fullrank.run.environment import platform_info
from fullrank.spectrum import Spectrum, StreamingSpectrum
from fullrank.training import build_optimizer

SETTINGS = (("digits", 512), ("cifar10-small", 256), ("cifar10-small", 2048))
HELD_OUT = {"digits": 359, "cifar10-small": 10_000}
STEPS = 3
PASSED = 512  # images that a look passes at a time, and that it is timed on
LENGTHS = (500, 2_000, 5_000, 10_000, 25_000, 50_000, 100_000)


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
    write_json(options.out, {"unit": "CPU seconds, one thread", "rows": rows, "runs": runs, "environment": platform_info()})


def recipe_of(name: str, D: int) -> Recipe:
    recipe = RECIPES[name]
    mean, std = ((value,) * recipe.data.channels for value in (0.5, 0.25))
    data = replace(recipe.data, mean=mean, std=std)
    return replace(recipe, data=data, projector=ProjectorConfig(widths=(*recipe.projector.widths[:-1], D)))


def costs(recipe: Recipe) -> dict[str, Any]:
    """CPU seconds of a step, and of looks and shares in runs of many lengths."""
    parts = assemble(recipe)
    work = work_of(parts.method, recipe)
    method, most = parts.method.to(memory_format=torch.channels_last), HELD_OUT[recipe.name]
    generator = torch.Generator().manual_seed(0)
    size = max(PASSED, recipe.batch), recipe.data.channels, parts.preprocess.size, parts.preprocess.size
    pixels = torch.randint(256, size, dtype=torch.uint8, generator=generator)
    optimizer = build_optimizer(recipe.optimizer, method)
    step = seconds(lambda: train(method, optimizer, parts.views, pixels[: recipe.batch]), repeat=STEPS)
    images = parts.preprocess.normalize(pixels[:PASSED])
    passed = seconds(lambda: embeddings(method, images)) / PASSED
    plans = {steps: plan(work, steps=steps, most=most) for steps in LENGTHS}
    spectra = {n: sum(seconds(lambda n=n, D=D: spectrum(n, D)) for D in work.dimensions) for n in {p.samples for p in plans.values()}}
    looks = {n: n * passed + spent for n, spent in spectra.items()}
    return {
        "batch": recipe.batch,
        "step": step,
        "looks": [
            {
                "samples": n,
                "seconds": looks[n],
                "in_steps": looks[n] / step,
                "counted": work.look(n) / work.step,
                "forward": n * passed / looks[n],
            }
            for n in sorted(looks)
        ],
        "runs": [share(steps, step, looks[p.samples], samples=p.samples, every=p.every) for steps, p in plans.items()],
    }


def spectrum(n: int, D: int) -> Spectrum:
    """Of n embeddings, as a look takes it."""
    streaming = StreamingSpectrum()
    for Z in torch.randn(n, D).split(PASSED):
        streaming.update(Z)
    return streaming.compute()


def share(steps: int, step: float, look: float, *, samples: int, every: int) -> dict[str, float]:
    """Looks of a run as long as this, and their share of its time."""
    looks = 1 + math.ceil(steps / every)
    return {"steps": steps, "samples": samples, "looks": looks, "share": looks * look / (steps * step + looks * look)}


def train(method: Method, optimizer: torch.optim.Optimizer, views: Any, pixels: torch.Tensor) -> None:
    """A step as `fit` takes it, with its views."""
    optimizer.zero_grad()
    method.train()
    found = method(views(pixels, views.draw(0, 0, len(pixels))))
    total(method.terms({name: found[name] for name in method.inputs})).backward()
    optimizer.step()


@torch.no_grad()
def embeddings(method: Method, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of backbone and projector, in eval mode, as a look passes them."""
    method.eval()
    R = torch.cat([method.backbone(part) for part in images.split(PASSED)])
    return R, method.projector(R)


def noted(run: Run) -> dict[str, Any]:
    """The share of its wall time that a run noted, and how many looks it took."""
    recipe, environment = run.recipe, run.environment
    looks = run.metrics.spectrum
    return {
        "recipe": recipe.name,
        "D": looks[-1].projector.dimensions,
        "samples": looks[-1].projector.samples,
        "steps": looks[-1].step,
        "looks": len(looks),
        "share": environment["spectrum_share"],
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
