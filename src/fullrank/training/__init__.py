"""One step after another: the loop as a generator on Lightning Fabric, optimizers, schedules, checkpoints."""

from fullrank.training.checkpoints import Checkpoint, list_checkpoints, save_checkpoint
from fullrank.training.feeds import memory_batches
from fullrank.training.fit import Step, fit
from fullrank.training.optimizers import OptimizerConfig, build_optimizer, split_parameters
from fullrank.training.schedules import ScheduleConfig, factor

__all__ = [
    "Checkpoint",
    "OptimizerConfig",
    "ScheduleConfig",
    "Step",
    "build_optimizer",
    "factor",
    "fit",
    "list_checkpoints",
    "memory_batches",
    "save_checkpoint",
    "split_parameters",
]
