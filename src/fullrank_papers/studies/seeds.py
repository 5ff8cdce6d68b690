"""Mean and standard deviation of the scores of a recipe over seeds: the tables of docs/results.md.

    python -m fullrank_papers.studies.seeds digits
    python -m fullrank_papers.studies.seeds cifar10-small --data PATH --name "CIFAR-10 (JPEG q75)"

Each seed is a complete run; a run that is done is not repeated, a run that was stopped continues. Writes
`results/RECIPE.json` with scores, recipe, hardware, versions and commit.
"""

import statistics
from pathlib import Path
from typing import Any

import tyro

import fullrank
from fullrank.run import Run, read_json, write_json

ENVIRONMENT = ("fullrank", "torch", "timm", "lightning", "python", "platform", "hardware", "started")


def measure(
    recipe: tyro.conf.Positional[str],
    /,
    *,
    data: str | None = None,
    name: str | None = None,
    seeds: tuple[int, ...] = (0, 1, 2),
    runs: Path = Path("runs/seeds"),
) -> None:
    """Train and evaluate a recipe with several seeds.

    Args:
        recipe: name of a recipe.
        data: source of the images, if not the recipe's.
        name: name of the data in tables.
        seeds: one run for each.
        runs: folder of the runs.
    """
    done = [run_seed(recipe, data, seed, runs / f"{recipe}-{seed}") for seed in seeds]
    evaluations, environments = [run.evaluations[0] for run in done], [run.environment for run in done]
    stored = read_json(done[0].path / "recipe.json")
    source = name or stored["data"]["source"]
    scores = []
    for first in evaluations[0].scores:
        same = (s for e in evaluations for s in e.scores if s.key == first.key)
        values = [score.value for score in same]  # a score that is a mean over draws counts once per seed
        summary = {"mean": statistics.mean(values), "sd": statistics.stdev(values) if len(values) > 1 else None}
        probe = {"features": first.features, "probe": first.name}
        scores.append(probe | summary | {"n": len(values), "values": values})
    result: dict[str, Any] = {"data": source, "scores": scores, "seeds": seeds}
    result |= {part: getattr(evaluations[0], part) for part in ("train_images", "test_images")}
    result["minutes"] = [round(environment["duration_seconds"] / 60, 1) for environment in environments]
    result["commit"] = sorted({str(environment["commit"]) for environment in environments})
    result["environment"] = {key: environments[0][key] for key in ENVIRONMENT}
    result["recipe"] = stored | {"seed": None, "data": stored["data"] | {"source": source}}
    write_json(Path("results") / f"{recipe}.json", result)


def run_seed(recipe: str, data: str | None, seed: int, path: Path) -> Run:
    """Return the run of a seed, trained and evaluated."""
    if not (path / "evaluation.json").exists():
        settings: dict[str, Any] = {"seed": seed}
        resumed = bool(Run(path).checkpoints)
        run = fullrank.pretrain(resume=path) if resumed else fullrank.pretrain(recipe, data, out=path, **settings)
        fullrank.evaluate(run)
    return Run(path)


if __name__ == "__main__":
    tyro.cli(measure)
