"""`choose`: measure several models on the same images without labels, and rank them as far as the images allow."""

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from rich.console import Console, ConsoleOptions
from rich.table import Table
from rich.text import Text
from scipy.stats import kendalltau
from torch import Tensor

from fullrank.errors import UserError, printable
from fullrank.evaluation.bootstrap import interval, resample, units
from fullrank.evaluation.evaluate import Scoring, scorable_splits, score_networks
from fullrank.evaluation.features import Network, subset
from fullrank.evaluation.neighbours import open_parts
from fullrank.evaluation.outcomes import judge
from fullrank.evaluation.score import ACCURACY, Score
from fullrank.files import atomic_write
from fullrank.images import DecodeErrors, Images, MemoryImages
from fullrank.images.reading import Device, Reading
from fullrank.models import Model, load, resolve_device
from fullrank.models.features import preprocessed_batches, verify_frozen
from fullrank.models.model import HasPath, ModelLike, with_depth
from fullrank.models.model_images import Data
from fullrank.recipes.photos import build_view
from fullrank.spectrum import StreamingSpectrum, intraclass_correlation
from fullrank.spectrum.hypersphere import normalize_rows
from fullrank.views import MultiViewTransform, ViewConfig
from fullrank.views.config import CropConfig

LEAST = 64
"""Minimum number of images."""
MIN_VIEW = 32
"""A size of views at which the recipe for photos has no blur."""
HALVES = 50
"""Random halves of the images: a standard deviation of 50 values has a relative error of 10 %."""
ROUNDING = 1e-5
"""Relative difference of two values that rounding can cause."""
TIE = 1e-9
"""Cosine similarities of float32 features that differ by less are equal up to rounding."""


class Sample(NamedTuple):
    """The features of the same n images: of each image, and of two augmented views of it."""

    X: Float[Tensor, "n D"]
    first: Float[Tensor, "n D"]
    second: Float[Tensor, "n D"]


def graph_stability(X: Float[Tensor, "n D"], Y: Float[Tensor, "n D"], *, k: int = 10) -> float:
    """Return the mean share of the k nearest neighbours of an image that its two views have in common, in [0, 1].

        mean_i |N_X(i) ∩ N_Y(i)| / k

    X and Y are embeddings of two views of the same images. Neighbours are sought by cosine similarity among the
    embeddings of the same view. Independent graphs share k/(n − 1), so compare values of the same n and k. A network
    that knows only the colour of an image can be stable: the value does not say what is similar. Ties are broken at
    random for each image and each view, so a network whose embeddings are all equal has the value of independent
    graphs.

    Args:
        X: embeddings of one view of n images.
        Y: embeddings of another view.
        k: number of neighbours, less than n.

    Raises:
        UserError: the shapes differ, k is not between 1 and n − 1, or an embedding is not finite.

    Source: the overlap of neighbourhoods of Huh et al. 2024, The Platonic Representation Hypothesis (mutual k-nearest
    neighbours), there of two networks on one image, here of one network on two views.

    >>> X = torch.randn(20, 3)
    >>> graph_stability(X, 2 * X, k=5)
    1.0
    """
    if X.shape != Y.shape or not 1 <= k < len(X):
        shapes = f"X {tuple(X.shape)}, Y {tuple(Y.shape)}, k = {k}"
        raise UserError(f"got {shapes}, expected two views (n, D) of the same images, and 1 ≤ k < n")
    generator = torch.Generator().manual_seed(0)
    first, second = _nearest(X, k, generator), _nearest(Y, k, generator)
    return (first[:, :, None] == second[:, None, :]).any(2).double().mean().item()


def _nearest(X: Float[Tensor, "n D"], k: int, generator: torch.Generator) -> Tensor:
    """Return the indices (n, k) of the nearest other rows, with ties in a random order."""
    X, parts = normalize_rows(X), []
    for rows in torch.arange(len(X), device=X.device).split(2048):
        S = X[rows] @ X.mT
        S += TIE * torch.rand(S.shape, generator=generator, dtype=S.dtype).to(S.device)
        S[torch.arange(len(rows), device=X.device), rows] = -torch.inf
        parts.append(S.topk(k, dim=1).indices)
    return torch.cat(parts)


def _spectrum(X: Tensor) -> Any:
    streaming = StreamingSpectrum()
    streaming.update(X)
    return streaming.compute()


class Measure(NamedTuple):
    """A number that is computed from features without labels; higher is better."""

    name: str
    compute: Callable[[Sample], float]


MEASURES: dict[str, Measure] = {
    "graph_stability": Measure("kNN-graph stability", lambda s: graph_stability(s.first, s.second)),
    "agreement": Measure(
        "agreement of the views", lambda s: intraclass_correlation(torch.stack([s.first, s.second])) or 0.0
    ),
    "rank_me": Measure("RankMe", lambda s: _spectrum(s.X).rank_me()),
    "participation_ratio": Measure("participation ratio", lambda s: _spectrum(s.X).participation_ratio()),
}
"""The measures, by their key in tables and files. The first one decides; `docs/choose.md` says how well each ordered
runs
of known accuracy. LiDAR ordered them almost as well as graph stability, but needs 50 views of each image and more
images
than dimensions, so it is not among them."""
DECISIVE = next(iter(MEASURES))


@dataclass(frozen=True)
class Candidate:
    """One model: its measures on the images, and how they vary over random halves of the images.

    Attributes:
        values: Measure → value on all images.
        deviations: Measure → its value on each random half of the images minus the mean over the halves. The halves are
            the same for all models.
    """

    name: str
    dimensions: int
    values: dict[str, float]
    deviations: dict[str, Float[np.ndarray, " halves"]] = field(repr=False)

    def interval(self, measure: str) -> tuple[float, float]:
        """Return the 95 % interval of a measure."""
        half = margin(self.deviations[measure])
        return self.values[measure] - half, self.values[measure] + half


@dataclass(frozen=True)
class LabelledOrder:
    """The accuracies of the models on the same labelled test images, and how well the order without labels agrees.

    Attributes:
        scores: The accuracy of a linear probe and of kNN, for each model in order.
        best: The models that are not clearly less accurate than the most accurate one by the linear probe, the best
            first.
        tau: Kendall's τ of the decisive measure and the linear accuracy: the share of pairs of models in the same order
            minus that of pairs in the other order.
        low: Lower end of the 95 % interval of τ over test images and random halves of the images.
        chance: Probability of a τ at least as large if all orders are equally likely.
    """

    data: str
    scores: tuple[Score, ...]
    best: tuple[str, ...]
    tau: float
    low: float
    high: float
    chance: float


@dataclass(frozen=True)
class Choice:
    """The comparison of models on the same images. `print` of rich shows it, and `save` writes JSON or CSV.

    Attributes:
        images: Number of images that were measured.
        skipped: Names of the images that cannot be read.
    """

    source: str
    images: int
    candidates: tuple[Candidate, ...]
    labelled: LabelledOrder | None = None
    skipped: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """The names of the models."""
        return [candidate.name for candidate in self.candidates]

    def better(self, measure: str, a: int, b: int) -> bool:
        """Return whether model a is better than model b: the 95 % interval of the difference, on the same images and
        halves, does not contain 0. A difference that rounding can cause, a relative 10⁻⁵ of float32 features, is none.
        """
        first, second = self.candidates[a], self.candidates[b]
        half = margin(first.deviations[measure] - second.deviations[measure])
        rounding = ROUNDING * max(abs(first.values[measure]), abs(second.values[measure]))
        return first.values[measure] - second.values[measure] - half > rounding  # False for NaN

    def ranks(self, measure: str = DECISIVE) -> list[tuple[int, int]]:
        """Return the best and the worst rank that each model can have; models that are not told apart share ranks."""
        all_models = range(len(self.candidates))
        return [
            (
                1 + sum(self.better(measure, j, i) for j in all_models),
                len(all_models) - sum(self.better(measure, i, j) for j in all_models),
            )
            for i in all_models
        ]

    def order(self, measure: str = DECISIVE) -> list[int]:
        """Return the indices of the models, the best value first."""
        return sorted(range(len(self.candidates)), key=lambda i: -self.candidates[i].values[measure])

    @property
    def chosen(self) -> str | None:
        """The model that is better than every other by the decisive measure; None if there is no such model."""
        first, *others = self.order()
        return self.names[first] if all(self.better(DECISIVE, first, other) for other in others) else None

    @property
    def verdict(self) -> str:
        """One sentence: the chosen model, or the models that are tied; and whether the labels agree."""
        first, *others = self.order()
        what = f"{MEASURES[DECISIVE].name} ({self.candidates[first].values[DECISIVE]:.3g})"
        if self.chosen:
            text = f"{self.chosen} has the best {what}; the next is {self.names[others[0]]}."
        else:
            tied = ", ".join(self.names[i] for i in others if not self.better(DECISIVE, first, i))
            text = f"Undecided: by {what}, {self.names[first]} is not told apart from {tied}; more images may decide."
        if found := self.labelled:
            text += f" By the labels, the best are {', '.join(found.best)}; Kendall's τ is {found.tau:.2f} "
            text += f"[{found.low:.2f}, {found.high:.2f}]; of random orders, {found.chance:.0%} are as good."
        return text

    @property
    def remarks(self) -> list[str]:
        """What a reader of the verdict must know: measures that prefer another model, different dimensions, too few
        images.
        """
        remarks = []
        if self.chosen:
            leader = self.names.index(self.chosen)
            firsts = {key: self.order(key)[0] for key in MEASURES}
            against = [(MEASURES[key].name, i) for key, i in firsts.items() if self.better(key, i, leader)]
            remarks += [f"By {name}, {self.names[i]} is better." for name, i in against]
        dimensions = sorted({candidate.dimensions for candidate in self.candidates})
        if len(dimensions) > 1:
            span = f"between {dimensions[0]:,} and {dimensions[-1]:,} dimensions"
            remarks.append(f"The models have {span}, so their ranks are not comparable.")
        if self.images < 2 * dimensions[-1]:
            few = f"{self.images:,} images are few for {dimensions[-1]:,} dimensions"
            remarks.append(f"{few}: the ranks are too low, of all models.")
        return remarks

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each measure and model: model, dimensions, measure, value, low, high, best and worst
        rank.
        """
        ranks = {key: self.ranks(key) for key in MEASURES}
        return [
            {
                "model": each.name,
                "dimensions": each.dimensions,
                "measure": key,
                "value": each.values[key],
                "low": each.interval(key)[0],
                "high": each.interval(key)[1],
                "best_rank": ranks[key][i][0],
                "worst_rank": ranks[key][i][1],
            }
            for key in MEASURES
            for i, each in enumerate(self.candidates)
        ]

    def save(self, path: Path | str, *, overwrite: bool = False) -> None:
        """Write all numbers to FILE.json, or the rows to FILE.csv.

        Raises:
            UserError: the suffix is another one, the file exists, or it cannot be written.
        """
        suffix, rows = Path(path).suffix.lower(), self.rows()
        if suffix not in (".json", ".csv"):
            raise UserError(f"{path} ends in '{suffix}', expected .json or .csv")
        with atomic_write(Path(path), overwrite=overwrite) as draft, draft.open("w", newline="") as file:
            if suffix == ".csv":
                writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)
                return
            order = self.labelled
            labels = None if order is None else vars(order) | {"scores": [vars(score) for score in order.scores]}
            content = {"source": self.source, "images": self.images, "chosen": self.chosen, "verdict": self.verdict}
            content |= {"remarks": self.remarks, "measures": rows, "labelled": labels, "skipped": self.skipped}
            file.write(json.dumps(content, indent=2) + "\n")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Any]:
        accuracies = self.labelled.scores if self.labelled else ()
        probes = list(dict.fromkeys(score.name for score in accuracies))
        table = Table("model", "rank", *(measure.name for measure in MEASURES.values()), *probes)
        ranks = self.ranks()
        for i in self.order():
            low, high = ranks[i]
            cells = [f"{low}" if low == high else f"{low}–{high}"]
            for key in MEASURES:
                ends = self.candidates[i].interval(key)
                cells.append(f"{self.candidates[i].values[key]:.3g}\n[{ends[0]:.3g} {ends[1]:.3g}]")
            own = [score for score in accuracies if score.features == self.names[i]]
            cells += [f"{100 * s.value:.1f} %\n[{100 * (s.low or 0):.1f} {100 * (s.high or 0):.1f}]" for s in own]
            table.add_row(Text(printable(self.names[i]), overflow="fold"), *cells)
        yield Text(printable(f"{self.images:,} images of {self.source}"))
        yield table
        for line in (self.verdict, *self.remarks):
            yield Text(printable(line))


def margin(deviation: Float[np.ndarray, " halves"]) -> float:
    """Return half the width of the 95 % interval."""
    return 1.96 * float(deviation.std(ddof=1))


def random_halves(groups: Int64[np.ndarray, " n"], *, seed: int = 0) -> Iterator[Bool[np.ndarray, " n"]]:
    """Yield random halves of n images without replacement; images of one group stay together.

    For statistics that are nearly linear in the distribution of the images, the value of a random half varies around
    that of all images as the latter varies around its expectation, because (1 − ½) / (½ n) = 1/n: the jackknife that
    deletes half of the images. A bootstrap draws an image twice, which then is its own nearest neighbour, so it is not
    used. Of an odd number of groups, the larger and the smaller half take turns.

    Source: Shao and Wu 1989, A General Theory for Jackknife Variance Estimation.
    """
    unit, generator = units(groups), np.random.default_rng(seed)
    count = int(unit.max()) + 1
    for number in range(HALVES):
        chosen = np.zeros(count, bool)
        chosen[generator.permutation(count)[: (count + number % 2) // 2]] = True
        yield chosen[unit]


def choose(
    models: Sequence[ModelLike],
    data: Data | Mapping[str, Data] | None = None,
    *,
    labelled: Data | None = None,
    images: int = 1000,
    split: str | None = None,
    seed: int = 0,
    reading: Reading | None = None,
    device: Device | None = None,
    notify: Callable[[str], Any] = lambda line: None,
) -> Choice:
    """Rank models on images without labels by the measures of `MEASURES`, with 95 % intervals over the images.

    All models receive the same images and the same augmented views, at the size and with the normalisation of each
    model. A model is chosen only if it is better than every other by the decisive measure, with an interval of the
    difference that does not contain 0.

    Args:
        models: two or more MODELs (see `load`), runs, or loaded models.
        data: source of the images, opened images, or a dictionary of parts; by default the source of the first model if
            that is a run, or the labelled images.
        labelled: labelled images, with which the order is compared. The ranking does not use the labels.
        images: number of images, chosen at random from all splits, at least 64.
        split: name of the split to choose from; by default all.
        seed: seed of the sample, of the views and of the halves.
        reading: how the images are read, labelled ones with their columns; by default as the first run read them.
        device: where the networks run.
        notify: receives a short description of each step.

    Raises:
        UserError: there are fewer than two models or 64 images, a model is given twice or does not exist, the features
            are not finite, the labelled images cannot be scored, or an argument is wrong.

    >>> generator = torch.Generator().manual_seed(0)
    >>> noise = torch.randint(0, 256, (64, 3, 8, 8), generator=generator, dtype=torch.uint8)
    >>> choose(["timm-untrained:test_resnet", "timm-untrained:test_vit"], noise).names
    ['timm-untrained:test_resnet', 'timm-untrained:test_vit']
    """
    if isinstance(models, str | Path | HasPath | Model) or len(models) < 2:
        raise UserError("choose compares models; give two or more: choose(['runs/a', 'runs/b'], data)")
    if images < LEAST:
        raise UserError(f"images is {images}, expected at least {LEAST}")
    device, loaded = device or Device(), [load(each) for each in models]
    first, names = loaded[0], [model.name for model in loaded]
    if twice := {name for name in names if names.count(name) > 1}:
        raise UserError(f"model '{twice.pop()}' is given twice; give each model once")
    if data is None and first.recipe is None:
        data = labelled
    source, parts = open_parts(first, data, split, reading if data is labelled or labelled is None else None)
    chosen, scoring = _sample(parts, images, seed), Scoring(probes=("linear", "knn"), seed=seed)
    scorable = None if labelled is None else scorable_splits(first, labelled, reading, scoring, several=False)
    errors, candidates = DecodeErrors(max_error_fraction=device.max_error_fraction), []
    for i, model in enumerate(loaded):
        loaded[i] = model = with_depth(model, *chosen.values())
        notify(f"{model.name}: embedding {sum(map(len, chosen.values())):,} images and two views of each")
        sample, groups = _embed_views(model, chosen, device, errors, separate=isinstance(data, Mapping), seed=seed)
        halves = list(random_halves(groups, seed=seed))
        if len(sample.X) < LEAST or min(half.sum() for half in halves) < LEAST // 4:
            raise UserError(
                f"{source} has {len(sample.X)} readable images, in few groups, expected at least {LEAST}; give more"
            )
        candidates.append(_measure(model, sample, halves))
        model.backbone.cpu()
    order = None
    if scorable is not None:
        networks = [Network(model.name, model.backbone, model.preprocess) for model in loaded]
        sets, outcomes = score_networks(
            networks, scorable.train, scorable.test, scoring, device=device, errors=errors, notify=notify
        )
        outcomes = [outcome for outcome in outcomes if outcome.score.metric == ACCURACY]
        scores, _ = judge(outcomes, sets[0].target, seed=seed)
        linear = [i for i, score in enumerate(scores) if score.probe == "linear"]
        resampled = resample([outcomes[i].statistic for i in linear], sets[0].target.groups, seed=seed)  # pyright: ignore[reportArgumentType]
        order = _agreement(candidates, scorable.data, scores, [scores[i].value for i in linear], resampled)
    count = sum(map(len, chosen.values())) - len(errors.reasons)
    return Choice(source, min(count, images), tuple(candidates), order, tuple(errors.reasons))


def _sample(parts: Mapping[str, Images | MemoryImages], count: int, seed: int) -> dict[str, Images | MemoryImages]:
    """Return a random sample of the images of all parts together, in their order."""
    total = sum(map(len, parts.values()))
    chosen = np.sort(np.random.default_rng(seed).permutation(total)[:count])
    starts = np.cumsum([0, *map(len, parts.values())])
    rows = {
        name: chosen[(chosen >= a) & (chosen < b)] - a for name, a, b in zip(parts, starts, starts[1:], strict=False)
    }
    return {name: subset(images, rows[name]) for name, images in parts.items() if len(rows[name])}


def shared_view(channels: int, size: int) -> ViewConfig:
    """Return the distribution of the two views: crops of 20 to 100 % of the area, flip, jitter and grayscale, as of the
    runs of the study. There is no blur, because it depends on the size of the images, which differs between models.
    """
    return replace(build_view(MIN_VIEW, channels), size=size, crop=CropConfig(scale=(0.2, 1.0)))


def _embed_views(
    model: Model,
    parts: Mapping[str, Images | MemoryImages],
    device: Device,
    errors: DecodeErrors,
    *,
    separate: bool,
    seed: int,
) -> tuple[Sample, np.ndarray]:
    """Return the features of images and of two views of each, and the groups of the images. The views do not depend on
    the model. With `separate`, the numbers of the groups of one part have nothing to do with those of another.
    """
    preprocess, where = model.preprocess, resolve_device(device.accelerator)
    view = shared_view(preprocess.channels, preprocess.size)
    transform = MultiViewTransform(view, mean=preprocess.mean, std=preprocess.std, channels=preprocess.channels)
    options: dict[str, Any] = {"batch_size": device.batch_size, "workers": device.workers, "decode_errors": errors}
    rows: list[list[Tensor]] = [[], [], []]
    groups, numbered = [np.empty(0, np.int64)], 0
    with verify_frozen(model.backbone.to(where)), torch.inference_mode():
        for number, images in enumerate(parts.values()):
            params = transform.make_params(seed, number, len(images))
            for batch in preprocessed_batches(images, preprocess, **options):
                pixels = batch.pixels.to(where)
                views = transform(pixels, replace(params, uniforms=params.uniforms[:, batch.indices]))[0]
                for kept, part in zip(rows, (preprocess.normalize(pixels), *views), strict=True):
                    kept.append(model.backbone(part).float().cpu())
                own = np.asarray(images.groups)[batch.indices.numpy()]
                groups.append(np.where(own < 0, own, own + numbered))
            numbered += int(np.asarray(images.groups).max(initial=-1)) + 1 if separate else 0
    if not rows[0]:
        raise UserError("none of the images can be read; see the reasons in the list of skipped files")
    sample = Sample(*(torch.cat(part) for part in rows))
    if not all(part.isfinite().all() for part in sample):
        remedy = "use another model, such as an earlier checkpoint: RUN@STEP"
        raise UserError(f"the features of {model.name} are not finite; {remedy}")
    return sample, np.concatenate(groups)


def _measure(model: Model, sample: Sample, halves: Sequence[Bool[np.ndarray, " n"]]) -> Candidate:
    """Return the values of all measures, on all images and on random halves of them.

    The statistic of half as many images can have another expectation, such as a lower rank, so the mean over the halves
    is removed.
    """
    values = {key: measure.compute(sample) for key, measure in MEASURES.items()}
    parts = [Sample(*(part[torch.from_numpy(half)] for part in sample)) for half in halves]
    of_halves = {key: np.array([measure.compute(part) for part in parts]) for key, measure in MEASURES.items()}
    deviations = {key: found - found.mean() for key, found in of_halves.items()}
    return Candidate(model.name, sample.X.shape[1], values, deviations)


def _agreement(
    candidates: Sequence[Candidate],
    data: str,
    scores: tuple[Score, ...],
    accuracies: Sequence[float],
    resampled: Float[np.ndarray, "resamples models"],
) -> LabelledOrder:
    """Compare the order of the models by the decisive measure with that by the accuracy of the linear probe."""
    values = np.array([each.values[DECISIVE] for each in candidates])
    varied = values + np.stack([each.deviations[DECISIVE] for each in candidates], axis=1)
    drawn = varied[np.random.default_rng(0).integers(len(varied), size=len(resampled))]
    low, high = interval(concordance(drawn, resampled))
    tau, first = float(concordance(values[None], np.array([accuracies]))[0]), int(np.argmax(accuracies))
    told_apart = len(set(values)) > 1 and len(set(accuracies)) > 1
    found: Any = kendalltau(values, accuracies, alternative="greater") if told_apart else None
    order = sorted(range(len(accuracies)), key=lambda i: -accuracies[i])
    best = [i for i in order if i == first or interval(resampled[:, i] - resampled[:, first])[1] >= 0]
    names = tuple(candidates[i].name for i in best)
    return LabelledOrder(data, scores, names, tau, low, high, float(found.pvalue) if told_apart else 1.0)


def concordance(x: Float[np.ndarray, "b n"], y: Float[np.ndarray, "b n"]) -> Float[np.ndarray, " b"]:
    """Return Kendall's τ_a of each pair of rows; a tie counts as neither order.

    >>> concordance(np.array([[1.0, 2, 3]]), np.array([[1.0, 3, 2]])).round(3).tolist()
    [0.333]
    """
    i, j = np.triu_indices(x.shape[1], 1)
    return (np.sign(x[:, i] - x[:, j]) * np.sign(y[:, i] - y[:, j])).mean(axis=1)
