"""`choose`: measure several models on the same images without labels, and rank them as far as the images allow."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int64
from scipy.stats import kendalltau
from torch import Tensor

from fullrank.errors import UserError
from fullrank.evaluation.bootstrap import units
from fullrank.evaluation.choice import DECISIVE, MEASURES, Candidate, Choice, LabelledOrder, Sample
from fullrank.evaluation.evaluate import load_different, score_networks
from fullrank.evaluation.features import Network
from fullrank.evaluation.outcomes import judge
from fullrank.evaluation.protocol import Scoring
from fullrank.evaluation.score import ACCURACY
from fullrank.evaluation.task import AnyImages, Notify, Task, open_task, silent
from fullrank.images import DecodeErrors, Device, Reading
from fullrank.models import Model
from fullrank.models.features import embedded_batches
from fullrank.models.model import ModelLike, with_depth
from fullrank.models.model_images import Data, open_parts
from fullrank.recipes.photos import build_view
from fullrank.views import CropConfig, MultiViewTransform, ViewConfig

# Minimum number of images.
LEAST = 64
# A size of views at which the recipe for photos has no blur.
MIN_VIEW = 32
# Random halves of the images: a standard deviation of 50 values has a relative error of 10 %.
HALVES = 50


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
    notify: Notify = silent,
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
    if isinstance(models, ModelLike) or len(models) < 2:
        raise UserError("one model cannot be compared; give two or more, such as runs/a runs/b")
    if images < LEAST:
        raise UserError(f"images is {images}, expected at least {LEAST}")
    loaded, device = load_different(models), device or Device()
    if data is None and loaded[0].recipe is None:
        data = labelled
    described = reading if data is labelled or labelled is None else None
    if described and labelled is not None:
        described = replace(described, train=None, test=None)  # the splits of the probes
    source, parts = open_parts(loaded[0], data, split, described)
    task, scoring = None, Scoring(probes=("linear", "knn"), seed=seed)
    if labelled is not None:
        task = open_task(loaded[0], labelled, scoring, reading, device, notify, others=loaded[1:], multilabel=False)
    chosen, errors = sample_parts(parts, images, seed=seed), DecodeErrors(max_error_fraction=device.max_error_fraction)
    loaded = [with_depth(model, *chosen.values()) for model in loaded]
    candidates = []
    for model in loaded:
        notify(f"{model.name}: embedding {sum(map(len, chosen.values())):,} images and two views of each")
        sample, groups = embed_views(model, chosen, device, errors, seed=seed, notify=notify)
        halves = list(random_halves(groups, seed=seed))
        if len(sample.X) < LEAST or min(half.sum() for half in halves) < LEAST // 4:
            few = f"{source} has {len(sample.X)} readable images, in few groups"
            raise UserError(f"{few}, expected at least {LEAST}; give more")
        candidates.append(measure(model.name, sample, halves))
        model.backbone.cpu()
    order = None if task is None else compare_orders(candidates, loaded, task, scoring)
    return Choice(source, len(sample.X), tuple(candidates), order, tuple(errors.reasons))


def sample_parts(parts: Mapping[str, AnyImages], count: int, *, seed: int) -> dict[str, AnyImages]:
    """Return a random sample of the images of all parts together, in their order."""
    ends = np.cumsum([len(images) for images in parts.values()])
    chosen = np.sort(np.random.default_rng(seed).permutation(ends[-1])[:count])
    sampled = {
        name: images.subset(chosen[(chosen >= end - len(images)) & (chosen < end)] - (end - len(images)))
        for (name, images), end in zip(parts.items(), ends, strict=True)
    }
    return {name: images for name, images in sampled.items() if len(images)}


def shared_view(channels: int, size: int) -> ViewConfig:
    """Return the distribution of the two views: crops of 20 to 100 % of the area, flip, jitter and grayscale, as of the
    runs of the study. There is no blur, because it depends on the size of the images, which differs between models.
    """
    return replace(build_view(MIN_VIEW, channels), size=size, crop=CropConfig(scale=(0.2, 1.0)))


def embed_views(
    model: Model, parts: Mapping[str, AnyImages], device: Device, errors: DecodeErrors, *, seed: int, notify: Notify
) -> tuple[Sample, Int64[np.ndarray, " n"]]:
    """Return the features of images and of two views of each, and the groups of the images. The views do not depend on
    the model.
    """
    preprocess = model.preprocess
    view = shared_view(preprocess.channels, preprocess.size)
    transform = MultiViewTransform(view, mean=preprocess.mean, std=preprocess.std, channels=preprocess.channels)
    rows: list[tuple[Tensor, ...]] = []
    groups = []
    for number, images in enumerate(parts.values()):
        params = transform.make_params(seed, number, len(images))
        for batch, X in embedded_batches(model.backbone, images, preprocess, device, errors, notify):
            own = replace(params, uniforms=params.uniforms[:, batch.indices])
            with torch.inference_mode():
                views = transform(batch.pixels.to(X.device), own)[0]
                rows.append((X.cpu(), *(model.backbone(view).float().cpu() for view in views)))
            groups.append(np.asarray(images.groups)[batch.indices.numpy()])
    sample = Sample(*(torch.cat(part) for part in zip(*rows, strict=True)))
    if not all(part.isfinite().all() for part in sample):
        remedy = "use another model, such as an earlier checkpoint: RUN@STEP"
        raise UserError(f"the features of {model.name} are not finite; {remedy}")
    return sample, np.concatenate(groups)


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
        yield np.isin(unit, generator.permutation(count)[: (count + number % 2) // 2])


def measure(name: str, sample: Sample, halves: Sequence[Bool[np.ndarray, " n"]]) -> Candidate:
    """Return the values of all measures, on all images and on random halves of them.

    The statistic of half as many images can have another expectation, such as a lower rank, so the mean over the halves
    is removed.
    """
    parts = [Sample(*(part[torch.from_numpy(half)] for part in sample)) for half in halves]
    values = {key: each.compute(sample) for key, each in MEASURES.items()}
    of_halves = {key: np.array([each.compute(part) for part in parts]) for key, each in MEASURES.items()}
    return Candidate(name, sample.X.shape[1], values, {key: found - found.mean() for key, found in of_halves.items()})


def compare_orders(
    candidates: Sequence[Candidate], models: Sequence[Model], task: Task, scoring: Scoring
) -> LabelledOrder:
    """Compare the order of the models by the decisive measure with that by the accuracy of the linear probe."""
    sets, outcomes = score_networks((Network(m.name, m.backbone, m.preprocess) for m in models), task, scoring)
    outcomes = [outcome for outcome in outcomes if outcome.score.metric == ACCURACY]
    accuracies = {o.score.features: o.score.value for o in outcomes if o.score.probe == "linear"}
    outcomes.sort(key=lambda outcome: -accuracies[outcome.score.features])  # the first is compared with the others
    scores, comparisons = judge(outcomes, sets[0].target, seed=scoring.seed)
    best = (scores[0].features, *(each.against for each in comparisons if each.low <= 0))
    values = [each.values[DECISIVE] for each in candidates]
    found: Any = kendalltau(values, [accuracies[each.name] for each in candidates], alternative="greater")
    tau, chance = (0.0, 1.0) if np.isnan(found.statistic) else map(float, found)  # NaN: all values are equal
    return LabelledOrder(task.splits.data, scores, best, tau, chance)
