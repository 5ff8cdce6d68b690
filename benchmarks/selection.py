"""Compare the ranking of runs by label-free metrics with that by a linear probe: Spearman's ρ over many runs, with
bootstrap intervals.

    python benchmarks/selection.py RUNS… --across "healthy-*"
    python benchmarks/selection.py RUNS… --images PATH/TO/cifar10 --across "*-seed[0-9]" --out
    benchmarks/results/selection-cifar10.json
    python benchmarks/selection.py RUNS… --lengths       # for runs that differ in length

Two accuracies on held-out images are the reference: of a linear probe at the optimum, and of logistic regression with
two labels per class. The metrics use no labels, only the representations and embeddings of the training images, and
views of some of them. LiDAR has its
published setting: 1,000 images as surrogate classes, 50 views of each, δ = 10⁻⁴ (Thilak et al. 2024). Other measures of
views take the
first two views of these images. The view distribution is the same for all runs: the most frequent one. `--across`
selects the runs that differ only in objective and seed. For pairs of runs of one objective whose linear accuracies
differ by two points or more, the script counts how often a measure prefers the better run. Writes
`results/selection.json`, which contains names of runs but no paths. With `--keep`, the runs that this file contains are
not measured again; `earlier` in the file has the environments of their measurements.

With `--lengths`, runs are compared only with runs whose recipes are equal except for the number of epochs. For each
pair, a measure is right if it prefers the run with the higher accuracy. The measures are the last ones in the log of
the runs, not measured again. Also lists the share of the decrease of the held-out loss in the last quarter of a run,
with the gain in accuracy of a run of twice the length. Writes `results/lengths.json`.
"""

import argparse
import fnmatch
import functools
import json
import math
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import rankdata

from fullrank.errors import UserError
from fullrank.evaluation import evaluate_backbone, extract_features, few_shot, linear_probe, standardize
from fullrank.evaluation.cluster_learnability import cluster_learnability
from fullrank.evaluation.graph_stability import graph_stability
from fullrank.evaluation.intrinsic_dimension import mst_dimension, two_nn_dimension
from fullrank.images import MemoryImages, Reading, load_images, train_and_test
from fullrank.models import Model, load_run
from fullrank.recipes import to_dict
from fullrank.recipes.assembling import build_transform
from fullrank.report import read_run_summary
from fullrank.report.measures import last_quarter_share
from fullrank.run import Run, write_json
from fullrank.run.environment import platform_info
from fullrank.run.spectrum_evaluation import intraclass_correlation
from fullrank.spectrum import METRICS, Spectrum, alignment, compute_metrics, lidar, uniformity
from fullrank.views import ViewConfig

LIDAR_IMAGES, VIEWS = (
    1000,
    50,
)  # the published setting of LiDAR; alignment and other measures of two views use the first two
DIMENSION_IMAGES = 2000  # for the intrinsic dimensions and cluster learnability
CLEAR = 0.02  # minimum difference of two linear accuracies for a clear pair
RESAMPLES = 2000
MIN_RUNS = 6  # minimum number of runs for a correlation
PROBES = {"linear": "linear (full batch)", "few": "linear, 2 labels per class"}
LESS_IS_BETTER = (
    *("condition number", "condition number at 14", "collapsed dimensions", "|α-ReQ − 1|", "alignment", "uniformity"),
    "IdEst",  # the representations with the higher accuracy have the lower dimension
)
NOISE = (0.0, 0.1, 0.3, 1.0)  # standard deviation of the noise, relative to that of the features


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument(
        "--across", default="*", help="pattern for the names of the runs that differ only in objective and seed"
    )
    parser.add_argument("--images", help="source of the images, if it has moved since the runs")
    parser.add_argument(
        "--keep", action="store_true", help="keep the runs that the file of results contains, and measure the others"
    )
    parser.add_argument(
        "--lengths", action="store_true", help="compare runs of different length by the measures in their logs"
    )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    out = options.out or Path(__file__).parent / "results" / ("lengths.json" if options.lengths else "selection.json")
    if options.lengths:
        result = compare_lengths({path.name: path for path in sorted(options.runs)})
        write_json(out, to_json(result))
        show_lengths(result)
        return
    models, left_out = {}, {}
    for path in sorted(options.runs):
        try:
            models[path.name] = load_run(path)
        except UserError as error:
            left_out[path.name] = "no checkpoint" if "checkpoint" in str(error) else str(error)
    views = Counter(model.recipe.views for model in models.values()).most_common(1)[0][0]
    settings = {
        "views": repr(views),
        "lidar": {"images": LIDAR_IMAGES, "views": VIEWS, "delta": 1e-4},
        "dimension images": DIMENSION_IMAGES,
        "clear": CLEAR,
        "resamples": RESAMPLES,
        "interval": "95 % of bootstrap resamples of runs",
    }
    kept, earlier = read_results(out, settings) if options.keep else ({}, [])
    results = {name: run for name, run in kept.items() if name in models}
    for name, model in models.items():
        if name in results:
            continue
        try:
            results[name] = evaluate_run(model, views, options.images)
        except UserError as error:
            left_out[name] = str(error)
            continue
        except KeyboardInterrupt:  # Ctrl-C keeps what was measured
            left_out |= dict.fromkeys(models.keys() - results.keys(), "stopped")
            break
        print(name, results[name]["accuracy"], flush=True)
    results = dict(sorted(results.items()))
    first = next(name for name in results if fnmatch.fnmatch(name, options.across))
    result = {
        "runs": results,
        "left_out": left_out,
        "across": options.across,
        "correlations": correlations(with_clid(results), options.across),
        "pairs": count_clear_pairs(with_clid(results)),
        "noise": {"run": first, "rows": with_noise(models[first], options.images)},
        "settings": settings,
        "environment": platform_info()
        | {"command": f"selection.py RUNS --across {options.across}"},  # the paths of the runs say nothing
        "earlier": earlier,
    }
    write_json(out, to_json(result))
    show(result)


def read_results(path: Path, settings: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the runs of a file of results, and the environments in which they were measured. None stands for an
    infinite number.

    Raises:
        SystemExit: the runs were measured with other settings.
    """
    result = json.loads(path.read_text())
    if changed := [name for name, value in settings.items() if result["settings"].get(name, value) != value]:
        raise SystemExit(f"{path} was measured with other settings ({', '.join(changed)}); leave out --keep")
    runs = result["runs"]
    for run in runs.values():
        run["measures"] = {measure: math.inf if value is None else value for measure, value in run["measures"].items()}
    return runs, [*result.get("earlier", []), result["environment"]]


def evaluate_run(model: Model, views: tuple[ViewConfig, ...], source: str | None) -> dict[str, Any]:
    """Return the accuracies and all label-free metrics of one run."""
    train, test = images_of(model, source)
    scores = evaluate_backbone(
        model.backbone, None, model.preprocess, train, test, probes=("linear", "few-shot"), baselines=False
    ).scores
    accuracy = {
        probe: next(score.accuracy for score in scores if score.probe == name) for probe, name in PROBES.items()
    }
    R = extract_features(model.backbone, train, model.preprocess).X
    no_projector = not len(list(model.projector.children()))
    views_R = representations_of_views(model, train, views)
    chosen = torch.randperm(len(R), generator=torch.Generator().manual_seed(0))[:DIMENSION_IMAGES]
    metrics = {}
    parts = {"backbone": torch.nn.Identity()} | ({} if no_projector else {"projector": model.projector})
    for part, project in parts.items():
        with torch.inference_mode():
            Z, X = project(R), project(views_R.flatten(0, 1)).unflatten(0, views_R.shape[:2])
            measured = metrics_of(Spectrum.from_embeddings(Z), X) | graph_metrics(Z[chosen], X)
        metrics |= {f"{part}: {name}": value for name, value in measured.items() if not math.isnan(value)}
    return {"objective": model.recipe.objective, "accuracy": accuracy, "measures": metrics}


def compare_lengths(paths: dict[str, Path]) -> dict[str, Any]:
    """Return the runs, how often each logged measure prefers the better run of a pair, and what twice the length
    gained."""
    runs: dict[str, dict[str, Any]] = {}
    for name, path in paths.items():
        model = load_run(path)
        train, test = images_of(model, None)
        scores = evaluate_backbone(
            model.backbone, None, model.preprocess, train, test, probes=("linear", "few-shot"), baselines=False
        ).scores
        rest = {key: value for key, value in to_dict(model.recipe).items() if key not in ("epochs", "name")}
        last, summary = Run(path).metrics.spectrum[-1], read_run_summary(path)
        runs[name] = {
            "objective": model.recipe.objective,
            "seed": model.recipe.seed,
            "epochs": model.recipe.epochs,
            "accuracy": {
                probe: next(score.accuracy for score in scores if score.probe == wanted)
                for probe, wanted in PROBES.items()
            },
            "measures": {
                "effective rank, backbone": last.backbone.effective_rank,
                "effective rank, projector": last.projector.effective_rank,
                "agreement of the views": last.intraclass_correlation,
                "held-out loss": last.held_out_loss,
                "online accuracy": last.probe_accuracy,
            },
            "last quarter": last_quarter_share(summary),
            "group": json.dumps(rest, sort_keys=True),
        }
        print(name, runs[name]["accuracy"], runs[name]["measures"], flush=True)
    pairs = [
        (runs[a], runs[b])
        for a in runs
        for b in runs
        if runs[a]["epochs"] < runs[b]["epochs"] and runs[a]["group"] == runs[b]["group"]
    ]
    right = {
        measure: {probe: count_right(pairs, measure, probe) for probe in PROBES}
        for measure in next(iter(runs.values()))["measures"]
    }
    doubled = [
        {key: shorter[key] for key in ("objective", "seed", "epochs", "last quarter")}
        | {f"gain, {probe}": longer["accuracy"][probe] - shorter["accuracy"][probe] for probe in PROBES}
        for shorter, longer in pairs
        if longer["epochs"] == 2 * shorter["epochs"]
    ]
    listed = {name: {key: value for key, value in run.items() if key != "group"} for name, run in runs.items()}
    environment = platform_info() | {"command": "selection.py RUNS --lengths"}  # the paths of the runs say nothing
    return {"runs": listed, "right": right, "doubled": doubled, "environment": environment}


def count_right(pairs: list[tuple[dict[str, Any], dict[str, Any]]], measure: str, probe: str) -> dict[str, int]:
    """Return in how many of the pairs the measure prefers the run with the higher accuracy; pairs of equal accuracy do
    not count."""
    sign = -1 if measure == "held-out loss" else 1
    decided = [(a, b) for a, b in pairs if a["accuracy"][probe] != b["accuracy"][probe]]
    right = [
        (sign * (b["measures"][measure] - a["measures"][measure]) > 0) == (b["accuracy"][probe] > a["accuracy"][probe])
        for a, b in decided
    ]
    return {"right": sum(right), "pairs": len(decided)}


def show_lengths(result: dict[str, Any]) -> None:
    for measure, counts in result["right"].items():
        print(f"{measure:28}", *(f"{probe} {count['right']} of {count['pairs']}" for probe, count in counts.items()))
    for row in result["doubled"]:
        print(row)


def images_of(model: Model, source: str | None) -> tuple[MemoryImages, MemoryImages]:
    """Return the training images and the held-out images of a run."""
    data = model.recipe.data
    return read_images(source or data.source, data.reading, model.recipe.split_seed, data.subset, data.channels)


@functools.cache
def read_images(
    source: str, reading: Reading, seed: int, subset: int, channels: int
) -> tuple[MemoryImages, MemoryImages]:
    """Return the images of a source in memory, read once for all runs."""
    splits = train_and_test(source, reading, seed=seed, subset=subset)
    loaded = [load_images(images, channels=channels) for images in (splits.train, splits.test)]
    return loaded[0], loaded[1]


@torch.inference_mode()
def representations_of_views(model: Model, images: MemoryImages, views: tuple[ViewConfig, ...]) -> torch.Tensor:
    """Return representations (n, q, D_b) of q views of each image."""
    make, pixels = (
        build_transform(type(model.recipe)(views=views, data=model.recipe.data)),
        images.pixels[:LIDAR_IMAGES],
    )
    drawn = (make(pixels, make.make_params(seed, 0, len(pixels)))[0] for seed in range(VIEWS // 2))
    return torch.stack(
        [torch.cat([model.backbone(part) for part in view.split(512)]) for pair in drawn for view in pair], dim=1
    )


def graph_metrics(Z: torch.Tensor, X: torch.Tensor) -> dict[str, float]:
    """Return the measures of the neighbours of embeddings Z (n, D), and of views X (n, q, D)."""
    points = Z.numpy()
    return {
        "kNN-graph stability": graph_stability(X[:, 0], X[:, 1]),
        "agreement of the views": intraclass_correlation(X[:, :2].transpose(0, 1)) or 0.0,
        "IdEst": mst_dimension(points),
        "TwoNN dimension": two_nn_dimension(points),
        "cluster learnability": cluster_learnability(points),
    }


def with_clid(results: dict[str, Any]) -> dict[str, Any]:
    """Return the runs with CLID: cluster learnability plus TwoNN dimension, each standardised over the runs."""
    parts = {name: dict(run["measures"]) for name, run in results.items()}
    for location in ("backbone", "projector"):
        pair = [f"{location}: {measure}" for measure in ("cluster learnability", "TwoNN dimension")]
        known = [name for name in parts if all(key in parts[name] and np.isfinite(parts[name][key]) for key in pair)]
        columns = [np.array([parts[name][key] for name in known]) for key in pair]
        scores = sum((column - column.mean()) / max(column.std(), 1e-12) for column in columns) if known else ()
        for name, score in zip(known, scores, strict=True):
            parts[name][f"{location}: CLID"] = float(score)
    return {name: run | {"measures": parts[name]} for name, run in results.items()}


def count_clear_pairs(results: dict[str, Any]) -> dict[str, dict[str, int]]:
    """Return for each measure how many of the clear pairs of runs of one objective it orders as the linear probe does;
    half for ties."""
    runs = list(results.values())
    counts: dict[str, dict[str, Any]] = {}
    for metric in dict.fromkeys(metric for run in runs for metric in run["measures"]):
        right = [
            float(
                0.5
                + 0.5
                * np.sign(
                    sign_corrected(metric, better["measures"][metric])
                    - sign_corrected(metric, worse["measures"][metric])
                )
            )
            for better in runs
            for worse in runs
            if better["objective"] == worse["objective"]
            and better["accuracy"]["linear"] - worse["accuracy"]["linear"] >= CLEAR
            and metric in better["measures"]
            and metric in worse["measures"]
        ]
        right = [value for value in right if np.isfinite(value)]
        counts[metric] = {"right": sum(right), "pairs": len(right)}
    return counts


def metrics_of(spectrum: Spectrum, X: torch.Tensor) -> dict[str, float]:
    """Return every metric of a spectrum, and of views X (n, q, D)."""
    metrics = {METRICS[key].name: metric.value for key, metric in compute_metrics(spectrum).items()}
    metrics["|α-ReQ − 1|"] = abs(metrics["α-ReQ"] - 1)
    deviation = X.flatten(0, 1).std(0).mean()
    return metrics | {
        "alignment": alignment(X[:, 0], X[:, 1]),
        "uniformity": uniformity(X[:, 0]),
        "LiDAR": lidar(X),
        "LiDAR, unit deviation": lidar(X / deviation)
        if deviation > 0
        else 0.0,  # δ is absolute, and the scale depends on the objective
    }


def correlations(results: dict[str, Any], across: str) -> dict[str, Any]:
    """Return ρ of each metric with each accuracy, for all runs, for the runs of `across`, and for each objective with
    enough runs."""
    objectives = {name: run["objective"] for name, run in results.items()}
    groups = {"all": list(results), "across objectives": [name for name in results if fnmatch.fnmatch(name, across)]}
    for objective in dict.fromkeys(objectives.values()):
        groups[f"within {objective}"] = [name for name in results if objectives[name] == objective]
    result = {}
    for group, names in groups.items():
        if len(names) < MIN_RUNS:
            continue
        rows: dict[str, Any] = {}
        for metric in dict.fromkeys(metric for name in names for metric in results[name]["measures"]):
            known = [name for name in names if metric in results[name]["measures"]]
            if len(known) >= MIN_RUNS:
                x = np.array([sign_corrected(metric, results[name]["measures"][metric]) for name in known])
                rows[metric] = {"n": len(known)} | {
                    probe: rank_correlation(x, [results[name]["accuracy"][probe] for name in known]) for probe in PROBES
                }
        result[group] = rows
    return result


def sign_corrected(metric: str, value: float) -> float:
    """Return the metric with its sign changed if less is better."""
    return -value if metric.split(": ")[1] in LESS_IS_BETTER else value


def rank_correlation(x: np.ndarray, accuracies: list[float]) -> dict[str, Any]:
    """Return Spearman's ρ with a bootstrap interval, and the regret: the best accuracy minus that of the run with the
    best metric."""
    y = np.array(accuracies)
    resampled = np.random.default_rng(0).integers(len(y), size=(RESAMPLES, len(y)))
    resampled_rho = spearman(x[resampled], y[resampled])
    low, high = np.nanquantile(resampled_rho, (0.025, 0.975)) if np.isfinite(resampled_rho).any() else (np.nan, np.nan)
    rho = spearman(x[None], y[None])[0]
    return {
        "rho": rounded(rho),
        "interval": [rounded(low), rounded(high)],
        "regret": rounded(y.max() - y[x == x.max()].mean()),  # for ties, the mean
    }


def spearman(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return Spearman's ρ of each row, with mean ranks for ties; NaN if x or y is constant."""
    a, b = (rankdata(values, axis=1) for values in (x, y))
    a, b = (ranks - ranks.mean(1, keepdims=True) for ranks in (a, b))
    with np.errstate(invalid="ignore"):
        return (a * b).sum(1) / np.sqrt((a**2).sum(1) * (b**2).sum(1))


def rounded(value: float) -> float | None:
    return round(float(value), 4) if np.isfinite(value) else None


def to_json(value: Any) -> Any:
    """Return a JSON value: numbers have six digits, and infinite numbers become None."""
    if isinstance(value, dict):
        return {key: to_json(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [to_json(entry) for entry in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if np.isfinite(value) else None
    return value


def with_noise(model: Model, source: str | None) -> list[dict[str, float]]:
    """Return ranks and accuracies of one run with white noise on its features."""
    train, test = (extract_features(model.backbone, images, model.preprocess) for images in images_of(model, source))
    generator = torch.Generator().manual_seed(0)
    rows = []
    for noise in NOISE:
        scale = noise * train.X.std(0).square().mean().sqrt()
        X, X_test = (half.X + scale * torch.randn(half.X.shape, generator=generator) for half in (train, test))
        spectrum = Spectrum.from_embeddings(X)
        X, X_test = standardize(X, X_test)
        rows.append(
            {
                "noise": noise,
                "RankMe": spectrum.rank_me(),
                "effective rank": spectrum.effective_rank(),
                "participation ratio": spectrum.participation_ratio(),
                "linear": linear_probe(X, train.labels, X_test, test.labels).accuracy,
                "few": few_shot(X, train.labels, X_test, test.labels).mean,
            }
        )
    return rows


def show(result: dict[str, Any]) -> None:
    for group, rows in result["correlations"].items():
        print(f"\n{group}")
        for metric, row in sorted(rows.items(), key=lambda item: -(item[1]["linear"]["rho"] or -2)):
            print(
                f"{metric:46} n = {row['n']:3}",
                *(f"{probe} {row[probe]['rho']} {row[probe]['interval']} {row[probe]['regret']}" for probe in PROBES),
            )
    print("\nclear pairs of one objective in the order of the linear probe")
    for metric, count in sorted(result["pairs"].items(), key=lambda item: -item[1]["right"] / max(item[1]["pairs"], 1)):
        print(f"{metric:46} {count['right']:g} of {count['pairs']}")
    accuracies = [run["accuracy"]["linear"] for run in result["runs"].values()]
    print(
        f"\n{len(accuracies)} runs, linear probe {min(accuracies):.3f} to {max(accuracies):.3f}, median {statistics.median(accuracies):.3f}"
    )


if __name__ == "__main__":
    main()
