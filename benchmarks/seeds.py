"""Compute the mean and the standard deviation of the scores of a recipe over seeds.

    python benchmarks/seeds.py cifar10-small --data PATH --name "CIFAR-10 (JPEG q75)"

Each seed is a complete run of the command line (pretrain, then evaluate); `--parallel` of them run at the same time.
Unfinished runs are resumed, and finished runs are not repeated. `fullrank pretrain` receives all other flags. Writes a
small file under `results/` with scores, recipe, hardware, versions and commit.
"""

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fullrank.evaluation import Evaluation
from fullrank.run import Run, read_json, write_json

ENVIRONMENT = ("fullrank", "torch", "timm", "lightning", "python", "platform", "hardware", "started")
FULLRANK = [sys.executable, "-m", "fullrank"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--data")
    parser.add_argument("--name", help="name of the data in tables")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--runs", type=Path, default=Path("runs/seeds"))
    parser.add_argument("--out", type=Path)
    options, options.flags = parser.parse_known_args()  # `fullrank pretrain` receives the other flags
    with ThreadPoolExecutor(options.parallel) as pool:
        runs = list(pool.map(lambda seed: run_seed(options, seed), options.seeds))
    write_json(options.out or Path("results") / f"{options.recipe}.json", collect(runs, options.name))


def run_seed(options: argparse.Namespace, seed: int) -> Path:
    path = options.runs / f"{options.recipe}-{seed}"
    threads = str(max((os.cpu_count() or 1) // options.parallel, 1))
    environment = os.environ | {"OMP_NUM_THREADS": threads}
    data = ["--data", options.data] if options.data else []
    if not (path / "evaluation.json").exists():
        resumed = ["--resume", str(path)] if Run(path).checkpoints else None
        fresh = [options.recipe, *data, "--seed", str(seed), "--out", str(path), "--overwrite", *options.flags]
        subprocess.run([*FULLRANK, "pretrain", *(resumed or fresh)], check=True, env=environment)
        subprocess.run([*FULLRANK, "evaluate", str(path)], check=True, env=environment)
    return path


def collect(runs: list[Path], name: str | None) -> dict:
    evaluations = [Run(path).evaluations[0] for path in runs]
    environments = [Run(path).environment for path in runs]
    recipe = read_json(runs[0] / "recipe.json")
    return {
        "data": name or recipe["data"]["source"],
        "scores": list(table(evaluations)),
        "seeds": [environment["seed"] for environment in environments],
        "train_images": evaluations[0].train_images,
        "test_images": evaluations[0].test_images,
        "minutes": [round(environment["duration_seconds"] / 60, 1) for environment in environments],
        "spectrum_share": [environment["spectrum_share"] for environment in environments],
        "spectra": [len(Run(path).spectra.steps) for path in runs],
        "commit": sorted({str(environment["commit"]) for environment in environments}),
        "environment": {key: environments[0][key] for key in ENVIRONMENT},
        "recipe": recipe | {"seed": None, "data": recipe["data"] | {"source": name or recipe["data"]["source"]}},
    }


def table(evaluations: list[Evaluation]) -> Iterator[dict]:
    """Yield the mean and the standard deviation of each score over seeds. A score that is a mean over draws counts once
    per seed."""
    for first in evaluations[0].scores:
        values = [
            s.accuracy for e in evaluations for s in e.scores if (s.features, s.probe) == (first.features, first.probe)
        ]
        yield {
            "features": first.features,
            "probe": first.probe,
            "mean": statistics.mean(values),
            "sd": statistics.stdev(values) if len(values) > 1 else None,
            "n": len(values),
            "values": values,
        }


if __name__ == "__main__":
    main()
