"""The networks, the optimizer and the probe of a run on their device, and its steps."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric

from fullrank.distributed import convert_sync_batchnorm
from fullrank.evaluation import OnlineProbe
from fullrank.methods import Method, TrainingLength, feature_dim
from fullrank.recipes import Assembly, Recipe
from fullrank.run.data import SeededBatches, TrainingData, load_batches
from fullrank.run.precision import resolve_precision
from fullrank.run.resume import restore
from fullrank.run.rows import Row
from fullrank.training import Checkpoint, Step, build_optimizer, fit, lr_factor, weight_decay_at
from fullrank.views import MultiViewTransform


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """The networks, the images and the directory of a run in progress."""

    path: Path
    recipe: Recipe
    fabric: Fabric
    method: Method
    """The method without Fabric's wrapper."""
    optimizer: torch.optim.Optimizer
    """The optimizer without Fabric's wrapper."""
    probe: OnlineProbe
    data: TrainingData
    views: MultiViewTransform
    start: int = 0
    """Number of steps already taken when the run was started or resumed."""
    log: Sequence[Row] = ()
    """The rows of these steps."""

    @classmethod
    def prepare(
        cls,
        assembly: Assembly,
        data: TrainingData,
        fabric: Fabric,
        *,
        path: Path,
        recipe: Recipe,
        checkpoint: Checkpoint | None = None,
        log: Sequence[Row] = (),
    ) -> "TrainingRun":
        """Move the networks to the device, and load the checkpoint."""
        method = assembly.method
        convert_sync_batchnorm(method)
        # Before `restore`, which loads the optimizer's state to the same device.
        method.to(fabric.device, torch.get_default_dtype())
        if recipe.machine.channels_last:
            method.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        optimizer = build_optimizer(recipe.optimizer, method)
        names = ("lr", "momentum", "weight_decay", "standardize")
        settings: dict[str, Any] = {name: getattr(recipe.probe, name) for name in names}
        probe = OnlineProbe(feature_dim(method.backbone), data.num_classes, **settings).to(fabric.device)
        start = restore(checkpoint, method, optimizer, probe) if checkpoint else 0
        run = cls(
            path=path,
            recipe=recipe,
            fabric=fabric,
            method=method,
            optimizer=optimizer,
            probe=probe,
            data=data,
            views=assembly.views,
            start=start,
            log=log,
        )
        method.training_length = TrainingLength(run.steps_per_epoch, run.total)
        return run

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps per epoch."""
        return self.data.num_images // self.recipe.batch_size

    @property
    def total(self) -> int:
        """Number of steps of the run."""
        return self.recipe.epochs * self.steps_per_epoch

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
        if self.data.labelled:
            tenths = {round(self.total * tenth / 10) for tenth in range(1, 11)}
            return {0} | (steps if self.recipe.probe.epochs else tenths)
        return steps if self.data.test else set()

    def epoch(self, step: int) -> float:
        """Return the number of epochs after `step` steps."""
        return round(step / self.steps_per_epoch, 4)

    def batches(self) -> SeededBatches:
        """Return the batches of this process, from the first step that is left."""
        recipe, start = self.recipe, self.start
        loaded = load_batches(recipe, self.views, self.data, self.fabric.device, start=start, stop=self.total)
        return SeededBatches(loaded, seed=recipe.seed, start=start)

    def steps(self, batches: SeededBatches) -> Iterator[Step]:
        """Take the steps of the recipe on these batches."""
        recipe, optimizer = self.recipe, self.recipe.optimizer

        def learning_rate(step: int) -> float:
            factor = lr_factor(recipe.schedule, step, steps_per_epoch=self.steps_per_epoch, total=self.total)
            return optimizer.lr * factor

        def weight_decay(step: int) -> float:
            first, last = optimizer.weight_decay, optimizer.last_weight_decay
            return first if last is None else weight_decay_at(first, last, step, total=self.total)

        if recipe.machine.compile:
            self.method.compile()
        return fit(
            self.fabric,
            *self.fabric.setup(self.method, self.optimizer),
            batches,
            learning_rate,
            weight_decay=weight_decay,
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
            torch.set_default_dtype(torch.float64 if resolve_precision(recipe) == "64-true" else torch.float32)
            yield
    finally:
        torch.set_default_dtype(dtype)
