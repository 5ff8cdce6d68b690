"""The collapse monitor as a callback of the Hugging Face Trainer."""

from typing import Any

from torch import nn
from transformers import TrainerCallback

from fullrank.monitor.collapse_monitor import CollapseMonitor


class CollapseCallback(TrainerCallback):
    """Observes two submodules of the model of a Trainer.

        Trainer(model, callbacks=[CollapseCallback("vit", "projector", out="runs/mine")])

    Args:
        backbone: name of the submodule with the representations; empty: the model.
        projector: name of the submodule with the embeddings; empty: there is none.
        options: keywords of `CollapseMonitor`; steps, epochs and start are those of the trainer.
    """

    def __init__(self, backbone: str = "", projector: str = "", **options: Any) -> None:
        self.names, self.options = [backbone, *([projector] if projector else [])], options
        self.monitor: CollapseMonitor | None = None
        self.loss = None

    def on_train_begin(self, args: Any, state: Any, control: Any, *, model: nn.Module, **_: Any) -> None:
        """Begin to observe."""
        known = {"steps": state.max_steps, "epochs": float(args.num_train_epochs), "start": state.global_step}
        self.monitor = CollapseMonitor(*map(model.get_submodule, self.names), **(known | self.options))
        self._hook = model.register_forward_hook(self._read_loss)

    def _read_loss(self, module: nn.Module, _: Any, output: Any) -> None:
        if module.training:
            self.loss = output["loss"].detach() if "loss" in output else None

    def on_step_end(self, args: Any, state: Any, control: Any, *, lr_scheduler: Any = None, **_: Any) -> None:
        """Count the step."""
        if self.monitor:
            self.monitor.step(self.loss, lr=lr_scheduler.get_last_lr()[0] if lr_scheduler else None)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Close the log."""
        if self.monitor:
            self.monitor.close()
            self._hook.remove()
