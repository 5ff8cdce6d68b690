"""Runs that a figure trains itself: each recipe at its best learning rate, several seeds, one evaluation for all."""

import math
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from fullrank.errors import UserError
from fullrank.recipes import Recipe
from fullrank.run import Run, read_json, write_json
from fullrank.run.pretrain import pretrain
from fullrank.sweep.cell import has_diverged
from fullrank_papers.figures.figure import Rows

CHOICE_SEED = 1000  # of the runs that choose a learning rate
VALIDATION = 0.1  # share of the training images that they are scored on


@dataclass(frozen=True)
class Training:
    """How the recipes of a figure are trained and evaluated.

    Attributes:
        evaluate: Function of a run to its evaluation.
        name: Name of this evaluation in the folder of a run.
        score: Function of an evaluation to the number by which a learning rate is chosen.
        seeds: Number of seeds.
        rates: Learning rates of which each recipe gets its best; none: each keeps its own.
        folder: Where runs are stored and shared between figures; empty: runs are not stored.
    """

    evaluate: Callable[[Run], Rows]
    name: str
    score: Callable[[Rows], float]
    seeds: int
    rates: Sequence[float] = ()
    folder: str = ""


def train(recipes: Mapping[str, Recipe], training: Training, *, data: str | None, seed: int) -> dict[str, list[Rows]]:
    """Train and evaluate each recipe with several seeds from `seed` on; return name → one evaluation per seed.

    Each recipe has the learning rate with the highest score on validation images, with a seed that no other run has. A
    recipe with the learning rate 0 keeps it.

    Raises:
        UserError: the images cannot be read, or a run that is not one of the choice diverged.
    """
    with TemporaryDirectory() as scratch:
        folder = Path(training.folder or scratch)

        def on(recipe: Recipe, seed: int, validation: float = 0.0) -> Recipe:
            images = replace(recipe.data, source=data or recipe.data.source, validation=validation)
            return replace(recipe, data=images, seed=seed)

        def score(recipe: Recipe) -> float:
            recipe = on(recipe, CHOICE_SEED, VALIDATION)
            try:
                return training.score(train_and_evaluate(recipe, training, folder))
            except UserError:
                if not has_diverged(run_path(recipe, folder)):
                    raise
                return -math.inf

        def at_best_rate(recipe: Recipe) -> Recipe:
            rates = training.rates if recipe.optimizer.lr else ()
            tried = [replace(recipe, optimizer=replace(recipe.optimizer, lr=rate)) for rate in rates]
            return max(tried, key=score, default=recipe)

        best = {name: at_best_rate(recipe) for name, recipe in recipes.items()}
        return {
            name: [train_and_evaluate(on(recipe, seed + k), training, folder) for k in range(training.seeds)]
            for name, recipe in best.items()
        }


def run_path(recipe: Recipe, folder: Path) -> Path:
    """Return the directory of a run. The fingerprint does not depend on the place of the images."""
    return folder / f"{recipe.name}-{recipe.fingerprint}-{zlib.crc32(recipe.data.source.encode()):08x}"


def train_and_evaluate(recipe: Recipe, training: Training, folder: Path) -> Rows:
    """Return the evaluation of a recipe's run; a run that `folder` contains already is resumed or only read."""
    path = run_path(recipe, folder)
    evaluation = path / f"evaluation-{training.name}.json"
    if not evaluation.exists():
        start, console = time.process_time(), Console(quiet=True)
        exists = (path / "recipe.json").exists()
        run = pretrain(resume=path, console=console) if exists else pretrain(recipe, out=path, console=console)
        write_json(evaluation, training.evaluate(run) | {"seconds": time.process_time() - start})
    return read_json(evaluation)
