"""What every process but the first does between two steps, while the first records them."""

from fullrank.data import TrainingData
from fullrank.monitoring.run_logger import checkpoint_steps
from fullrank.recipes import Recipe
from fullrank.training import Step


class NullLogger:
    """Has the methods of a `RunLogger` and writes nothing: it takes part where the first process has to hear of the others.

    Args:
        recipe: complete.
        data: whose unreadable files the first process lists.
        total: steps of the run.
    """

    def __init__(self, recipe: Recipe, data: TrainingData, *, total: int) -> None:
        self.data = data
        self.saves = checkpoint_steps(total, recipe.checkpoints)

    def __enter__(self) -> "NullLogger":
        return self

    def __exit__(self, *_: object) -> None:
        """Leave what ended the block alone."""

    def watch(self, step: int) -> None:
        """Do nothing: the first process measures, on weights that are the same everywhere."""

    def after(self, step: Step, *, waited: float) -> None:
        """Take part in the checkpoints that are due."""
        if step.step in self.saves:
            self.checkpoint(step.step)

    def checkpoint(self, step: int) -> None:
        """Tell the first process which files could not be read here."""
        self.data.decode_errors.all_gather()
