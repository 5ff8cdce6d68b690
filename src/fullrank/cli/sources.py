"""Images and devices of the commands that take a MODEL."""

from dataclasses import dataclass
from typing import Annotated

import torch
import tyro

from fullrank.errors import UserError
from fullrank.images import Images, open_images, train_and_test
from fullrank.loading import Model
from fullrank.recipes import DataConfig


@dataclass(frozen=True)
class ReadOptions:
    """Flags that several commands share: how images are read, and where the backbone runs."""

    data: str | None = None
    """Source of the images: digits, a path, folder:PATH, parquet:PATH or hf:NAME; by default the source of the run."""
    accelerator: str = "auto"
    """auto, cpu, cuda or mps; auto uses a GPU if there is a GPU."""
    workers: int = 0
    """Number of processes that decode images; 0 decodes in the main process."""
    max_error_fraction: float = 0.1
    """Largest share of unreadable images; the command stops if there are more."""


ReadFlags = Annotated[ReadOptions, tyro.conf.arg(name="")]
"""The fields of `ReadOptions` as flags without a prefix."""


def resolve_source(model: Model, data: str | None) -> tuple[str, DataConfig]:
    """Return the source of --data, or else the source of the run, with the names of its splits.

    Raises:
        UserError: --data is missing, and the model is not a run.
    """
    if data is not None:
        return data, DataConfig(source=data)
    if model.recipe is None:
        raise UserError(f"model '{model.name}' has no images; give --data SOURCE")
    return model.recipe.data.source, model.recipe.data


def open_split(model: Model, data: str | None, split: str | None) -> Images:
    """Return the split with this name, or by default the held-out images."""
    source, config = resolve_source(model, data)
    if split is not None:
        return open_images(source, split=split)[split]
    return train_and_test(source, train=config.train, test=config.test, seed=model.recipe.seed if model.recipe else 0).test


def resolve_device(accelerator: str) -> torch.device:
    """Return the device with this name; 'auto' is a GPU if there is a GPU.

    Raises:
        UserError: the device is not available.
    """
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if accelerator == "auto":
        return torch.device(next(name for name in ("cuda", "mps", "cpu") if available[name]))
    if not available.get(accelerator):
        names = ", ".join(name for name, is_available in available.items() if is_available)
        raise UserError(f"accelerator '{accelerator}' is not available; choose from auto, {names}")
    return torch.device(accelerator)
