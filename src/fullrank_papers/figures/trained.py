"""Runs that a figure trains itself: of each entry the best recipe, several seeds, one evaluation for all.

A sweep (`fullrank.sweep`) scores probes; here a run is evaluated by a function of the figure.
"""

import math
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
from fullrank.training import ScheduleConfig
from fullrank_papers.figures.figure import Rows

CHOICE_SEED = 1000  # of the runs that choose a recipe; no compared run has it
VALIDATION = 0.1  # share of the training images that they are scored on


def short_run(recipe: Recipe, *, epochs: int, warmup: float) -> Recipe:
    """Return the recipe for a short run: one checkpoint, and no spectra before its end."""
    spectrum = replace(recipe.spectrum, every=10**9)
    return replace(recipe, epochs=epochs, schedule=ScheduleConfig(warmup=warmup), checkpoints=1, spectrum=spectrum)


def at_rates(recipe: Recipe, rates: Sequence[float]) -> list[Recipe]:
    """Return the recipe at each learning rate; without rates, as it is."""
    return [replace(recipe, optimizer=replace(recipe.optimizer, lr=rate)) for rate in rates] or [recipe]


@dataclass(frozen=True)
class Training:
    """How runs are evaluated and stored.

    Attributes:
        evaluate: Function of a run to its evaluation.
        name: Name of this evaluation in the folder of a run.
        score: Function of a run to the number by which a recipe is chosen.
        seeds: Number of seeds.
        folder: Where runs are stored and shared between figures; empty: runs are not stored.
    """

    evaluate: Callable[[Run], Rows]
    name: str
    score: Callable[[Run], float]
    seeds: int
    folder: str = ""


def train(
    candidates: Mapping[str, Sequence[Recipe]], training: Training, *, data: str | None, seed: int
) -> dict[str, list[Rows]]:
    """Train and evaluate one recipe of each entry with several seeds from `seed` on; return name → one evaluation per
    seed.

    Of several recipes it is the one with the highest score on validation images, with a seed that no other run has. A
    recipe with a subset of the images has another one for each seed.

    Raises:
        UserError: the images cannot be read, or a run that is not one of the choice diverged.
    """
    with TemporaryDirectory() as scratch:
        folder = Path(training.folder or scratch)

        def on(recipe: Recipe, seed: int, validation: float = 0.0) -> Recipe:
            images = replace(recipe.data, source=data or recipe.data.source, validation=validation)
            images = replace(images, subset_seed=seed if images.subset else 0)
            return replace(recipe, data=images, seed=seed)

        def score(recipe: Recipe) -> float:
            recipe = on(recipe, CHOICE_SEED, VALIDATION)
            scored = replace(training, evaluate=lambda run: {"score": training.score(run)}, name="score")
            try:
                return train_and_evaluate(recipe, scored, folder)["score"]
            except UserError:
                if not has_diverged(run_path(recipe, folder)):
                    raise
                return -math.inf

        found = {}
        for name, recipes in candidates.items():
            best = max(recipes, key=score) if len(recipes) > 1 else recipes[0]
            runs = [on(best, seed + k) for k in range(training.seeds)]
            found[name] = [train_and_evaluate(recipe, training, folder) for recipe in runs]
        return found


def run_path(recipe: Recipe, folder: Path) -> Path:
    """Return the directory of a run. The fingerprint does not depend on the place of the images."""
    return folder / f"{recipe.name}-{recipe.fingerprint}-{zlib.crc32(recipe.data.source.encode()):08x}"


def train_and_evaluate(recipe: Recipe, training: Training, folder: Path) -> Rows:
    """Return the evaluation of a recipe's run; a run that `folder` contains already is resumed or only read."""
    path = run_path(recipe, folder)
    evaluation = path / f"evaluation-{training.name}.json"
    if not evaluation.exists():
        write_json(evaluation, training.evaluate(pretrain(recipe, out=path, resume=True, console=Console(quiet=True))))
    return read_json(evaluation)
