"""Measure the cost of spectrum evaluation: the time of one evaluation compared with a training step, and the share of
run time.

    python benchmarks/spectrum_evaluation.py              # two minutes
    python benchmarks/spectrum_evaluation.py --runs RUN…  # also report the measured share of these runs

The networks are those of the recipes, with a projector to D dimensions; pixels are random. Everything runs on one
thread, and times are CPU seconds of the process, which other processes hardly change. For each length of a run,
`plan_evaluations` of `pretrain` determines the evaluations. With the time t of a step and the time e of an evaluation,
the share is evaluations · e / (steps · t + evaluations · e). Writes `results/spectrum_evaluation.json`.
"""

import argparse
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fullrank.methods import Method, ProjectorConfig
from fullrank.objectives import total
from fullrank.recipes import RECIPES, Recipe, assemble
from fullrank.run import Run, write_json
from fullrank.run.environment import platform_info
from fullrank.run.evaluation_plan import count_cost, plan_evaluations
from fullrank.spectrum import Spectrum, StreamingSpectrum
from fullrank.training import build_optimizer
from timing import measure

SETTINGS = (("digits", 512), ("cifar10-small", 256), ("cifar10-small", 2048))
HELD_OUT = {"digits": 359, "cifar10-small": 10_000}
STEPS = 3
BATCH = 512  # images per forward pass of an evaluation
LENGTHS = (500, 2_000, 5_000, 10_000, 25_000, 50_000, 100_000)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, nargs="*", default=[])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "spectrum_evaluation.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name, D in SETTINGS:
        rows.append({"recipe": name, "D": D} | costs(recipe_of(name, D)))
        print(rows[-1], flush=True)
    runs = [measured_share(Run(path)) for path in options.runs]
    write_json(
        options.out, {"unit": "CPU seconds, one thread", "rows": rows, "runs": runs, "environment": platform_info()}
    )


def recipe_of(name: str, D: int) -> Recipe:
    recipe = RECIPES[name]
    mean, std = ((value,) * recipe.data.channels for value in (0.5, 0.25))
    data = replace(recipe.data, mean=mean, std=std)
    return replace(recipe, data=data, projector=ProjectorConfig(widths=(*recipe.projector.widths[:-1], D)))


def costs(recipe: Recipe) -> dict[str, Any]:
    """Return CPU seconds of a step and of evaluations, and the share of evaluations in runs of many lengths."""
    parts = assemble(recipe)
    work = count_cost(parts.method, recipe)
    method, most = parts.method.to(memory_format=torch.channels_last), HELD_OUT[recipe.name]
    generator = torch.Generator().manual_seed(0)
    size = max(BATCH, recipe.batch_size), recipe.data.channels, parts.preprocess.size, parts.preprocess.size
    pixels = torch.randint(256, size, dtype=torch.uint8, generator=generator)
    optimizer = build_optimizer(recipe.optimizer, method)
    step = seconds(lambda: train(method, optimizer, parts.views, pixels[: recipe.batch_size]), repeat=STEPS)
    images = parts.preprocess.normalize(pixels[:BATCH])
    forward = seconds(lambda: embeddings(method, images)) / BATCH
    plans = {steps: plan_evaluations(work, steps=steps, available=most) for steps in LENGTHS}
    spectra = {
        n: sum(seconds(lambda n=n, D=D: spectrum(n, D)) for D in work.dimensions)
        for n in {p.samples for p in plans.values()}
    }
    evaluations = {n: n * forward + spent for n, spent in spectra.items()}
    return {
        "batch": recipe.batch_size,
        "step": step,
        "evaluations": [
            {
                "samples": n,
                "seconds": evaluations[n],
                "in_steps": evaluations[n] / step,
                "counted": replace(work, views=0.0).evaluation(n)
                / work.step,  # without the held-out loss, like the measured time
                "forward": n * forward / evaluations[n],
            }
            for n in sorted(evaluations)
        ],
        "runs": [
            share(steps, step, evaluations[p.samples], samples=p.samples, every=p.every) for steps, p in plans.items()
        ],
    }


def spectrum(n: int, D: int) -> Spectrum:
    """Return the spectrum of n random embeddings, computed as in an evaluation."""
    streaming = StreamingSpectrum()
    for Z in torch.randn(n, D).split(BATCH):
        streaming.update(Z)
    return streaming.compute()


def share(steps: int, step: float, evaluation: float, *, samples: int, every: int) -> dict[str, float]:
    """Return the number of evaluations in a run, and the share of the run time that they take."""
    count = 1 + math.ceil(steps / every)
    return {
        "steps": steps,
        "samples": samples,
        "evaluations": count,
        "share": count * evaluation / (steps * step + count * evaluation),
    }


def train(method: Method, optimizer: torch.optim.Optimizer, views: Any, pixels: torch.Tensor) -> None:
    """Augment the images and take a training step."""
    optimizer.zero_grad()
    method.train()
    found = method(views(pixels, views.make_params(0, 0, len(pixels))))
    total(method.terms({name: found[name] for name in method.input_names})).backward()
    optimizer.step()


@torch.no_grad()
def embeddings(method: Method, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return representations and embeddings in eval mode, computed as in an evaluation."""
    method.eval()
    R = torch.cat([method.backbone(part) for part in images.split(BATCH)])
    return R, method.projector(R)


def measured_share(run: Run) -> dict[str, Any]:
    """Return the number of evaluations of a run and the share of wall time that they took, from its log."""
    recipe, environment = run.recipe, run.environment
    rows = run.metrics.spectrum
    return {
        "recipe": recipe.name,
        "D": rows[-1].projector.dimensions,
        "samples": rows[-1].projector.samples,
        "steps": rows[-1].step,
        "evaluations": len(rows),
        "share": environment["spectrum_share"],
        "seconds": environment["duration_seconds"],
    }


def seconds(f: Callable[[], Any], *, repeat: int = 3) -> float:
    """Return the median CPU time of a call, after a warmup call."""
    return measure({"f": f}, rounds=repeat, clock="cpu")["f"].median


if __name__ == "__main__":
    main()
