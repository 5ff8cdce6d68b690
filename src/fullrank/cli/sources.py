"""What several verbs need: which images a MODEL goes with, and where to run."""

from dataclasses import dataclass
from typing import Annotated

import torch
import tyro

from fullrank.errors import UserError
from fullrank.images import Images, open_images, train_and_test
from fullrank.loading import Model
from fullrank.recipes import DataConfig


@dataclass(frozen=True)
class Reading:
    """How images are read, and where the backbone runs: flags that several verbs share."""

    data: str | None = None
    """Source of the images; by default those of the run."""
    accelerator: str = "auto"
    """auto, cpu, cuda or mps."""
    workers: int = 0
    """Processes that decode."""
    max_error_fraction: float = 0.1
    """Share of unreadable files beyond which to stop."""


ReadingFlags = Annotated[Reading, tyro.conf.arg(name="")]
"""Its fields as flags without a prefix."""


def source_of(model: Model, data: str | None) -> tuple[str, DataConfig]:
    """Return the source that the user gave, or the run's own, with the names of its splits.

    Raises:
        UserError: neither.
    """
    if data is not None:
        return data, DataConfig(source=data)
    if model.recipe is None:
        raise UserError(f"model '{model.name}' brings no images; give --data SOURCE")
    return model.recipe.data.source, model.recipe.data


def images_of(model: Model, data: str | None, split: str | None) -> Images:
    """Return one split of images: the named one, or the held-out one."""
    source, of_run = source_of(model, data)
    if split is not None:
        return open_images(source, split=split)[split]
    return train_and_test(source, train=of_run.train, test=of_run.test, seed=model.recipe.seed if model.recipe else 0).test


def device_of(accelerator: str) -> torch.device:
    """Return the device of that name; 'auto' is a GPU where there is one.

    Raises:
        UserError: it is not there.
    """
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if accelerator == "auto":
        return torch.device(next(name for name in ("cuda", "mps", "cpu") if there[name]))
    if not there.get(accelerator):
        raise UserError(
            f"accelerator '{accelerator}' is not there; choose from auto, {', '.join(name for name, yes in there.items() if yes)}"
        )
    return torch.device(accelerator)
