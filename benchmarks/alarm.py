"""Detection rates of the collapse detector: alarms in degraded and in healthy runs, on the embedded digits.

    python benchmarks/alarm.py --parallel 2

Healthy runs are those of `benchmarks/objectives.py`: every objective, 20 epochs, default settings. Runs with an induced
failure differ from them in one setting, listed in `INDUCED_FAILURES`. The *gain* of a run is its accuracy minus that of
the untrained network, measured by a probe with 2 labels per class on the frozen backbone. A run is degraded if its gain
is less than half of the gain of the healthy run of the same objective and seed, or if it ended in NaN; the statistics
of the detector are not used. `extremes` holds the values closest to the thresholds. The script replays the alarms from
metrics.jsonl. Existing runs are not trained again; `--only` limits the kinds of runs, and the results of the other
kinds do not change. Writes `benchmarks/results/alarm.json`.
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
from fullrank.evaluation import evaluate_backbone
from fullrank.images import train_and_test
from fullrank.methods import ProjectorConfig
from fullrank.objectives import OBJECTIVES
from fullrank.recipes import RECIPES, Recipe, with_objective
from fullrank.run import Run, read_json, write_json
from fullrank.run.collapse_detector import burn_in_end_of_log, collapsed_share, replay_alarms, steps_per_epoch
from fullrank.run.environment import platform_info
from fullrank.run.evaluations import to_json
from fullrank.run.rows import AlarmRow, SpectrumRow
from fullrank.views import AffineConfig, CropConfig, NoiseConfig

EPOCHS = 20
MIN_GAIN_SHARE = 0.5  # a run is degraded if its gain is less than this share of the healthy run's gain
RESULTS = Path(__file__).parent / "results" / "alarm.json"
Change = Callable[[Recipe], Recipe]


def healthy(objective: str, seed: int) -> Recipe:
    spectrum = replace(RECIPES["digits"].spectrum, samples=359)  # all held-out images
    recipe = with_objective(
        replace(RECIPES["digits"], epochs=EPOCHS, seed=seed, checkpoints=1, spectrum=spectrum), objective
    )
    if objective in ("directclr", "directclr_paper"):
        return replace(recipe, hyper=recipe.hyper | {"d0": 64})  # half of the backbone's 128 dimensions
    if objective in ("simsiam", "byol"):
        return learning_rate(1e-3)(recipe)  # with the recipe's 5e-3, the result is near the untrained network
    return recipe


def hyper(**values: Any) -> Change:
    return lambda recipe: replace(recipe, hyper=recipe.hyper | values)


def learning_rate(lr: float, name: str = "adamw") -> Change:
    return lambda recipe: replace(recipe, optimizer=replace(recipe.optimizer, lr=lr, name=name))


def without_projector(recipe: Recipe) -> Recipe:
    return replace(recipe, projector=ProjectorConfig(widths=()))


def strong_augmentation(recipe: Recipe) -> Recipe:
    """Return the recipe with crops of 2 to 10 % of the area, rotation up to 180°, and noise of std 1 (the pixel
    range)."""
    (view,) = recipe.views
    affine = AffineConfig(probability=1.0, degrees=180.0, translate=(0.5, 0.5), scale=(0.5, 1.5), shear=(45.0, 45.0))
    crop, noise = CropConfig(probability=1.0, scale=(0.02, 0.1)), NoiseConfig(probability=1.0, std=1.0)
    return replace(recipe, views=(replace(view, crop=crop, affine=affine, noise=noise),))


MAIN_OBJECTIVES: tuple[str, ...] = ("frossl", "simclr", "vicreg", "barlow_twins")
INDUCED_FAILURES: dict[str, dict[str, Change]] = {
    "learning rate too high": {
        **dict.fromkeys(MAIN_OBJECTIVES, learning_rate(0.5)),  # a hundred times the recipe's learning rate
        "simsiam": learning_rate(5e-3),  # the recipe's learning rate
        "byol": learning_rate(5e-3),
    },
    "augmentation too strong": dict.fromkeys(MAIN_OBJECTIVES, strong_augmentation),
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
    "no projector": {name: without_projector for name in (*MAIN_OBJECTIVES, "simsiam", "byol")},
    "NaN": {"vicreg": learning_rate(1e6, "sgd")},
}
EXPECTED_CAUSES = {
    "learning rate too high": {"large steps"},
    "augmentation too strong": {"augmentation"},
    "invariance only": {"missing term", "dominant term: invariance"},
    "log removed": {"dominant term: variance"},
    "no projector": {"no projector", "large steps, no projector"},
    "NaN": {"large steps"},
}


def planned_runs(seeds: list[int], only: list[str]) -> Iterator[tuple[str, str, int, Recipe]]:
    """Yield (kind, objective, seed, recipe) of each run, healthy runs first."""
    for seed in seeds:
        for objective in OBJECTIVES if "healthy" in only else ():
            yield "healthy", objective, seed, healthy(objective, seed)
        for kind in only:
            for objective, change in INDUCED_FAILURES.get(kind, {}).items():
                yield kind, objective, seed, change(healthy(objective, seed))


def train(runs: Path, kind: str, objective: str, seed: int, recipe: Recipe) -> Path:
    """Pretrain and evaluate a run in this process, unless it exists; `ended.json` holds the error that ended a run."""
    torch.set_num_threads(1)
    path = runs / f"{kind}-{objective}-{seed}".replace(" ", "-")
    if (path / "evaluation.json").exists() or (path / "ended.json").exists():
        return path
    try:
        pretrain(recipe, out=path, overwrite=path.exists(), console=Console(quiet=True))
        model, splits = load(path), train_and_test(recipe.data.source, seed=seed)
        arguments = model.backbone, model.untrained(), model.preprocess, splits.train, splits.test
        scores = evaluate_backbone(*arguments, seed=seed, probes=("few-shot",), baselines=kind == "healthy")
        write_json(path / "evaluation.json", to_json([scores]))
    except UserError as error:
        write_json(path / "ended.json", str(error))
    return path


def few_shot_accuracy(path: Path, features: str) -> float | None:
    """Return the accuracy with 2 labels per class on one feature set; None if the run ended early."""
    scores = [score for evaluation in Run(path).evaluations for score in evaluation.scores]
    accuracies = [
        score.accuracy for score in scores if score.features == features and score.probe == "linear, 2 labels per class"
    ]
    return accuracies[0] if accuracies else None


def run_result(path: Path, kind: str, objective: str, seed: int, *, reference: Path) -> dict[str, Any]:
    """Return the gain of one run as a share of the gain of the healthy run `reference`, and the alarms of the run."""
    run = Run(path)
    metrics = run.metrics
    start, total = burn_in_end_of_log(metrics, run.recipe), steps_per_epoch(metrics) * run.recipe.epochs
    alarms = replay_alarms(run) + [alarm for alarm in metrics.alarms if alarm.alarm == "not finite"]
    accuracy, untrained = few_shot_accuracy(path, "backbone"), few_shot_accuracy(reference, "untrained backbone")
    best = few_shot_accuracy(reference, "backbone")
    gain_share = (
        None if accuracy is None or untrained is None or best is None else (accuracy - untrained) / (best - untrained)
    )
    return {
        "kind": kind,
        "objective": objective,
        "seed": seed,
        "few_shot": accuracy,
        "gain_share": None if gain_share is None else round(gain_share, 3),
        "degraded": kind != "healthy" and (gain_share is None or gain_share < MIN_GAIN_SHARE),
        "commit": run.environment["commit"],
        "extremes": extremes([row for row in metrics.spectrum if row.step >= start]),
        "alarms": [
            {
                "share": round(alarm.step / total, 3),
                "alarm": alarm.alarm,
                "where": alarm.where,
                "cause": cause_of(alarm),
            }
            for alarm in alarms
        ],
    }


def cause_of(alarm: AlarmRow) -> str:
    """Return the cause of an alarm, with the dominant term if there is one."""
    if alarm.cause == "dominant term":
        return f"dominant term: {alarm.details['terms'][0]}"
    return alarm.cause + (", no projector" if alarm.details.get("no_projector") else "")


def extremes(rows: list[SpectrumRow]) -> dict[str, Any]:
    """Return the values closest to each threshold after burn-in, and the smallest intraclass correlation."""
    correlations = [row.intraclass_correlation for row in rows if row.intraclass_correlation is not None]
    result: dict[str, Any] = {"intraclass_correlation": min(correlations, default=None)}
    for where in ("backbone", "projector") if rows else ():
        metrics = [getattr(row, where) for row in rows]
        ranks = [m.effective_rank for m in metrics]
        result[where] = {
            "effective_rank": min(ranks),
            "rank_share": min(
                (rank / top for rank, top in zip(ranks, accumulate(ranks, max), strict=True) if top), default=None
            ),
            "relative_variance": min(m.relative_variance for m in metrics),
            "collapsed_share": max(collapsed_share(m.collapsed_dimensions, m.dimensions, m.samples) for m in metrics),
        }
    return result


def detection_table(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield one row per kind: numbers of runs, degraded runs, detected runs, runs with the right cause, and other runs
    with an alarm."""
    for kind in ("healthy", *INDUCED_FAILURES):
        if not (runs := [row for row in rows if row["kind"] == kind]):
            continue
        degraded = [row for row in runs if row["degraded"]]
        detected = [row for row in degraded if row["alarms"]]
        yield {
            "kind": kind,
            "runs": len(runs),
            "degraded": len(degraded),
            "detected": len(detected),
            "right_cause": sum(
                any(alarm["cause"] in EXPECTED_CAUSES[kind] for alarm in row["alarms"]) for row in detected
            ),
            "median_share": statistics.median(row["alarms"][0]["share"] for row in detected) if detected else None,
            "others_with_alarm": sum(bool(row["alarms"]) for row in runs if not row["degraded"]),
        }


def result(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the content of the result file."""
    groups = {
        "seed 0, on which the thresholds were chosen": [0],
        "other seeds": sorted({row["seed"] for row in rows} - {0}),
    }
    return {
        "date": datetime.date.today().isoformat(),
        "data": "digits",
        "epochs": EPOCHS,
        "degraded": f"gain over the untrained network below {MIN_GAIN_SHARE:g} of the healthy run's, 2 labels per class; or ended in NaN",
        "tables": {
            name: list(detection_table([row for row in rows if row["seed"] in seeds])) for name, seeds in groups.items()
        },
        "environment": platform_info(),
        "runs": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", nargs="+", default=["healthy", *INDUCED_FAILURES], choices=["healthy", *INDUCED_FAILURES]
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--runs", type=Path, default=Path("runs/alarm"))
    options = parser.parse_args()
    jobs = list(planned_runs(options.seeds, options.only))
    with ProcessPoolExecutor(options.parallel, mp_context=get_context("spawn")) as pool:
        paths = list(pool.map(partial(train, options.runs), *zip(*jobs, strict=True)))
    results = {
        (kind, objective, seed): run_result(
            path, kind, objective, seed, reference=options.runs / f"healthy-{objective}-{seed}"
        )
        for (kind, objective, seed, _), path in zip(jobs, paths, strict=True)
    }
    before = read_json(RESULTS).get("runs", []) if RESULTS.exists() else []
    rows = list(({(r["kind"], r["objective"], r["seed"]): r for r in before} | results).values())
    write_json(RESULTS, result(rows))


if __name__ == "__main__":
    main()
