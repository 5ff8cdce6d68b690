"""How many degraded runs the alarm catches, and how many healthy ones it disturbs, on the embedded digits.

    python benchmarks/alarm.py --parallel 2

Healthy runs are those of `benchmarks/objectives.py`: every objective, 20 epochs, nothing tuned. Planted ones differ from them in one
thing, listed in `PLANTS`. Whether a planted run is degraded is decided without the alarm's own statistics: by a probe of 2 labels a class
on the frozen backbone, as a share of what the healthy run of the same objective and seed gains over the untrained network. Below a half, or
where the run ended in NaN, it is degraded. How near each run came to a threshold is noted as `extremes`. The alarm is replayed from each
run's metrics.jsonl. A run that is there already is taken as it is; `--only` takes the kinds named, and leaves the results of the others.
Written to `benchmarks/results/alarm.json`.
"""

import argparse
import datetime
import statistics
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import accumulate
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from fullrank import load, pretrain
from fullrank.errors import UserError
from fullrank.evaluation import evaluate
from fullrank.images import train_and_test
from fullrank.methods import ProjectorConfig
from fullrank.monitoring.collapse_detector import missing_share
from fullrank.monitoring.replay import alarms, judged_from, steps_per_epoch
from fullrank.objectives import OBJECTIVES
from fullrank.recipes import RECIPES, Recipe, with_objective
from fullrank.run import Run, read_json, write_json
from fullrank.run.environment import platform_info
from fullrank.run.rows import row_to_json
from fullrank.views import AffineConfig, CropConfig, NoiseConfig

EPOCHS = 20
KEPT = 0.5  # of the gain over the untrained network, below which a run is degraded
RESULTS = Path(__file__).parent / "results" / "alarm.json"
Change = Callable[[Recipe], Recipe]


def healthy(objective: str, seed: int) -> Recipe:
    recipe = with_objective(replace(RECIPES["digits"], epochs=EPOCHS, seed=seed, checkpoints=1), objective)
    if objective in ("directclr", "directclr_paper"):
        return replace(recipe, hyper=recipe.hyper | {"d0": 64})  # half of the backbone's 128 dimensions
    if objective in ("simsiam", "byol"):
        return learning_rate(1e-3)(recipe)  # at the recipe's 5e-3 they end near the untrained network
    return recipe


def hyper(**numbers: Any) -> Change:
    return lambda recipe: replace(recipe, hyper=recipe.hyper | numbers)


def learning_rate(lr: float, name: str = "adamw") -> Change:
    return lambda recipe: replace(recipe, optimizer=replace(recipe.optimizer, lr=lr, name=name))


def bare(recipe: Recipe) -> Recipe:
    return replace(recipe, projector=ProjectorConfig(widths=()))


def strong(recipe: Recipe) -> Recipe:
    """Crops of 2 to 10 % of the area, turned by up to 180°, under noise of one standard deviation of the pixel range."""
    (view,) = recipe.views
    affine = AffineConfig(probability=1.0, degrees=180.0, translate=(0.5, 0.5), scale=(0.5, 1.5), shear=(45.0, 45.0))
    crop, noise = CropConfig(probability=1.0, scale=(0.02, 0.1)), NoiseConfig(probability=1.0, std=1.0)
    return replace(recipe, views=(replace(view, crop=crop, affine=affine, noise=noise),))


FOUR: tuple[str, ...] = ("frossl", "simclr", "vicreg", "barlow_twins")
PLANTS: dict[str, dict[str, Change]] = {
    "learning rate too high": {
        **dict.fromkeys(FOUR, learning_rate(0.5)),  # a hundred times the recipe's
        "simsiam": learning_rate(5e-3),  # the recipe's
        "byol": learning_rate(5e-3),
    },
    "augmentation too strong": dict.fromkeys(FOUR, strong),
    "invariance only": {
        "vicreg": hyper(variance=0.0, covariance=0.0),
        "barlow_twins": hyper(redundancy=0.0),
        "ivne": hyper(entropy=0.0),
        "simmer": hyper(entropy=0.0),
        "tico": hyper(covariance=0.0),
        "frossl": hyper(invariance=1e4),
        "corinfomax": hyper(invariance=1e6),
    },
    "log removed": {"frossl": hyper(log=False)},
    "no projector": {name: bare for name in (*FOUR, "simsiam", "byol")},
    "NaN": {"vicreg": learning_rate(1e6, "sgd")},
}
CAUSES = {  # words of which the cause that an alarm gives has to hold one
    "learning rate too high": ("steps",),
    "augmentation too strong": ("augmentation",),
    "invariance only": ("a loss without", "the term 'invariance'"),
    "log removed": ("the term 'variance'",),
    "no projector": ("projector",),
    "NaN": ("not finite", "steps"),
}


def fleet(seeds: list[int], only: list[str]) -> Iterator[tuple[str, str, int, Recipe]]:
    """Yield (kind, objective, seed, recipe) of each run, those first that others are held against."""
    for seed in seeds:
        for objective in OBJECTIVES if "healthy" in only else ():
            yield "healthy", objective, seed, healthy(objective, seed)
        for kind in only:
            for objective, change in PLANTS.get(kind, {}).items():
                yield kind, objective, seed, change(healthy(objective, seed))


def train(runs: Path, kind: str, objective: str, seed: int, recipe: Recipe) -> Path:
    """Pretrain and evaluate, in this process, what is not there; what ended a run is in `ended.json`."""
    torch.set_num_threads(1)
    path = runs / f"{kind}-{objective}-{seed}".replace(" ", "-")
    if (path / "evaluation.json").exists() or (path / "ended.json").exists():
        return path
    try:
        pretrain(recipe, out=path, overwrite=path.exists(), console=Console(quiet=True))
        model, splits = load(path), train_and_test(recipe.data.source, seed=seed)
        judged = model.backbone, model.untrained(), model.preprocess, splits.train, splits.test
        scores = evaluate(*judged, seed=seed, probes=("few-shot",), baselines=kind == "healthy")
        write_json(path / "evaluation.json", scores.to_json())
    except UserError as error:
        write_json(path / "ended.json", str(error))
    return path


def few(path: Path, features: str) -> float | None:
    """Accuracy of 2 labels a class on one kind of features; None where the run ended before its end."""
    evaluation = Run(path).evaluation
    scores = evaluation.scores if evaluation else ()
    found = [score.accuracy for score in scores if score.features == features and score.probe == "linear, 2 labels a class"]
    return found[0] if found else None


def row(path: Path, kind: str, objective: str, seed: int, *, against: Path) -> dict[str, Any]:
    """One run: what is left of the gain of the healthy run `against`, and the alarms that its log raises."""
    run = Run(path)
    rows = [row_to_json(row) for row in run.metrics]
    start = judged_from(rows, run.recipe)
    total = steps_per_epoch(rows) * run.recipe.epochs
    raised = [(step, alarm.kind, alarm.where, alarm.cause) for step, alarm in alarms(run)]
    raised += [(row["step"], row["alarm"], row["where"], row["cause"]) for row in rows if row.get("alarm") == "not finite"]
    accuracy, untrained, best = few(path, "backbone"), few(against, "untrained backbone"), few(against, "backbone")
    kept = None if accuracy is None or untrained is None or best is None else (accuracy - untrained) / (best - untrained)
    return {
        "kind": kind,
        "objective": objective,
        "seed": seed,
        "few_shot": accuracy,
        "kept": None if kept is None else round(kept, 3),
        "degraded": kind != "healthy" and (kept is None or kept < KEPT),
        "commit": run.environment["commit"],
        "extremes": extremes([row for row in rows if row["kind"] == "spectrum" and row["step"] >= start]),
        "alarms": [{"share": round(step / total, 3), "alarm": name, "where": where, "cause": cause} for step, name, where, cause in raised],
    }


def extremes(looks: list[dict[str, Any]]) -> dict[str, Any]:
    """How near the looks of a run came to each threshold, once they were judged, and the views' intraclass correlation."""
    found: dict[str, Any] = {
        "intraclass_correlation": min((look["intraclass_correlation"] for look in looks if "intraclass_correlation" in look), default=None)
    }
    for where in ("backbone", "projector") if looks else ():
        measured = [look[where] for look in looks]
        ranks = [one["effective_rank"] for one in measured]
        found[where] = {
            "rank": min(ranks),
            "fallen_to": min((rank / top for rank, top in zip(ranks, accumulate(ranks, max), strict=True) if top), default=None),
            "relative_variance": min(one["relative_variance"] for one in measured),
            "missing": max(missing_share(one["collapsed_dimensions"], one["dimensions"], one["samples"]) for one in measured),
        }
    return found


def table(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield one line a kind: runs, degraded ones, those that were caught, with the right cause, and when; others that were warned."""
    for kind in ("healthy", *PLANTS):
        if not (of_kind := [row for row in rows if row["kind"] == kind]):
            continue
        degraded = [row for row in of_kind if row["degraded"]]
        caught = [row for row in degraded if row["alarms"]]
        yield {
            "kind": kind,
            "runs": len(of_kind),
            "degraded": len(degraded),
            "caught": len(caught),
            "named": sum(any(word in alarm["cause"] for alarm in row["alarms"] for word in CAUSES[kind]) for row in caught),
            "median_share": statistics.median(row["alarms"][0]["share"] for row in caught) if caught else None,
            "others_warned": sum(bool(row["alarms"]) for row in of_kind if not row["degraded"]),
        }


def result(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The content of the result file."""
    groups = {"seed 0, on which the thresholds were chosen": [0], "other seeds": sorted({row["seed"] for row in rows} - {0})}
    return {
        "date": datetime.date.today().isoformat(),
        "data": "digits",
        "epochs": EPOCHS,
        "degraded": f"keeps less than {KEPT:g} of the healthy run's gain over the untrained network, 2 labels a class; or ended in NaN",
        "tables": {name: list(table([row for row in rows if row["seed"] in seeds])) for name, seeds in groups.items()},
        "environment": platform_info(),
        "runs": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=["healthy", *PLANTS], choices=["healthy", *PLANTS])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--runs", type=Path, default=Path("runs/alarm"))
    options = parser.parse_args()
    jobs = list(fleet(options.seeds, options.only))
    with ProcessPoolExecutor(options.parallel, mp_context=get_context("spawn")) as pool:
        paths = list(pool.map(partial(train, options.runs), *zip(*jobs, strict=True)))
    found = {
        (kind, objective, seed): row(path, kind, objective, seed, against=options.runs / f"healthy-{objective}-{seed}")
        for (kind, objective, seed, _), path in zip(jobs, paths, strict=True)
    }
    before = read_json(RESULTS).get("runs", []) if RESULTS.exists() else []
    rows = list(({(r["kind"], r["objective"], r["seed"]): r for r in before} | found).values())
    write_json(RESULTS, result(rows))


if __name__ == "__main__":
    main()
