"""The collapse monitor as a callback of Lightning."""

import math
from collections.abc import Iterable
from functools import partial
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import Logger

from fullrank.errors import UserError
from fullrank.monitor.collapse_monitor import CollapseMonitor, find_networks


def log_to_all(loggers: list[Logger], numbers: dict[str, float], *, step: int) -> None:
    """Write the numbers of a step to all loggers of a trainer."""
    for logger in loggers:
        logger.log_metrics(numbers, step=step)


class CollapseCallback(Callback):
    """Measures two submodules of a LightningModule on held-out images, and logs to the trainer's loggers too.

        Trainer(callbacks=[CollapseCallback(loader, "backbone", "projection_head", out="runs/mine")])

    Args:
        held_out: batches of images without augmentation; see `CollapseMonitor`.
        backbone: name of the submodule with the representations (n, D_b).
        projector: name of the submodule with the embeddings (n, D); empty: there is none.
        options: other keywords of `CollapseMonitor`; steps, epochs and start are those of the trainer.

    Raises:
        UserError: when the training starts: the trainer does not know its number of steps, and `steps` is not given;
            the module has no such submodule.
    """

    def __init__(
        self, held_out: Iterable[Any], backbone: str = "backbone", projector: str = "", **options: Any
    ) -> None:
        self.held_out, self.options = held_out, options
        self.backbone, self.projector = backbone, projector
        self.monitor: CollapseMonitor | None = None
        self._losses: list[Any] = []
        self._lr: float | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure the initial networks."""
        known = {"steps": trainer.estimated_stepping_batches, "start": trainer.global_step}
        options: dict[str, Any] = known | {"log": partial(log_to_all, trainer.loggers)} | self.options
        if not 0 < options["steps"] < math.inf:
            raise UserError(
                "the trainer has no number of steps; give max_epochs, max_steps, or CollapseCallback(steps=…)"
            )
        if math.isfinite(batches := trainer.num_training_batches):
            options.setdefault("epochs", options["steps"] / math.ceil(batches / trainer.accumulate_grad_batches))
        networks = find_networks(pl_module, self.backbone, self.projector)
        self.monitor = CollapseMonitor(held_out=self.held_out, **networks, **options)
        self._taken = trainer.global_step

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        """Read the learning rate of the step."""
        self._lr = optimizer.param_groups[0]["lr"]

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *_: Any) -> None:
        """Keep the loss of a batch, which Lightning divides by the number of batches of a step, and count the step."""
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if loss is not None:
            self._losses.append(loss * trainer.accumulate_grad_batches)
        if self.monitor and trainer.global_step > self._taken:
            self._taken = trainer.global_step
            loss = sum(self._losses) / len(self._losses) if self._losses else None
            self.monitor.step(loss, lr=self._lr)
            self._losses.clear()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Close the log."""
        if self.monitor:
            self.monitor.close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Close the log."""
        self.on_train_end(trainer, pl_module)
