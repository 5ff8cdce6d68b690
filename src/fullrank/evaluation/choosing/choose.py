"""`choose`: measure several models on the same images without labels, and rank them as far as the images allow."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fullrank.errors import UserError
from fullrank.evaluation import knn, linear_probe, standardize, verify_frozen
from fullrank.evaluation.choosing.halves import deviations, random_halves
from fullrank.evaluation.choosing.labelled import LabelledOrder
from fullrank.evaluation.choosing.measures import MEASURES, Sample, spectrum_of
from fullrank.evaluation.choosing.result import Candidate, Choice
from fullrank.evaluation.features import preprocessed_batches
from fullrank.evaluation.intrinsic_dimension import MIN_POINTS
from fullrank.evaluation.neighbourhood.find import open_parts
from fullrank.evaluation.scorable import why_not_scorable
from fullrank.images import DecodeErrors, Images, MemoryImages
from fullrank.models import Model, load, resolve_device
from fullrank.models.model import ModelLike, with_depth
from fullrank.models.model_images import Data, LabelledSplits, choose_splits
from fullrank.recipes.photos import build_view
from fullrank.run import Run
from fullrank.views import MultiViewTransform, ViewConfig
from fullrank.views.config import CropConfig

LEAST = 64
"""Minimum number of images."""
MIN_VIEW = 32
"""A size of views at which the recipe for photos has no blur."""


def choose(
    models: Sequence[ModelLike],
    data: Data | Mapping[str, Data] | None = None,
    *,
    labelled: Data | None = None,
    images: int = 1000,
    split: str | None = None,
    seed: int = 0,
    batch_size: int = 256,
    device: str | torch.device = "auto",
    workers: int = 0,
    decode_errors: DecodeErrors | None = None,
    progress: Callable[[str], Any] = lambda line: None,
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
        batch_size: images per forward pass.
        device: 'auto', 'cpu', 'cuda' or 'mps'.
        workers: number of processes that decode images; 0 decodes in this process.
        decode_errors: records images that cannot be read; the default stops if more than 10 % are unreadable.
        progress: receives a short description of each step when the step begins.

    Raises:
        UserError: there are fewer than two models or 64 images, a model is given twice or does not exist, the features
            are not finite, the labelled images cannot be scored, or an argument is wrong.

    >>> generator = torch.Generator().manual_seed(0)
    >>> noise = torch.randint(0, 256, (64, 3, 8, 8), generator=generator, dtype=torch.uint8)
    >>> choose(["timm-untrained:test_resnet", "timm-untrained:test_vit"], noise).names
    ['timm-untrained:test_resnet', 'timm-untrained:test_vit']
    """
    for name, value, least in (
        ("images", images, LEAST),
        ("seed", seed, 0),
        ("batch_size", batch_size, 1),
        ("workers", workers, 0),
    ):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise UserError(f"{name} is {value!r:.60}, expected an integer of at least {least}")
    if isinstance(models, str | Path | Run | Model) or len(models) < 2:
        raise UserError("choose compares models; give two or more: choose(['runs/a', 'runs/b'], data)")
    target, errors = resolve_device(device), decode_errors or DecodeErrors()
    first = load(models[0])
    if data is None and first.recipe is None:
        data = labelled
    source, parts = open_parts(first, data, split)
    parts = _sample(parts, images, seed)
    splits = None if labelled is None else _labelled_splits(first, labelled, seed)
    options: dict[str, Any] = {"batch_size": batch_size, "workers": workers, "decode_errors": errors}
    candidates: list[Candidate] = []
    right: dict[str, list[np.ndarray]] = {}
    groups = np.empty(0, np.int64)
    for i, each in enumerate(models):
        model = with_depth(load(each) if i else first, *parts.values())
        if model.name in [candidate.name for candidate in candidates]:
            raise UserError(f"model '{model.name}' is given twice; give each model once")
        progress(f"{model.name}: embedding {sum(map(len, parts.values())):,} images and two views of each")
        sample, image_groups = _embed_views(
            model, parts, target, separate=isinstance(data, Mapping), seed=seed, **options
        )
        if len(sample.X) < LEAST:
            raise UserError(
                f"{source} has {len(sample.X)} readable images, expected at least {LEAST}; give more images"
            )
        smallest = min(int(half.sum()) for half in random_halves(image_groups, seed=seed))
        if smallest < MIN_POINTS:
            raise UserError(
                f"a random half of the groups of {source} has {smallest} images, expected at least {MIN_POINTS}; "
                "give more images or groups, or leave out the groups"
            )
        progress(f"{model.name}: measuring")
        candidates.append(_measure(model, sample, image_groups, seed))
        if splits is not None:
            progress(f"{model.name}: probes on {splits.data}")
            scored, groups = _score(model, splits, target, **options)
            for probe, values in scored.items():
                right.setdefault(probe, []).append(values)
        model.backbone.cpu()
    order = None
    if splits is not None:
        columns = {probe: np.stack(values, axis=1) for probe, values in right.items()}
        order = LabelledOrder(splits.data, splits.statement, len(splits.train), columns, groups)
    return Choice(source, len(sample.X), tuple(candidates), order, tuple(errors.reasons))


def _sample(parts: Mapping[str, Images | MemoryImages], count: int, seed: int) -> dict[str, Images | MemoryImages]:
    """Return a random sample of the images of all parts together, in their order."""
    total = sum(map(len, parts.values()))
    chosen = np.sort(np.random.default_rng(seed).permutation(total)[:count])
    sampled: dict[str, Images | MemoryImages] = {}
    start = 0
    for name, images in parts.items():
        rows = chosen[(chosen >= start) & (chosen < start + len(images))] - start
        start += len(images)
        if len(rows):
            sampled[name] = images.subset(rows) if isinstance(images, Images) else _rows(images, rows)
    return sampled


def _rows(images: MemoryImages, rows: np.ndarray) -> MemoryImages:
    index = torch.from_numpy(rows)
    names = tuple(images.names[i] for i in rows)
    return replace(
        images,
        pixels=images.pixels[index.to(images.pixels.device)],
        labels=images.labels[index.to(images.labels.device)],
        names=names,
        groups=images.groups[index],
    )


def shared_view(channels: int, size: int) -> ViewConfig:
    """Return the distribution of the two views: crops of 20 to 100 % of the area, flip, jitter and grayscale, as of the
    runs of the study.

    There is no blur, because it depends on the size of the images, which differs between models.
    """
    return replace(build_view(MIN_VIEW, channels), size=size, crop=CropConfig(scale=(0.2, 1.0)))


def _embed_views(
    model: Model,
    parts: Mapping[str, Images | MemoryImages],
    device: torch.device,
    *,
    separate: bool,
    seed: int,
    **options: Any,
) -> tuple[Sample, np.ndarray]:
    """Return the features of images and of two views of each, and the groups of the images. The views do not depend on
    the model.

    With `separate`, the numbers of the groups of one part have nothing to do with those of another.
    """
    preprocess = model.preprocess
    view = shared_view(preprocess.channels, preprocess.size)
    transform = MultiViewTransform(view, mean=preprocess.mean, std=preprocess.std, channels=preprocess.channels)
    rows: list[list[torch.Tensor]] = [[], [], []]
    groups: list[np.ndarray] = []
    numbered = 0  # groups of parts with other sources are other groups
    with verify_frozen(model.backbone.to(device)), torch.inference_mode():
        for number, images in enumerate(parts.values()):
            params = transform.make_params(seed, number, len(images))
            for batch in preprocessed_batches(images, preprocess, **options):
                pixels = batch.pixels.to(device)
                views = transform(pixels, replace(params, uniforms=params.uniforms[:, batch.indices]))[0]
                for kept, part in zip(rows, (preprocess.normalize(pixels), *views), strict=True):
                    kept.append(model.backbone(part).float().cpu())
                own = np.asarray(images.groups)[batch.indices.numpy()]
                groups.append(np.where(own < 0, own, own + numbered))
            numbered += int(np.asarray(images.groups).max(initial=-1)) + 1 if separate else 0
    if not groups:
        raise UserError("none of the images can be read; see the reasons in the list of skipped files")
    sample = Sample(*(torch.cat(part) for part in rows))
    if not all(part.isfinite().all() for part in sample):
        raise UserError(
            f"the features of {model.name} are not finite; use another model, such as an earlier checkpoint: RUN@STEP"
        )
    return sample, np.concatenate(groups)


def _measure(model: Model, sample: Sample, groups: np.ndarray, seed: int) -> Candidate:
    """Return the values of all measures, on all images and on random halves of them."""

    def on_half(key: str) -> Callable[[np.ndarray], float]:
        return lambda half: MEASURES[key].compute(Sample(*(part[torch.from_numpy(half)] for part in sample)))

    return Candidate(
        name=model.name,
        size=model.preprocess.size,
        values={key: measure.compute(sample) for key, measure in MEASURES.items()},
        deviations={key: deviations(on_half(key), groups, seed=seed) for key in MEASURES},
        spectrum=spectrum_of(sample.X),
    )


def _labelled_splits(model: Model, labelled: Data, seed: int) -> LabelledSplits:
    """Return the labelled images for training and for scoring.

    Raises:
        UserError: the images cannot be scored.
    """
    splits = choose_splits(
        model, labelled, train=None, test=None, seed=model.recipe.split_seed if model.recipe else seed
    )
    if reason := why_not_scorable(splits.train, splits.test):
        raise UserError(f"nothing can be scored: {reason}")
    return splits


def _score(
    model: Model, splits: LabelledSplits, device: torch.device, **options: Any
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return whether linear probe and kNN are right on each labelled test image, and the groups of these images."""
    features, labels, groups = [], [], np.empty(0, np.int64)
    with verify_frozen(model.backbone.to(device)), torch.inference_mode():
        for images in (splits.train, splits.test):
            batches, indices = [], []
            for batch in preprocessed_batches(images, model.preprocess, **options):
                batches.append(
                    (
                        model.backbone(model.preprocess.normalize(batch.pixels.to(device))).float().cpu(),
                        batch.labels.cpu(),
                    )
                )
                indices.append(batch.indices.numpy())
            X, y = (torch.cat(part) for part in zip(*batches, strict=True))
            features.append(X)
            labels.append(y)
            groups = np.asarray(images.groups)[np.concatenate(indices)]
    (X, X_test), (y, y_test) = features, labels
    scaled, scaled_test = standardize(X, X_test)
    results = {"linear": linear_probe(scaled, y, scaled_test, y_test), "kNN": knn(X, y, X_test, y_test)}
    known = y_test >= 0
    return {probe: (result.predictions.cpu() == y_test)[known].numpy() for probe, result in results.items()}, groups[
        known.numpy()
    ]
