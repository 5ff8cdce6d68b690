"""The networks, the optimizer and the probe of a run on their device, its steps, and what holds while it takes them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric

from fullrank.distributed import all_gather_object, convert_sync_batchnorm, world_size
from fullrank.errors import UserError
from fullrank.evaluation import OnlineProbe
from fullrank.files import FULL, NoSpaceError
from fullrank.methods import TrainingLength
from fullrank.methods.backbones import feature_dim
from fullrank.recipes import Assembly, Recipe
from fullrank.run.data import TrainingData, load_batches
from fullrank.run.directory import is_run, resume_command
from fullrank.run.resume import restore
from fullrank.run.rows import Row
from fullrank.training import Checkpoint, Step, build_optimizer, fit, lr_factor, weight_decay_at


class TrainingRun:
    """A run in progress: its networks, optimizer and probe on their device, its images, and its directory.

    Args:
        assembly: the method, without Fabric's wrapper, and the views.
        data: the images.
        fabric: the device, or one of several.
        path: the run directory.
        recipe: the recipe.
        checkpoint: where to continue; None: at the first step.
        log: the rows up to the checkpoint.
    """

    def __init__(
        self,
        assembly: Assembly,
        data: TrainingData,
        fabric: Fabric,
        *,
        path: Path,
        recipe: Recipe,
        checkpoint: Checkpoint | None = None,
        log: Sequence[Row] = (),
    ) -> None:
        self.method, self.views, self.preprocess = assembly.method, assembly.views, assembly.preprocess
        self.data, self.fabric = data, fabric
        self.path, self.recipe, self.log = path, recipe, log
        convert_sync_batchnorm(self.method)
        # Before `restore`, which loads the optimizer's state to the same device.
        self.method.to(fabric.device, torch.get_default_dtype())
        if recipe.machine.channels_last:
            self.method.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        self.optimizer = build_optimizer(recipe.optimizer, self.method)
        names = ("lr", "momentum", "weight_decay", "standardize")
        settings: dict[str, Any] = {name: getattr(recipe.probe, name) for name in names}
        self.probe = OnlineProbe(feature_dim(self.method.backbone), data.num_classes, **settings).to(fabric.device)
        self.start = restore(checkpoint, self.method, self.optimizer, self.probe) if checkpoint else 0
        self.steps_per_epoch = data.num_images // recipe.batch_size
        self.total = recipe.epochs * self.steps_per_epoch
        self.method.training_length = TrainingLength(self.steps_per_epoch, self.total)
        self.batches = load_batches(recipe, self.views, data, fabric.device, start=self.start, stop=self.total)

    @cached_property
    def checkpoint_steps(self) -> set[int]:
        """Steps after which a checkpoint is written: evenly spaced, including the last."""
        return {round(self.total * (i + 1) / self.recipe.checkpoints) for i in range(self.recipe.checkpoints)}

    @cached_property
    def score_steps(self) -> set[int]:
        """Steps after which a probe is scored on all test images: those of `probe.epochs`, without epochs after the
        end. With `probe.labelled`, also before the first step, and by default after each tenth of the run.
        """
        epochs = [epoch for epoch in self.recipe.probe.epochs if epoch <= self.recipe.epochs]
        steps = {max(round(epoch * self.steps_per_epoch), 1) for epoch in epochs}
        if self.recipe.probe.labelled:
            tenths = {round(self.total * tenth / 10) for tenth in range(1, 11)}
            return {0} | (steps if self.recipe.probe.epochs else tenths)
        return steps if self.data.scored else set()

    def epoch(self, step: int) -> float:
        """Return the number of epochs after `step` steps."""
        return round(step / self.steps_per_epoch, 4)

    def lr_factor(self, step: int) -> float:
        """Return the factor of the learning rate after `step` steps."""
        return lr_factor(self.recipe.schedule, step, steps_per_epoch=self.steps_per_epoch, total=self.total)

    def gather_for_checkpoint(self, step: int) -> list[list[int]]:
        """Send decode errors to the first process; return the ends of the passes of a stream in each process before
        the images of the steps so far, since workers read ahead.
        """
        self.data.decoding.errors.all_gather()
        used = step * self.recipe.batch_size // world_size()
        return all_gather_object([end for end in self.data.pass_ends if end < used])

    def steps(self) -> Iterator[Step]:
        """Take the steps that are left."""
        recipe, optimizer = self.recipe, self.recipe.optimizer
        first, last = optimizer.weight_decay, optimizer.last_weight_decay
        if recipe.machine.compile:
            self.method.compile()
        method, wrapped_optimizer = self.fabric.setup(self.method, self.optimizer)
        return fit(
            self.fabric,
            method,
            wrapped_optimizer,
            self.batches,
            lambda step: optimizer.lr * self.lr_factor(step),
            weight_decay=None if last is None else lambda step: weight_decay_at(first, last, step, total=self.total),
            start=self.start,
            micro_batch=recipe.machine.micro_batch,
            clip_norm=optimizer.clip_norm,
        )


@contextmanager
def global_state(recipe: Recipe, device: torch.device) -> Iterator[None]:
    """Set torch's default dtype inside the context; restore the dtype and the random generators afterwards.

    Fabric casts the outputs of a module to the default dtype: with float32 as default, '64-true' would give single
    precision.
    """
    dtype = torch.get_default_dtype()
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.set_default_dtype(torch.float64 if recipe.machine.precision == "64-true" else torch.float32)
            yield
    finally:
        torch.set_default_dtype(dtype)


@contextmanager
def explain_full_disk(path: Path) -> Iterator[None]:
    """Turn the error for a full disk into a `UserError` with the remedy."""
    try:
        yield
    except (OSError, NoSpaceError) as error:
        if isinstance(error, OSError) and error.errno not in FULL:
            raise
        remedy = f"continue with: {resume_command(path)}" if is_run(path) else "start the run again"
        raise UserError(f"no space left for the run {path}; free some space, then {remedy}") from error
