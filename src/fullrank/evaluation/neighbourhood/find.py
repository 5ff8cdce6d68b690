"""`neighbours`: embed the images of all splits, and find what lies close together and what lies alone."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fullrank.errors import UserError
from fullrank.evaluation.features import preprocessed_batches
from fullrank.evaluation.frozen import verify_frozen
from fullrank.evaluation.neighbourhood.duplicates import find_duplicates, pixel_digests, thumbnails
from fullrank.evaluation.neighbourhood.plane import draw_map
from fullrank.evaluation.neighbourhood.result import Neighbours, Queries, label_texts
from fullrank.evaluation.neighbourhood.search import nearest
from fullrank.images import DecodeErrors, Images, MemoryImages, as_images, open_images
from fullrank.images.pixel_values import same_form
from fullrank.images.user_images import read_pixels, split_images
from fullrank.models import Model, load, resolve_device
from fullrank.models.model import ModelLike, with_depth
from fullrank.models.model_images import Data, resolve_source


def neighbours(
    model: ModelLike,
    data: Data | Mapping[str, Data] | None = None,
    *,
    query: Any = None,
    split: str | None = None,
    k: int = 10,
    duplicates: float = 0.98,
    map_images: int = 2000,
    seed: int = 0,
    batch_size: int = 512,
    device: str | torch.device = "auto",
    workers: int = 0,
    decode_errors: DecodeErrors | None = None,
    progress: Callable[[str], Any] = lambda line: None,
) -> Neighbours:
    """Find the nearest neighbours, near-duplicates, outliers and doubtful labels of a set of images, and draw a map of
    them.

    All splits of the source are searched together, so that a near-duplicate of a test image among the training images
    is found. The
    features of all images are in memory: 4·n·D bytes.

    Args:
        model: a MODEL (see `load`), a `Run`, or a loaded model.
        data: source of the images, opened images, or a dictionary of parts: `{"train": …, "test": …}`; by default the
            source of the run.
        query: images whose neighbours are asked for, as `Model.features` takes them: a path, several paths, arrays,
            Pillow images.
        split: name of the split to search; by default all.
        k: number of neighbours of each image.
        duplicates: least correlation of the pixels of two near-duplicates, measured on thumbnails of 16×16 pixels, in
            (0, 1].
        map_images: number of images on the map, chosen at random; 0 draws no map.
        seed: seed of the map.
        batch_size: images per forward pass.
        device: 'auto', 'cpu', 'cuda' or 'mps'.
        workers: number of processes that decode images; 0 decodes in this process.
        decode_errors: records images that cannot be read; the default stops if more than 10 % are unreadable.
        progress: receives a short description of each step when the step begins.

    Raises:
        UserError: the model or the images do not exist, there are fewer than two images, a query cannot be read, or an
            argument is wrong.

    >>> found = neighbours("timm-untrained:test_resnet", torch.tensor([0, 60, 60, 255]).byte().view(4, 1, 1, 1).expand(4, 3, 8, 8), k=2)
    >>> [(pair.first, pair.second, pair.equal) for pair in found.duplicates]
    [(1, 2, True)]
    """
    for name, value, least in (
        ("k", k, 1),
        ("map_images", map_images, 0),
        ("seed", seed, 0),
        ("batch_size", batch_size, 1),
    ):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise UserError(f"{name} is {value!r:.60}, expected an integer of at least {least}")
    if not isinstance(duplicates, int | float) or not 0 < duplicates <= 1:
        raise UserError(f"duplicates is {duplicates!r:.60}, expected a correlation in (0, 1], such as 0.98")
    target, loaded = resolve_device(device), load(model)
    source, parts = open_parts(loaded, data, split)
    loaded = with_depth(loaded, *parts.values())
    asked = _read_queries(loaded, query)  # before the work, because an image may be unreadable
    names, splits, labels, places, X, small, digests = [], [], [], [], [], [], []
    decode_errors = decode_errors or DecodeErrors()
    loaded.backbone.to(target)
    with verify_frozen(loaded.backbone):
        for part, images in parts.items():
            progress(f"embedding {len(images):,} images of {part}")
            batches = preprocessed_batches(
                images, loaded.preprocess, batch_size=batch_size, workers=workers, decode_errors=decode_errors
            )
            for batch in batches:
                X.append(_features(loaded, batch.pixels, target))
                small.append(thumbnails(batch.pixels.cpu()))
                digests += pixel_digests(batch.pixels.cpu())
                names += batch.names
                labels += label_texts(batch.labels.tolist(), tuple(images.classes))
                splits += [part] * len(batch.names)
                places.append(batch.indices.numpy())
        queries = None if asked is None else (asked[0], _features(loaded, asked[1], target), list(asked[1].numpy()))
    if len(names) < 2:
        raise UserError(f"{source} has {len(names)} readable images, expected at least two")
    features = np.concatenate(X)
    if not np.isfinite(features).all():
        raise UserError("the features are not finite; use another model, such as an earlier checkpoint: RUN@STEP")
    k = min(k, len(names) - 1)
    progress(f"searching the neighbours of {len(names):,} images")
    indices, similarities = nearest(features, k)
    pairs = find_duplicates(np.concatenate(small), digests, indices, threshold=duplicates)
    progress(f"drawing the map of {min(map_images, len(names)):,} images")
    return Neighbours(
        model=loaded.name,
        source=source,
        names=names,
        splits=splits,
        labels=labels,
        indices=indices,
        similarities=similarities,
        duplicates=pairs,
        positions=draw_map(features, map_images, seed),
        parts=parts,
        places=np.concatenate(places),
        preprocess=loaded.preprocess,
        threshold=float(duplicates),
        queries=Queries(queries[0], *nearest(features, k, queries[1]), queries[2]) if queries else None,
        skipped=tuple(decode_errors.reasons),
    )


@torch.inference_mode()
def _features(model: Model, pixels: torch.Tensor, device: torch.device) -> np.ndarray:
    return model.backbone(model.preprocess.normalize(pixels.to(device))).float().cpu().numpy()


def open_parts(
    model: Model, data: Data | Mapping[str, Data] | None, split: str | None
) -> tuple[str, dict[str, Images | MemoryImages]]:
    """Return the name of the source and its splits.

    Raises:
        UserError: the source or the split does not exist.
    """
    if isinstance(data, Mapping) and not hasattr(data, "num_rows"):  # a DatasetDict of `datasets` has one
        parts: dict[str, Images | MemoryImages] = {str(name): as_images(part) for name, part in data.items()}
        chosen = {name: part for name, part in parts.items() if split in (None, name)}
        if not chosen:
            raise UserError(
                f"split is '{split}', expected one of {', '.join(parts) or 'the names of parts, but data is empty'}"
            )
        return "memory", chosen
    source, config = resolve_source(model, data)
    if not isinstance(source, Images | MemoryImages):
        return str(source), dict(open_images(source, config.reading, split=split))
    if split is not None:
        raise UserError(f"split='{split}': opened images have no named splits; give a source, or leave it out")
    return getattr(source, "source", "memory"), {"all": source}


def _read_queries(model: Model, query: Any) -> tuple[list[str], torch.Tensor] | None:
    """Return the names and the preprocessed pixels of the queries."""
    if query is None:
        return None
    images: Sequence[Any] = split_images(query)
    names = [os.fspath(image) if isinstance(image, str | Path) else f"query {i}" for i, image in enumerate(images)]
    return names, torch.stack(
        same_form([read_pixels(image, model.preprocess, number=i) for i, image in enumerate(images)])
    )
