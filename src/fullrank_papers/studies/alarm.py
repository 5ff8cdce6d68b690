"""Detection rates of the collapse detector: alarms in degraded and in healthy runs, on the embedded digits.

Healthy runs are of every objective, 20 epochs, default settings. Other runs differ from them in one setting, listed in
`CHANGES`: failures of the kinds on which the thresholds were chosen (with seeds 0 to 2), failures of other kinds, and
settings that are only ten times too large. The *gain* of a run is its accuracy minus that of the untrained network, by
a probe with 2 labels per class on the frozen backbone. A run is degraded if its gain is less than half of the gain of
the healthy run of the same objective and seed, or if it ended in NaN; the statistics of the detector are not used.
`extremes` holds the values closest to the thresholds. The alarms are replayed from metrics.jsonl. Runs that exist are
not trained again.
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import accumulate, chain
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from fullrank import load, pretrain
from fullrank.errors import UserError
from fullrank.evaluation import accuracy, extract_features, few_shot, standardize
from fullrank.images import train_and_test
from fullrank.objectives import OBJECTIVES
from fullrank.recipes import RECIPES, Recipe, to_dict, with_fields, with_objective
from fullrank.run import Run, read_json, write_json
from fullrank.run.collapse_detector import collapsed_share, compute_burn_in_end, detect_collapse
from fullrank.run.rows import AlarmRow, Row, SpectrumRow
from fullrank.sweep.cell import has_diverged
from fullrank.views import AffineConfig, CropConfig, NoiseConfig
from fullrank_papers import studies

EPOCHS = 20
MIN_GAIN_SHARE = 0.5  # a run is degraded if its gain is less than this share of the healthy run's gain
Change = Callable[[Recipe], Recipe]


def replay_alarms(run: Run) -> list[AlarmRow]:
    """Return the alarms that a run's log raises with the current thresholds, in order. Alarms "not finite" are not
    recomputed.

    Raises:
        UserError: the recipe or the log cannot be read.
    """
    rows, recipe = run.metrics, run.recipe
    return detect_collapse(rows, burn_in_end=burn_in_end_of_log(rows, recipe), recipe=to_dict(recipe))


def burn_in_end_of_log(rows: Sequence[Row], recipe: Recipe) -> int:
    """Return the `compute_burn_in_end` of a log; its minimum if the log does not show the number of steps per epoch."""
    per_epoch = steps_per_epoch(rows)
    return compute_burn_in_end(steps=per_epoch * recipe.epochs, warmup=round(recipe.schedule.warmup * per_epoch))


def steps_per_epoch(rows: Sequence[Row]) -> int:
    """Return the number of steps per epoch, from the last row of a log; 0 if the log is empty or its `epoch` is rounded
    to 0.
    """
    last = max(rows, key=lambda row: row.step, default=None)
    return round(last.step / last.epoch) if last and last.epoch else 0


def healthy(objective: str, seed: int) -> Recipe:
    """Return the recipe of a healthy run."""
    recipe = with_objective(replace(RECIPES["digits"], epochs=EPOCHS, seed=seed, checkpoints=1), objective)
    if objective in ("directclr", "directclr_paper"):
        return replace(recipe, hyper=recipe.hyper | {"d0": 64})  # half of the backbone's 128 dimensions
    if objective in SLOW:
        return setting(optimizer__lr=1e-3)(
            recipe
        )  # with the recipe's 5e-3, SimSiam loses a third to two thirds of its gain
    return recipe


def setting(**values: Any) -> Change:
    """Return the change of some fields of a recipe, whose names have `__` for the dot."""
    return lambda recipe: with_fields(recipe, {name.replace("__", "."): value for name, value in values.items()})


def times_ten(name: str) -> Change:
    return lambda recipe: replace(recipe, hyper=recipe.hyper | {name: 10 * recipe.hyper[name]})


def without_augmentation(recipe: Recipe) -> Recipe:
    (view,) = recipe.views
    return replace(recipe, views=(replace(view, affine=AffineConfig(probability=0.0), noise=NoiseConfig()),))


def strong_augmentation(recipe: Recipe) -> Recipe:
    """Return the recipe with crops of 2 to 10 % of the area, rotation up to 180°, and noise of the pixel range."""
    (view,) = recipe.views
    affine = AffineConfig(probability=1.0, degrees=180.0, translate=(0.5, 0.5), scale=(0.5, 1.5), shear=(45.0, 45.0))
    crop, noise = CropConfig(probability=1.0, scale=(0.02, 0.1)), NoiseConfig(probability=1.0, std=1.0)
    return replace(recipe, views=(replace(view, crop=crop, affine=affine, noise=noise),))


MAIN: tuple[str, ...] = ("frossl", "simclr", "vicreg", "barlow_twins")
SLOW: tuple[str, ...] = ("simsiam", "byol")
SLOW_RATES: dict[str, Change] = dict.fromkeys(SLOW, setting(optimizer__lr=5e-3))
# Kind of failure → the right causes, and the change of the recipe by objective.
Failures = dict[str, tuple[set[str], dict[str, Change]]]
INDUCED_FAILURES: Failures = {
    "learning rate too high": (
        {"large steps"},  # a hundred times the recipe's learning rate; of SimSiam and BYOL, the recipe's own
        dict.fromkeys(MAIN, setting(optimizer__lr=0.5)) | SLOW_RATES,
    ),
    "augmentation too strong": ({"augmentation"}, dict.fromkeys(MAIN, strong_augmentation)),
    "invariance only": (
        {"missing term", "dominant term: invariance"},
        {
            "vicreg": setting(hyper__variance=0.0, hyper__covariance=0.0),
            "barlow_twins": setting(hyper__redundancy=0.0),
            "ivne": setting(hyper__entropy=0.0),
            "simmer": setting(hyper__entropy=0.0),
            "tico": setting(hyper__covariance=0.0),
            "frossl": setting(hyper__invariance=1e4),
            "corinfomax": setting(hyper__invariance=1e6),
        },
    ),
    "log removed": ({"dominant term: variance"}, {"frossl": setting(hyper__log=False)}),
    "no projector": (
        {"no projector", "large steps, no projector"},
        dict.fromkeys((*MAIN, *SLOW), setting(projector__widths=())),
    ),
    "NaN": ({"large steps"}, {"vicreg": setting(optimizer__lr=1e6, optimizer__name="sgd")}),
}
OTHER_FAILURES: Failures = {
    "weight decay 10": (set(), dict.fromkeys(MAIN, setting(optimizer__weight_decay=10.0))),
    "projector of two dimensions": (set(), dict.fromkeys(MAIN, setting(projector__widths=(512, 2)))),
    "no augmentation": (set(), dict.fromkeys(MAIN, without_augmentation)),
}
MILD: Failures = {
    "ten times the learning rate": (set(), dict.fromkeys(MAIN, setting(optimizer__lr=0.05))),
    "ten times a weight or the temperature": (
        set(),
        {
            "frossl": times_ten("invariance"),
            "simclr": times_ten("temperature"),
            "vicreg": times_ten("invariance"),
            "barlow_twins": times_ten("redundancy"),
        },
    ),
}
CHANGES: dict[str, Failures] = {
    "failures of the kinds on which the thresholds were chosen": {"healthy": (set(), {})} | INDUCED_FAILURES,
    "failures of other kinds": OTHER_FAILURES,
    "mild changes": MILD,
}


def measure(*, seeds: tuple[int, ...] = (3, 4), parallel: int = 1, runs: Path = Path("runs/alarm")) -> dict[str, Any]:
    """Train healthy and degraded runs, and count alarms.

    Args:
        seeds: others than 0 to 2, on which the thresholds were chosen.
        parallel: runs at the same time.
        runs: folder of the runs.
    """
    jobs = [("healthy", name, seed, healthy(name, seed)) for seed in seeds for name in OBJECTIVES]
    for kind, (_, changes) in chain.from_iterable(kinds.items() for kinds in CHANGES.values()):
        jobs += [(kind, name, seed, change(healthy(name, seed))) for seed in seeds for name, change in changes.items()]
    paths = [runs / f"{kind}-{name}-{seed}".replace(" ", "-") for kind, name, seed, _ in jobs]
    with ProcessPoolExecutor(parallel, mp_context=get_context("spawn")) as pool:
        list(pool.map(train, paths, [job[-1] for job in jobs]))
    rows = [
        {"kind": kind, "objective": name, "seed": seed}
        | judge(path, runs / f"healthy-{name}-{seed}", is_healthy=kind == "healthy")
        for path, (kind, name, seed, _) in zip(paths, jobs, strict=True)
    ]
    tables = {name: list(count(rows, kinds)) for name, kinds in CHANGES.items()}
    return {"data": "digits", "epochs": EPOCHS, "tables": tables, "runs": rows}


def train(path: Path, recipe: Recipe) -> None:
    """Pretrain and score a run in this process, unless it is done; `ended` is the error that ended a run."""
    torch.set_num_threads(1)
    if (path / "few-shot.json").exists():
        return
    try:
        pretrain(recipe, out=path, overwrite=path.exists(), console=Console(quiet=True))
        model, splits, scores = load(path), train_and_test(recipe.data.source, seed=recipe.seed), {}
        for name, network in (("backbone", model.backbone), ("untrained", model.untrained())):
            train, test = (extract_features(network, each, model.preprocess) for each in (splits.train, splits.test))
            X, X_test = standardize(train.X, test.X)
            drawn = few_shot(X, train.labels, X_test, seed=recipe.seed)
            scores[name] = float(np.mean([accuracy(each.logits, test.labels) for each in drawn]))
    except UserError as error:
        if not has_diverged(path):
            raise
        scores = {"ended": str(error)}
    write_json(path / "few-shot.json", scores)


def judge(path: Path, reference: Path, *, is_healthy: bool) -> dict[str, Any]:
    """Return the gain of one run as a share of the gain of the healthy run `reference`, and the alarms of the run."""
    run, scores, best = Run(path), read_json(path / "few-shot.json"), read_json(reference / "few-shot.json")
    metrics, share = run.metrics, None
    if "backbone" in scores and "backbone" in best:
        share = (scores["backbone"] - best["untrained"]) / (best["backbone"] - best["untrained"])
    total = steps_per_epoch(metrics) * run.recipe.epochs
    alarms = replay_alarms(run) + [alarm for alarm in metrics.alarms if alarm.alarm == "not finite"]
    return {
        "few_shot": scores.get("backbone"),
        "gain_share": share and round(share, 3),
        "degraded": not is_healthy and (share is None or share < MIN_GAIN_SHARE),
        "most_correlated_views": max((row.intraclass_correlation or -1.0 for row in metrics.spectrum), default=None),
        "extremes": extremes([row for row in metrics.spectrum if row.step >= burn_in_end_of_log(metrics, run.recipe)]),
        "alarms": [
            {"share": round(each.step / total, 3), "alarm": each.alarm, "where": each.where, "cause": each.cause}
            for each in alarms
        ],
    }


def extremes(rows: list[SpectrumRow]) -> dict[str, Any]:
    """Return the values closest to each threshold of these rows."""
    correlations = [row.intraclass_correlation for row in rows if row.intraclass_correlation is not None]
    result: dict[str, Any] = {"intraclass_correlation": min(correlations, default=None)}
    for where in ("backbone", "projector") if rows else ():
        metrics = [getattr(row, where) for row in rows]
        ranks = [m.effective_rank for m in metrics]
        measured = metrics + [row.full_metrics(where) for row in rows]  # the last row also on more images
        shares = [rank / top for rank, top in zip(ranks, accumulate(ranks, max), strict=True) if top]
        result[where] = {
            "effective_rank": min(m.effective_rank for m in measured),
            "rank_share": min(shares, default=None),
            "relative_variance": min(m.relative_variance for m in measured),
            "collapsed_share": max(collapsed_share(m.collapsed_dimensions, m.dimensions, m.samples) for m in measured),
        }
    return result


def count(rows: list[dict[str, Any]], kinds: Failures) -> Iterator[dict[str, Any]]:
    """Yield one row per kind: numbers of runs, degraded runs, detected runs, runs with the right cause (None: not
    known), and other runs with an alarm.
    """
    for kind, (causes, _) in kinds.items():
        runs = [row for row in rows if row["kind"] == kind]
        detected = [row for row in runs if row["degraded"] and row["alarms"]]
        first = [row["alarms"][0]["share"] for row in detected]
        yield {
            "kind": kind,
            "runs": len(runs),
            "degraded": sum(row["degraded"] for row in runs),
            "detected": len(detected),
            "right_cause": sum(any(alarm["cause"] in causes for alarm in row["alarms"]) for row in detected)
            if causes
            else None,
            "median_share": statistics.median(first) if first else None,
            "others_with_alarm": sum(bool(row["alarms"]) for row in runs if not row["degraded"]),
        }


if __name__ == "__main__":
    studies.run(measure, "alarm")
