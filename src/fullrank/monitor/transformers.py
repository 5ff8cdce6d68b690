"""The collapse monitor as a callback of the Hugging Face Trainer."""

from collections.abc import Iterable
from typing import Any

from torch import nn
from transformers import TrainerCallback

from fullrank.monitor.collapse_monitor import CollapseMonitor, find_networks


class CollapseCallback(TrainerCallback):
    """Measures two submodules of the model of a Trainer on held-out images, and logs the losses that the Trainer logs.

        Trainer(model, callbacks=[CollapseCallback(loader, "vit", "projector", out="runs/mine")])

    Args:
        held_out: batches of images without augmentation; see `CollapseMonitor`.
        backbone: name of the submodule with the representations; empty: the model.
        projector: name of the submodule with the embeddings; empty: there is none.
        options: other keywords of `CollapseMonitor`; steps, epochs, start and warmup are those of the trainer.

    Raises:
        UserError: when the training starts: the model has no such submodule.
    """

    def __init__(self, held_out: Iterable[Any], backbone: str = "", projector: str = "", **options: Any) -> None:
        self.held_out, self.options = held_out, options
        self.backbone, self.projector = backbone, projector
        self.monitor: CollapseMonitor | None = None
        self._lr: float | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, *, model: nn.Module, **_: Any) -> None:
        """Measure the initial networks."""
        known = {"steps": state.max_steps, "epochs": float(state.num_train_epochs), "start": state.global_step}
        known["warmup"] = args.get_warmup_steps(state.max_steps)
        networks = find_networks(model, self.backbone, self.projector)
        self.monitor = CollapseMonitor(held_out=self.held_out, **networks, **(known | self.options))

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, *, optimizer: Any, **_: Any) -> None:
        """Read the learning rate of the step."""
        self._lr = optimizer.param_groups[0]["lr"]

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Count the step."""
        if self.monitor:
            self.monitor.step()

    def on_log(self, args: Any, state: Any, control: Any, *, logs: Any = None, **_: Any) -> None:
        """Log the loss that the Trainer logs: the mean since the last time."""
        if self.monitor and "loss" in (logs or {}):
            self.monitor.log_loss(logs["loss"], lr=self._lr)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Close the log."""
        if self.monitor:
            self.monitor.close()
