"""Resume a run: what a checkpoint remembers, what must be equal, what may differ, and what is said about it.

What decides the weights must be equal: the recipe but for `FREE_FIELDS`, and the images. The number of epochs may
change; then the learning rate follows the schedule of the new number from there on.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from textwrap import shorten
from types import MappingProxyType
from typing import Any

import torch

from fullrank.config import JsonObject
from fullrank.distributed import rank, world_size
from fullrank.errors import UserError
from fullrank.images import Fingerprint
from fullrank.images.source_uri import absolute_source
from fullrank.recipes import Recipe, decides_weights, differences, read_recipe, to_dict, with_fields
from fullrank.recipes.recipe import flatten
from fullrank.run.data import TrainingData
from fullrank.run.directory import Run
from fullrank.run.environment import rounding
from fullrank.training import Checkpoint

# Fields that a new run measures or chooses → their value before that.
OPEN = {"data.mean": [], "data.std": [], "data.bits": 0, "machine.precision": "auto"}


def resumed_recipe(path: Path, given: Recipe, changes: Mapping[str, Any] = MappingProxyType({})) -> Recipe:
    """Return the recipe with which the run in `path` continues.

    Args:
        path: the run directory.
        given: a recipe that must equal the stored one in what decides the weights; its `FREE_FIELDS` are used.
        changes: fields that change, by dotted name: the number of epochs, and sources of images that have moved.

    Raises:
        UserError: there is no run, or `given` is another recipe.
    """
    recipe = read_recipe(path / "recipe.json")
    stored, asked = flatten(to_dict(recipe)), flatten(to_dict(given))
    kept = {name: stored[name] for name, unset in OPEN.items() if asked[name] == unset}
    given = with_fields(given, kept | ({"epochs": recipe.epochs} if "epochs" in changes else {}))
    if given.fingerprint != recipe.fingerprint:
        lines = differences(recipe, given)
        deciding = [line for line in lines if decides_weights(line.partition(" ")[0])] or lines
        remedy = "resume without a recipe (another number of epochs is --epochs), or start a new run"
        raise UserError(f"{path} was made with another recipe ({'; '.join(deciding[:4])}); {remedy}")
    return with_fields(given, changes)


def with_absolute_source(recipe: Recipe) -> Recipe:
    """Return the recipe with absolute paths of its images, so that a run can be resumed in another working
    directory.
    """
    probe = replace(recipe.probe, labelled=recipe.probe.labelled and absolute_source(recipe.probe.labelled))
    return replace(recipe, data=replace(recipe.data, source=absolute_source(recipe.data.source)), probe=probe)


def checkpoint_meta(recipe: Recipe, data: TrainingData, pass_ends: list[list[int]]) -> dict[str, Any]:
    """Return what a checkpoint remembers: hashes of the recipe and the images, what decides the last bits of the
    weights, and the order of a stream with the ends of its passes in each process.
    """
    return {
        "recipe": recipe.fingerprint,
        "epochs": recipe.epochs,
        "images": data.num_images,
        "stream": data.stream,
        "pass_ends": pass_ends,
        "rounding": rounding(recipe),
        "fingerprint": data.fingerprint and vars(data.fingerprint),
        "classes": list(data.sample.classes),
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
        remedy = "restore that file, remove the checkpoint, or start a new run"
        raise UserError(f"checkpoint {checkpoint.path} has another recipe than {path / 'recipe.json'}; {remedy}")
    return checkpoint


def check_images(checkpoint: Checkpoint, recipe: Recipe, data: TrainingData) -> None:
    """Check that a run has the images on which its checkpoint was trained.

    Raises:
        UserError: the images differ.
    """
    if data.fingerprint is None:  # a stream
        return
    if changes := checkpoint.entry(Fingerprint, "fingerprint").changes(data.fingerprint):
        raise UserError(
            f"{recipe.data.source} has other images than those on which {checkpoint.path} was trained: "
            f"{'; '.join(changes)}; restore the images, give --data if they have moved, or start a new run"
        )


def restore_stream(checkpoint: Checkpoint, recipe: Recipe, data: TrainingData) -> list[str]:
    """Let a stream go on where the checkpoint was written, and return what to say of it. Another number of processes
    divides the images anew, so a new pass begins.

    Raises:
        UserError: the metadata of the checkpoint is damaged.
    """
    before, now = checkpoint.entry(JsonObject, "stream"), data.stream or {}
    ends = checkpoint.entry(list[list[int]], "pass_ends")
    changed = [f"{name} {before.get(name)} → {value}" for name, value in now.items() if before.get(name) != value]
    lines = [f"the stream has another order: {', '.join(changed)}"] if changed else []
    used = checkpoint.step * recipe.batch_size // world_size()
    if len(ends) != world_size():
        data.pass_ends[:] = [used] * (1 + max(map(len, ends), default=0))  # all passes so far end here
        divided = f"the processes, {world_size()} instead of {len(ends)}, divide the stream anew"
        return [*lines, f"{divided}, so that a new pass begins"]
    data.pass_ends[:] = ends[rank()]
    again = used - max(data.pass_ends, default=0)
    return [*lines, f"a process first reads {again:,} images of the stream again, without decoding them"]


def describe_changes(path: Path, checkpoint: Checkpoint | None, recipe: Recipe, steps_per_epoch: int) -> list[str]:
    """Return one line for each difference that may change the result of a resumed run.

    Raises:
        UserError: the run has more epochs already.
    """
    if checkpoint is None:
        return [f"{path} has no checkpoint yet; the run starts again from step 0"]
    lines, step, epochs = [], checkpoint.step, recipe.epochs
    before, total = checkpoint.entry(int, "epochs"), epochs * steps_per_epoch
    if total < step:
        raise UserError(f"--epochs is {epochs}, but the run already has {step} steps, more than {total}; give more")
    if total == step:
        lines.append(f"{path} is finished, it has all of its {step:,} steps; for more, give --epochs")
    if epochs != before:
        schedules = f"from step {step} on, its schedules are those of {epochs} epochs"
        lines.append(f"the run now has {epochs} epochs instead of {before}: {schedules}")
    now, then = rounding(recipe), checkpoint.entry(JsonObject, "rounding")
    if recipe.data.storage == "streaming":
        then.pop("processes", None)  # more than rounding: `restore_stream`
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
        found = f"does not match the run's recipe.json ({shorten(str(error), 160, placeholder=' …')})"
        raise UserError(f"checkpoint {checkpoint.path} {found}; restore both, or start a new run") from error
    return checkpoint.step
