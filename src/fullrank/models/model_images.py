"""The images that a function of a MODEL reads: those that the user names, or else those of its run."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fullrank.errors import UserError
from fullrank.images import AnyImages, Fingerprint, Images, MemoryImages, as_images, open_images, train_and_test
from fullrank.images.labels import TRAIN
from fullrank.images.reading import USUAL, Reading
from fullrank.images.source import MEMORY
from fullrank.images.source_uri import absolute_source
from fullrank.models.model import Model
from fullrank.recipes import DataConfig

# A source of images, opened images, a `DataConfig` (a source and how to read it), or what `fullrank.images.as_images`
# takes.
Data = Any


@dataclass(frozen=True)
class LabelledSplits:
    """Images for training and for scoring probes.

    Attributes:
        data: The name of the data set, the key of its scores.
    """

    train: AnyImages
    test: AnyImages
    data: str
    statement: str


def choose_splits(
    model: Model, data: Data | None, reading: Reading | None = None, *, seed: int = 0, train_subset: bool = False
) -> LabelledSplits:
    """Return the training and the test images of a source, or of opened images, of which a fifth is held out.

    Of a run with `data.validation`, the validation images take the place of the test images, and none of them is a
    training image; this does not hold if `data` or a test split is given, so that the test images can be used once, at
    the end. The training images of the probes are all others, or with `train_subset` those on which the backbone was
    trained.

    Raises:
        UserError: the source or a split does not exist, or a split or `train_subset` does not fit the source or the
            run.
    """
    reading = reading or USUAL
    source, config = resolve_source(model, data, reading)
    validation = 0.0 if reading.test else config.validation
    if validation and model.recipe and reading.train not in (None, model.recipe.data.reading.train):
        received = f"--data.train is {reading.train}, but the run's validation images are of its own training split"
        raise UserError(f"{received}; give --data.test too, or no --data.train")
    if train_subset and not config.subset:
        raise UserError("--train-subset needs a run with data.subset, and no --data; leave it out to use all images")
    reduction: Any = {"seed": seed, "validation": validation, "subset": config.subset if train_subset else 0}
    reduction["subset_seed"] = config.subset_seed
    if isinstance(source, Images | MemoryImages):
        if reading.train or reading.test:
            raise UserError("opened images have no named splits; give a source, or leave out the names of splits")
        source = as_images(source)
    else:
        source = absolute_source(source)  # so that `photos` and `./photos` are the same data set
    splits = train_and_test(source, config.reading, **reduction)
    # Scores on validation images must not replace scores on test images, nor scores of probes with fewer images those
    # with all, nor scores on other images in memory those on these
    name = f"{splits.test.source}, {len(splits.test):,} images" if validation else name_data(splits.train, splits.test)
    name += f" (probes on {config.subset:,} images)" if train_subset else ""
    if isinstance(source, Images) and source.source == MEMORY:
        name = name.replace(MEMORY, f"{MEMORY} {Fingerprint.of(source).digest}")
    statement = splits.statement
    if config.subset and not train_subset and isinstance(source, str):
        statement += f"; the backbone was trained on {config.subset:,} images, the probes on all {len(splits.train):,}"
    return LabelledSplits(splits.train, splits.test, name, statement)


def name_data(train: Images | MemoryImages, test: Images | MemoryImages) -> str:
    """Return the name of a data set: the source of the test images, and that of the training images if it is not the
    usual one.

    >>> from fullrank.images import train_and_test
    >>> splits = train_and_test("digits")
    >>> name_data(splits.train, splits.test)
    'digits (held out)'
    """
    train_source, test_source = getattr(train, "source", "memory"), getattr(test, "source", "memory")
    if train_source == test_source:
        return test_source if train is test else f"{test_source} (held out)"
    data, _, split = train_source.rstrip("]").rpartition("[")
    usual = split.lower() in TRAIN and test_source.startswith(f"{data}[")
    return test_source if usual else f"{test_source} (trained on {train_source})"


def held_out_images(model: Any, data: Data | None, split: str | None, reading: Reading | None = None) -> AnyImages:
    """Return the split with this name, or by default the held-out images of a source; opened images are returned
    unchanged.

    The held-out images of a run with `data.validation` are its validation images.
    """
    source, _ = resolve_source(model, data, reading)
    if split is not None or isinstance(source, Images | MemoryImages):
        return one_split(model, data, split, reading)
    return choose_splits(model, data, reading, seed=model.recipe.split_seed if model.recipe else 0).test


def one_split(model: Any, data: Data | None, split: str | None = None, reading: Reading | None = None) -> AnyImages:
    """Return the split with this name, or all images of a source that has one split; opened images are returned
    unchanged.
    """
    source, parts = open_parts(model, data, split, reading)
    if len(parts) > 1:
        names = ", ".join(parts)
        raise UserError(f"{source} has the splits {names}; choose one with --split (split='{next(iter(parts))}')")
    return next(iter(parts.values()))


def open_parts(
    model: Model, data: Data | Mapping[str, Data] | None, split: str | None, reading: Reading | None = None
) -> tuple[str, dict[str, AnyImages]]:
    """Return the name of the source and its splits, all or the one with this name; `data` may be a dictionary of
    splits.
    """
    if isinstance(data, Mapping):
        chosen: dict[str, AnyImages] = {name: as_images(part) for name, part in data.items() if split in (None, name)}
        if not chosen:
            raise UserError(f"split is '{split}', expected one of {', '.join(data) or 'the names of parts'}")
        return MEMORY, chosen
    if reading and (reading.train or reading.test):
        raise UserError("data.train and data.test name the splits of probes; choose images with --split (split=…)")
    source, config = resolve_source(model, data, reading)
    if not isinstance(source, Images | MemoryImages):
        return str(source), dict(open_images(source, config.reading, split=split))
    if split is not None:
        raise UserError(f"split='{split}': opened images have no named splits; give a source, or leave it out")
    if not len(source):
        raise UserError("the data holds no images; give at least one")
    return getattr(source, "source", MEMORY), {"all": source}


def resolve_source(model: Any, data: Data | None, reading: Reading | None = None) -> tuple[Any, DataConfig]:
    """Return the given source or images, or else the source of the run, and how to read it: what `reading` says, else
    for the source of a run as the run read it.

    Raises:
        UserError: there is no data and the model is not a run.
    """
    recipe, reading = getattr(model, "recipe", None), reading or USUAL
    config = recipe.data if recipe else DataConfig()
    if data is None:
        if recipe is None:
            name = getattr(model, "name", model)
            raise UserError(f"model '{name}' has no images; give --data SOURCE (data=SOURCE in Python)")
        return config.source, replace(config, reading=reading.over(config.reading))
    if isinstance(data, DataConfig):
        return data.source, replace(data, reading=reading.over(data.reading))
    if isinstance(data, str | Path):
        return str(data), DataConfig(source=str(data), reading=reading)
    config = config if config.source == MEMORY else DataConfig()  # the images of a run that had Python objects
    return data if isinstance(data, Images | MemoryImages) else as_images(data), config
