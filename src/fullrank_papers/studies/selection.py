"""Which label-free measure ranks runs as a linear probe does: Spearman's ρ over many runs, and clear pairs of runs.

    python -m fullrank_papers.studies.selection --runs runs/study/* --across "*-seed[0-9]"

Two accuracies on held-out images are the reference: of a linear probe, and of logistic regression with two labels per
class. The measures use no labels, only the features of the training images and of views of some of them. LiDAR has its
published setting: 1,000 images as surrogate classes, 50 views of each, δ = 10⁻⁴ (Thilak et al. 2024). Other measures of
views take the first two views. The view distribution is the same for all runs: the most frequent one. `--across`
selects the runs that differ only in objective and seed. A pair of runs of one objective is clear if their linear
accuracies differ by two points or more. The stored results, measured at commit c74604b, have more measures, which
ordered the runs worse.
"""

import fnmatch
import functools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import bootstrap, spearmanr

from fullrank.evaluation import accuracy, extract_features, few_shot, linear_probe, standardize
from fullrank.evaluation.choice import graph_stability
from fullrank.images import MemoryImages, as_images, load_images
from fullrank.models import Model, load_run
from fullrank.recipes import DataConfig
from fullrank.recipes.assembling import build_transform
from fullrank.spectrum import METRICS, Spectrum, alignment, compute_metrics, intraclass_correlation, lidar, uniformity
from fullrank.sweep.cell import split
from fullrank.views import MultiViewTransform, ViewConfig
from fullrank_papers import studies

LIDAR_IMAGES, VIEWS = 1000, 50
CLEAR = 0.02
MIN_RUNS = 6  # for a correlation
LESS_IS_BETTER = ("condition number", "collapsed dimensions", "|α-ReQ − 1|", "alignment", "uniformity")
Runs = dict[str, dict[str, Any]]


def measure(*, runs: list[Path], across: str = "*", images: str | None = None) -> dict[str, Any]:
    """Measure runs and correlate the measures with the accuracies.

    Args:
        runs: run directories.
        across: pattern for the names of the runs that differ only in objective and seed.
        images: source of the images, if it has moved since the runs.
    """
    models = {path.name: load_run(path) for path in sorted(runs)}
    views = Counter(model.recipe.views for model in models.values() if model.recipe).most_common(1)[0][0]
    found: Runs = {}
    for name, model in models.items():
        found[name] = measure_run(model, views, images)
        print(name, found[name]["accuracy"], flush=True)
    groups = {"all": list(found), "across objectives": fnmatch.filter(found, across)}
    correlations = {group: correlate(found, names) for group, names in groups.items() if len(names) >= MIN_RUNS}
    return {"runs": found, "across": across, "correlations": correlations, "pairs": count_clear_pairs(found)}


def measure_run(model: Model, views: tuple[ViewConfig, ...], source: str | None) -> dict[str, Any]:
    """Return the accuracies and all label-free measures of one run, at the backbone and behind the projector."""
    recipe, projector = model.recipe, model.projector
    assert recipe is not None  # of a run
    assert projector is not None
    data = replace(recipe.data, source=source or recipe.data.source)
    images, test_images = read_images(data, recipe.split_seed)
    train, test = (extract_features(model.backbone, each, model.preprocess) for each in (images, test_images))
    X, X_test = standardize(train.X, test.X)
    few = [accuracy(each.logits, test.labels) for each in few_shot(X, train.labels, X_test)]
    scores = {"linear": accuracy(linear_probe(X, train.labels, X_test).logits, test.labels), "few": float(np.mean(few))}
    transform = build_transform(replace(recipe, views=views))
    views_R = features_of_views(model, images, transform)
    measures: dict[str, float] = {}
    for part, project in (("backbone", torch.nn.Identity()), ("projector", projector)):
        if part == "backbone" or list(projector.children()):
            with torch.inference_mode():
                Z, V = project(train.X), project(views_R.flatten(0, 1)).unflatten(0, views_R.shape[:2])
            measures |= {f"{part}: {name}": value for name, value in measures_of(Z, V).items() if not math.isnan(value)}
    return {"objective": recipe.objective, "accuracy": scores, "measures": measures}


@functools.cache
def read_images(data: DataConfig, seed: int) -> tuple[MemoryImages, MemoryImages]:
    """Return the training and the held-out images of a run in memory, read once for all runs."""
    splits = split(data, seed)
    train, test = (load_images(as_images(each), channels=data.channels) for each in (splits.train, splits.test))
    return train, test


@torch.inference_mode()
def features_of_views(model: Model, images: MemoryImages, make: MultiViewTransform) -> torch.Tensor:
    """Return features (n, q, D_b) of q views of each image."""
    pixels = images.pixels[:LIDAR_IMAGES]
    pairs = (make(pixels, make.make_params(seed, 0, len(pixels)))[0] for seed in range(VIEWS // 2))
    batches = (view.split(512) for pair in pairs for view in pair)
    return torch.stack([torch.cat([model.backbone(part) for part in parts]) for parts in batches], dim=1)


def measures_of(Z: torch.Tensor, V: torch.Tensor) -> dict[str, float]:
    """Return every measure of embeddings Z (n, D) and of views V (n, q, D)."""
    metrics = {METRICS[key].name: metric.value for key, metric in compute_metrics(Spectrum.from_embeddings(Z)).items()}
    return metrics | {
        "|α-ReQ − 1|": abs(metrics["α-ReQ"] - 1),
        "alignment": alignment(V[:, 0], V[:, 1]),
        "uniformity": uniformity(V[:, 0]),
        "LiDAR": lidar(V),
        "kNN-graph stability": graph_stability(V[:, 0], V[:, 1]),
        "agreement of the views": intraclass_correlation(V[:, :2].transpose(0, 1)) or 0.0,
    }


def signed(run: dict[str, Any], measure: str) -> float:
    """Return a measure of a run, with its sign changed if less is better."""
    return run["measures"][measure] * (-1 if measure.split(": ")[1] in LESS_IS_BETTER else 1)


def correlate(runs: Runs, names: Sequence[str]) -> dict[str, Any]:
    """Return Spearman's ρ of each measure with each accuracy, with a bootstrap interval over runs, and the regret: the
    best accuracy minus that of the run with the best measure.
    """
    rows: dict[str, Any] = {}
    for measure in dict.fromkeys(measure for name in names for measure in runs[name]["measures"]):
        known = [runs[name] for name in names if measure in runs[name]["measures"]]
        x, rows[measure] = np.array([signed(run, measure) for run in known]), {"n": len(known)}
        for probe in known[0]["accuracy"] if len(known) >= MIN_RUNS and np.ptp(x) > 0 else ():
            y = np.array([run["accuracy"][probe] for run in known])
            options: dict[str, Any] = {"n_resamples": 2000, "vectorized": False, "rng": 0, "method": "percentile"}
            interval = bootstrap((x, y), spearman, paired=True, **options)
            found = {"rho": spearman(x, y), "interval": [float(bound) for bound in interval.confidence_interval]}
            rows[measure][probe] = found | {"regret": float(y.max() - y[x == x.max()].mean())}
    return rows


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    return float(spearmanr(x, y)[0])  # pyright: ignore[reportArgumentType]


def count_clear_pairs(runs: Runs) -> dict[str, dict[str, float]]:
    """Return for each measure how many clear pairs of runs of one objective it orders as the linear probe does; a tie
    counts half.
    """
    counts: dict[str, dict[str, float]] = {}
    for better in runs.values():
        for worse in runs.values():
            gap = better["accuracy"]["linear"] - worse["accuracy"]["linear"]
            if better["objective"] != worse["objective"] or gap < CLEAR:
                continue
            for measure in better["measures"].keys() & worse["measures"].keys():
                count = counts.setdefault(measure, {"right": 0.0, "pairs": 0})
                difference = signed(better, measure) - signed(worse, measure)
                count["right"] += 0.5 + 0.5 * float(np.sign(difference))
                count["pairs"] += 1
    return counts


if __name__ == "__main__":
    studies.run(measure, "selection")
