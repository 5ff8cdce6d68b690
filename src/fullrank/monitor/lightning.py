"""The collapse monitor as a callback of Lightning."""

import math
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from fullrank.errors import UserError
from fullrank.monitor.collapse_monitor import CollapseMonitor


class CollapseCallback(Callback):
    """Observes two submodules of a LightningModule, and logs to its loggers too.

        Trainer(callbacks=[CollapseCallback("backbone", "projection_head", out="runs/mine")])

    Args:
        backbone: name of the submodule with the representations (n, D_b).
        projector: name of the submodule with the embeddings (n, D); empty: there is none.
        options: keywords of `CollapseMonitor`; steps, epochs and start are those of the trainer.

    Raises:
        UserError: the trainer does not know its number of steps, and `steps` is not given.
    """

    def __init__(self, backbone: str = "backbone", projector: str = "", **options: Any) -> None:
        self.names, self.options = [backbone, *([projector] if projector else [])], options
        self.monitor: CollapseMonitor | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin to observe."""
        known = {"steps": trainer.estimated_stepping_batches, "epochs": float(trainer.max_epochs or 1)}
        options = known | {"start": trainer.global_step, "log": self._log(trainer)} | self.options
        if not math.isfinite(options["steps"]):
            raise UserError(
                "the trainer has no number of steps; give max_epochs, max_steps, or CollapseCallback(steps=…)"
            )
        networks = map(pl_module.get_submodule, self.names)
        self.monitor, self._taken = CollapseMonitor(*networks, **options), trainer.global_step

    @staticmethod
    def _log(trainer: Trainer) -> Any:
        def log(numbers: dict[str, float], step: int) -> None:
            for logger in trainer.loggers:
                logger.log_metrics(numbers, step=step)

        return log

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *_: Any) -> None:
        """Count the step, if this batch ends one."""
        if self.monitor and trainer.global_step > self._taken:
            self._taken = trainer.global_step
            loss = outputs["loss"] if isinstance(outputs, dict) else outputs
            self.monitor.step(loss, lr=trainer.optimizers[0].param_groups[0]["lr"])

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Close the log."""
        if self.monitor:
            self.monitor.close()
