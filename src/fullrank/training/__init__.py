"""The training loop (a generator on Lightning Fabric), optimizers, learning-rate schedules and checkpoints."""

from fullrank.training.checkpoints import Checkpoint, list_checkpoints, save_checkpoint
from fullrank.training.fit import Step, fit
from fullrank.training.optimizers import OptimizerConfig, build_optimizer, set_learning_rate, split_parameters
from fullrank.training.schedules import ScheduleConfig, lr_factor, weight_decay_at

__all__ = [
    "Checkpoint", "OptimizerConfig", "ScheduleConfig", "Step", "build_optimizer", "fit", "list_checkpoints",
    "lr_factor", "save_checkpoint", "set_learning_rate", "split_parameters", "weight_decay_at",
]  # fmt: skip
