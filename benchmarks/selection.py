"""Which label-free measure ranks runs as a linear probe does: Spearman's ρ over the runs of a fleet, with bootstrap intervals.

    python benchmarks/selection.py RUNS… --across "healthy-*"

Every run is judged twice by its labels, on images that it has not seen: by the linear probe at its optimum, and by logistic regression
with two labels a class. The measures see no label: the spectra of backbone and projector on the images that the run was trained on,
and how several views of each lie together. Views are drawn from one distribution for all, the one that most runs were trained with.
`--across` names the runs that differ in their objective and seed alone. Writes `results/selection.json`, with the names of runs only.
"""

import argparse
import fnmatch
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import rankdata

from fullrank.errors import UserError
from fullrank.evaluation import evaluate, extract_features, few_shot, linear_probe, standardize
from fullrank.images import MemoryImages, load, train_and_test
from fullrank.loading import Model, load_run
from fullrank.recipes.assemble import build_transform
from fullrank.run import write_json
from fullrank.run.environment import platform_info
from fullrank.spectrum import Spectrum, alignment, lidar, readings, uniformity
from fullrank.views import ViewConfig

VIEWS = 8  # of each image, for LiDAR; the first two are those of alignment
RESAMPLES = 2000
LEAST = 6  # runs of one objective, below which no correlation is taken
PROBES = {"linear": "linear (full batch)", "few": "linear, 2 labels a class"}
LESS_IS_BETTER = ("condition number", "condition number at 14", "dead dimensions", "|α-ReQ − 1|", "alignment", "uniformity")
NOISE = (0.0, 0.1, 0.3, 1.0)  # standard deviation, in those of the features


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--across", default="*", help="names of the runs that differ in objective and seed alone, as a pattern")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "selection.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    models, left_out = {}, {}
    for path in sorted(options.runs):
        try:
            models[path.name] = load_run(path)
        except UserError as error:
            left_out[path.name] = "no checkpoint" if "checkpoint" in str(error) else str(error)
    views = Counter(model.recipe.views for model in models.values()).most_common(1)[0][0]
    judged = {}
    for name, model in models.items():
        try:
            judged[name] = judge(model, views)
        except UserError as error:
            left_out[name] = str(error)
            continue
        print(name, judged[name]["accuracy"], flush=True)
    first = next(name for name in judged if fnmatch.fnmatch(name, options.across))
    result = {
        "runs": judged,
        "left_out": left_out,
        "across": options.across,
        "correlations": correlations(judged, options.across),
        "noise": {"run": first, "rows": noisy(models[first])},
        "settings": {"views": VIEWS, "resamples": RESAMPLES, "interval": "95 % of bootstrap resamples of runs"},
        "environment": platform_info(),
    }
    write_json(options.out, tidy(result))
    show(result)


def judge(model: Model, views: tuple[ViewConfig, ...]) -> dict[str, Any]:
    """One run by its labels and by every label-free measure."""
    train, test = images_of(model)
    scores = evaluate(model.backbone, None, model.preprocess, train, test, probes=("linear", "few-shot"), baselines=False).scores
    accuracy = {probe: next(score.accuracy for score in scores if score.probe == name) for probe, name in PROBES.items()}
    R = extract_features(model.backbone, train, model.preprocess).X
    bare = not len(list(model.projector.children()))
    several = seen_from(model, train, views)
    measures = {}
    parts = {"backbone": torch.nn.Identity()} | ({} if bare else {"projector": model.projector})
    for part, project in parts.items():
        with torch.inference_mode():
            spectrum, X = Spectrum.from_embeddings(project(R)), project(several.flatten(0, 1)).unflatten(0, several.shape[:2])
        measures |= {f"{part}: {name}": value for name, value in measured(spectrum, X).items()}
    return {"objective": model.recipe.objective, "accuracy": accuracy, "measures": measures}


def images_of(model: Model) -> tuple[MemoryImages, MemoryImages]:
    """Images that the run was trained on, and those that it held out."""
    data = model.recipe.data
    splits = train_and_test(data.source, train=data.train, test=data.test, seed=model.recipe.seed)
    train, test = (load(images, channels=data.channels) for images in (splits.train, splits.test))
    return train, test


@torch.inference_mode()
def seen_from(model: Model, images: MemoryImages, views: tuple[ViewConfig, ...]) -> torch.Tensor:
    """Representations (n, q, D_b) of q views of each image."""
    make = build_transform(type(model.recipe)(views=views, data=model.recipe.data))
    drawn = [make(images.pixels, make.draw(seed, 0, len(images)))[0] for seed in range(VIEWS // 2)]
    return torch.stack([torch.cat([model.backbone(part) for part in view.split(512)]) for pair in drawn for view in pair], dim=1)


def measured(spectrum: Spectrum, X: torch.Tensor) -> dict[str, float]:
    """Every measure of a spectrum, and of views X (n, q, D)."""
    found = {name: reading.value for name, reading in readings(spectrum).items()}
    found["|α-ReQ − 1|"] = abs(found["α-ReQ"] - 1)
    deviation = X.flatten(0, 1).std(0).mean()
    return found | {
        "alignment": alignment(X[:, 0], X[:, 1]),
        "uniformity": uniformity(X[:, 0]),
        "LiDAR": lidar(X),
        "LiDAR, unit deviation": lidar(X / deviation) if deviation > 0 else 0.0,  # δ is absolute, and objectives differ in scale
    }


def correlations(judged: dict[str, Any], across: str) -> dict[str, Any]:
    """ρ of each measure with each accuracy, over all runs, over those of `across`, and within each objective with enough runs."""
    of = {name: run["objective"] for name, run in judged.items()}
    groups = {"all": list(judged), "across objectives": [name for name in judged if fnmatch.fnmatch(name, across)]}
    groups |= {f"within {objective}": [name for name in judged if of[name] == objective] for objective in dict.fromkeys(of.values())}
    result = {}
    for group, names in groups.items():
        if len(names) < LEAST:
            continue
        rows: dict[str, Any] = {}
        for measure in dict.fromkeys(measure for name in names for measure in judged[name]["measures"]):
            known = [name for name in names if measure in judged[name]["measures"]]
            if len(known) >= LEAST:
                x = np.array([oriented(measure, judged[name]["measures"][measure]) for name in known])
                rows[measure] = {"n": len(known)} | {
                    probe: intraclass_correlation(x, [judged[name]["accuracy"][probe] for name in known]) for probe in PROBES
                }
        result[group] = rows
    return result


def oriented(measure: str, value: float) -> float:
    """The measure, turned so that more ought to be better."""
    return -value if measure.split(": ")[1] in LESS_IS_BETTER else value


def intraclass_correlation(x: np.ndarray, accuracies: list[float]) -> dict[str, Any]:
    """Spearman's ρ with its interval, and what the run that the measure picks scores below the best one."""
    y = np.array(accuracies)
    resampled = np.random.default_rng(0).integers(len(y), size=(RESAMPLES, len(y)))
    found = spearman(x[resampled], y[resampled])
    low, high = np.nanquantile(found, (0.025, 0.975)) if np.isfinite(found).any() else (np.nan, np.nan)
    rho = spearman(x[None], y[None])[0]
    return {
        "rho": rounded(rho),
        "interval": [rounded(low), rounded(high)],
        "regret": rounded(y.max() - y[x == x.max()].mean()),  # of equals, their mean
    }


def spearman(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Spearman's ρ of each row, ties taking their mean rank; NaN where one of the two does not vary."""
    a, b = (rankdata(values, axis=1) for values in (x, y))
    a, b = (ranks - ranks.mean(1, keepdims=True) for ranks in (a, b))
    with np.errstate(invalid="ignore"):
        return (a * b).sum(1) / np.sqrt((a**2).sum(1) * (b**2).sum(1))


def rounded(value: float) -> float | None:
    return round(float(value), 4) if np.isfinite(value) else None


def tidy(value: Any) -> Any:
    """Six digits of every number, and None for what is infinite, as JSON has it."""
    if isinstance(value, dict):
        return {key: tidy(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [tidy(entry) for entry in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if np.isfinite(value) else None
    return value


def noisy(model: Model) -> list[dict[str, float]]:
    """What white noise on the features of one run does to its ranks and to its probe."""
    train, test = (extract_features(model.backbone, images, model.preprocess) for images in images_of(model))
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
        for measure, row in sorted(rows.items(), key=lambda item: -(item[1]["linear"]["rho"] or -2)):
            print(
                f"{measure:46} n = {row['n']:3}",
                *(f"{probe} {row[probe]['rho']} {row[probe]['interval']} {row[probe]['regret']}" for probe in PROBES),
            )
    accuracies = [run["accuracy"]["linear"] for run in result["runs"].values()]
    print(
        f"\n{len(accuracies)} runs, linear probe {min(accuracies):.3f} to {max(accuracies):.3f}, median {statistics.median(accuracies):.3f}"
    )


if __name__ == "__main__":
    main()
