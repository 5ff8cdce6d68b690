"""Resume a run: what a checkpoint remembers, what must be equal, what may differ, and what is said about it.

What decides the weights must be equal: the recipe but for `FREE_FIELDS`, and the images. The number of epochs may
change; then the learning rate follows the schedule of the new number from there on.
"""

from dataclasses import replace
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch

from fullrank.config import JsonObject, from_json
from fullrank.errors import UserError
from fullrank.images.fingerprint import Fingerprint
from fullrank.images.source_uri import absolute_source
from fullrank.recipes import Recipe, decides_weights, differences, read_recipe
from fullrank.run.data import TrainingData
from fullrank.run.directory import Run
from fullrank.run.environment import rounding
from fullrank.training import Checkpoint, lr_factor


def resumed_recipe(
    path: Path,
    given: Recipe | None = None,
    *,
    source: str | None = None,
    labelled: str | None = None,
    epochs: int | None = None,
) -> Recipe:
    """Return the recipe with which the run in `path` continues.

    Args:
        path: the run directory.
        given: a recipe that must equal the stored one in what decides the weights; its `FREE_FIELDS` are used.
        source: the source of the images, if they have moved.
        labelled: the source of the labelled images, `probe.labelled`, if they have moved.
        epochs: the number of epochs, if it changes.

    Raises:
        UserError: there is no run, or `given` is another recipe.
    """
    recipe = read_recipe(path / "recipe.json")
    if given is not None:
        measured = {name: getattr(given.data, name) or getattr(recipe.data, name) for name in ("mean", "std", "bits")}
        given = replace(given, data=replace(given.data, **measured))
        if epochs is not None:
            given = replace(given, epochs=recipe.epochs)
        if given.machine.precision == "auto":  # the precision was chosen when the run started
            given = replace(given, machine=replace(given.machine, precision=recipe.machine.precision))
        one_streams = (given.data.storage == "streaming") != (recipe.data.storage == "streaming")  # in another order
        lines = [(line.partition(" ")[0], line) for line in differences(recipe, given)]
        if changes := [
            line for name, line in lines if decides_weights(name) or (one_streams and name == "data.storage")
        ]:
            raise UserError(
                f"{path} was made with another recipe ({'; '.join(changes[:4])}); resume without a recipe (another "
                "number of epochs is --epochs), or start a new run"
            )
        recipe = given
    if source is not None:
        recipe = replace(recipe, data=replace(recipe.data, source=source))
    if labelled is not None:
        recipe = replace(recipe, probe=replace(recipe.probe, labelled=labelled))
    return recipe if epochs is None else replace(recipe, epochs=epochs)


def with_absolute_source(recipe: Recipe) -> Recipe:
    """Return the recipe with absolute paths of its images, so that a run can be resumed in another working
    directory.
    """
    probe = replace(recipe.probe, labelled=recipe.probe.labelled and absolute_source(recipe.probe.labelled))
    return replace(recipe, data=replace(recipe.data, source=absolute_source(recipe.data.source)), probe=probe)


def checkpoint_meta(recipe: Recipe, data: TrainingData) -> dict[str, Any]:
    """Return what a checkpoint remembers: hashes of the recipe and the images, and what decides the last bits of the
    weights.
    """
    return {
        "recipe": recipe.fingerprint,
        "epochs": recipe.epochs,
        "images": data.num_images,
        "rounding": rounding(recipe),
        "fingerprint": data.fingerprint and vars(data.fingerprint),
        "classes": list(data.classes),
    }


def newest_checkpoint(path: Path) -> Checkpoint | None:
    """Return the newest checkpoint of a run, or None if it has no checkpoint; the run then starts again from step 0.

    Raises:
        UserError: the checkpoint was made with another recipe, or its metadata is damaged.
    """
    run = Run(path)
    if not run.checkpoints:
        return None
    checkpoint = run.checkpoint()
    meta = checkpoint.meta()
    epochs = meta.get("epochs")
    if type(epochs) is not int or meta.get("recipe") != replace(run.recipe, epochs=epochs).fingerprint:
        raise UserError(
            f"checkpoint {checkpoint.path} belongs to another recipe than {path / 'recipe.json'}; restore that file, "
            "remove the checkpoint, or start a new run"
        )
    return checkpoint


def check_images(checkpoint: Checkpoint, recipe: Recipe, data: TrainingData) -> None:
    """Check that a run has the images on which its checkpoint was trained.

    Raises:
        UserError: the images differ.
    """
    meta, source = checkpoint.meta(), recipe.data.source
    if meta.get("images") != data.num_images:
        changes = [f"{data.num_images} in place of {meta.get('images')} images"]
    elif data.fingerprint is None:  # a stream
        return
    else:
        stored = from_json(Fingerprint, meta.get("fingerprint"), f"{checkpoint.path / 'meta.json'}: fingerprint")
        changes = stored.changes(data.fingerprint)
    if changes:
        raise UserError(
            f"{source} has other images than those on which {checkpoint.path} was trained: {'; '.join(changes)}; "
            "restore the images, give --data if they have moved, or start a new run"
        )


def describe_changes(path: Path, checkpoint: Checkpoint | None, recipe: Recipe, steps_per_epoch: int) -> list[str]:
    """Return one line for each difference that may change the result of a resumed run.

    Raises:
        UserError: the run has more epochs already.
    """
    if checkpoint is None:
        return [f"{path} has no checkpoint yet; the run starts again from step 0"]
    lines, meta, step = [], checkpoint.meta(), checkpoint.step
    what = f"{checkpoint.path / 'meta.json'}"
    before, total = from_json(int, meta.get("epochs"), f"{what}: epochs"), recipe.epochs * steps_per_epoch
    if total < step:
        raise UserError(
            f"--epochs is {recipe.epochs}, but the run already has {step} steps, more than {total}; give more epochs"
        )
    if recipe.epochs != before:
        old, new = (
            recipe.optimizer.lr * lr_factor(recipe.schedule, at, steps_per_epoch=steps_per_epoch, total=length)
            for at, length in ((max(step - 1, 0), before * steps_per_epoch), (min(step, total - 1), total))
        )
        lines.append(
            f"the run now has {recipe.epochs} epochs instead of {before}: from step {step} on, its schedules are those "
            f"of {recipe.epochs} epochs (the learning rate goes from {old:.3g} to {new:.3g})"
        )
    now, then = rounding(recipe), from_json(JsonObject, meta.get("rounding"), f"{what}: rounding")
    if changed := [f"{name} {old} → {now.get(name)}" for name, old in then.items() if now.get(name) != old]:
        lines.append(f"the result equals that of an uninterrupted run up to rounding: {', '.join(changed)}")
    return lines


def restore(
    checkpoint: Checkpoint, method: torch.nn.Module, optimizer: torch.optim.Optimizer, probe: torch.nn.Module
) -> int:
    """Load a checkpoint into method, optimizer and probe, and return the step of the checkpoint.

    Raises:
        UserError: the checkpoint is damaged, or its tensors do not match the networks of the recipe.
    """
    weights, state = checkpoint.weights(), checkpoint.state()
    try:
        method.load_state_dict(weights)
        optimizer.load_state_dict(state["optimizer"])
        probe.load_state_dict(state["probe"])
    except (RuntimeError, KeyError, ValueError, TypeError, AttributeError) as error:
        reason = shorten(str(error), 160, placeholder=" …")
        raise UserError(
            f"checkpoint {checkpoint.path} does not match the run's recipe.json ({reason}); restore both, or start a "
            "new run"
        ) from error
    return checkpoint.step
