"""Resume a run: what a checkpoint remembers, what must be equal, what may differ, and what is said about it.

Only `recipe.json` and one checkpoint are needed. What decides the weights must be equal: the recipe but for
`FREE_FIELDS`, and the images. The number of epochs may change; then the learning rate follows the schedule of the new
number from there on.
"""

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fullrank.errors import UserError
from fullrank.images import Images, MemoryImages
from fullrank.images.fingerprint import Fingerprint
from fullrank.images.source_uri import absolute_source
from fullrank.recipes import Recipe, decides_weights, differences, read_recipe, to_file
from fullrank.run.directory import Run
from fullrank.run.environment import describe_environment, rounding
from fullrank.run.files import read_jsonl, write_json
from fullrank.run.metrics import Metrics
from fullrank.run.replacement import ASIDE, is_run
from fullrank.structure import structure
from fullrank.training import Checkpoint, lr_factor


def resumed_recipe(
    path: Path,
    given: Recipe | None = None,
    *,
    source: str | None = None,
    labelled: str | None = None,
    epochs: int | None = None,
    remedy: str | None = None,
) -> Recipe:
    """Return the recipe with which the run in `path` continues.

    Args:
        path: the run directory.
        given: a recipe that must equal the stored one in what decides the weights; its `FREE_FIELDS` are used.
        source: the source of the images, if they have moved.
        labelled: the source of the labelled images, `probe.labelled`, if they have moved.
        epochs: the number of epochs, if it changes.
        remedy: what to do if `given` is another recipe; None: the words for `fullrank pretrain`.

    Raises:
        UserError: there is no run, or `given` is another recipe.
    """
    recipe = read_recipe(path / "recipe.json")
    if given is not None:
        measured = {name: getattr(given.data, name) or getattr(recipe.data, name) for name in ("mean", "std", "bits")}
        epochs_given = given.epochs if epochs is None else recipe.epochs
        given = replace(given, data=replace(given.data, **measured), epochs=epochs_given)
        if given.machine.precision == "auto":  # the precision was chosen when the run started
            given = replace(given, machine=replace(given.machine, precision=recipe.machine.precision))
        streaming = {given.data.storage, recipe.data.storage} > {
            "streaming"
        }  # a stream has another order of the images
        lines = ((line.partition(" ")[0], line) for line in differences(recipe, given))
        if changes := [line for name, line in lines if decides_weights(name) or (streaming and name == "data.storage")]:
            if remedy is None:
                remedy = "resume without a recipe, or start a new run"
                if given.epochs != recipe.epochs:
                    remedy += (
                        f"; for another number of epochs, give --resume {path} --epochs {given.epochs} without a recipe"
                    )
            raise UserError(f"{path} was made with another recipe ({'; '.join(changes[:4])}); {remedy}")
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


def checkpoint_meta(recipe: Recipe, num_images: int, images: Fingerprint | None) -> dict[str, Any]:
    """Return what a checkpoint remembers: hashes of the recipe and the images, and what decides the last bits of the
    weights.
    """
    return {
        "recipe": recipe.fingerprint,
        "epochs": recipe.epochs,
        "log_every": recipe.log_every,
        "images": num_images,
        "rounding": rounding(recipe),
        "fingerprint": images and images.to_json(),
    }


def newest_checkpoint(path: Path) -> Checkpoint | None:
    """Return the newest checkpoint of a run, or None if it has no checkpoint; the run then starts again from step 0.

    Raises:
        UserError: the checkpoint was made with another recipe, or its metadata is damaged.
    """
    run = Run(path)
    if not run.checkpoints:
        return None
    checkpoint, stored = run.checkpoint(), run.recipe
    meta = checkpoint.meta()
    for name, kind in (("recipe", str), ("epochs", int), ("log_every", int), ("images", int), ("rounding", dict)):
        if name in meta and type(meta[name]) is not kind:
            raise UserError(
                f"{checkpoint.path / 'meta.json'} is damaged: {name} is {meta[name]!r}, expected {kind.__name__}; restore the file, "
                "or remove this folder to use the previous checkpoint"
            )
    made_with = replace(stored, epochs=meta.get("epochs", stored.epochs)).fingerprint
    if meta.get("recipe") != made_with and "checksums" in meta:  # older versions hashed other fields
        raise UserError(
            f"checkpoint {checkpoint.path} belongs to another recipe than {path / 'recipe.json'}; restore that file, or start a new run"
        )
    return checkpoint


def check_images(
    path: Path,
    checkpoint: Checkpoint | None,
    recipe: Recipe,
    images: Images | MemoryImages,
    num_images: int,
    found: Fingerprint | None,
) -> None:
    """Check that a run has the images on which its checkpoint was trained, and that its checkpoints are not lost.

    Args:
        path: the run directory.
        checkpoint: the newest checkpoint.
        recipe: the recipe of the resumed run.
        images: the training images.
        num_images: number of images per epoch.
        found: the fingerprint of the images; None for a stream.

    Raises:
        UserError: the images differ, or the log is longer than a run without a checkpoint can be.
    """
    if checkpoint is None:
        _check_no_checkpoint_lost(path, num_images)
        return
    meta, source = checkpoint.meta(), recipe.data.source
    if meta.get("images") != num_images:
        raise UserError(
            f"{checkpoint.path} was trained on {meta.get('images')} images, but {source} now has {num_images}; "
            "restore the images, or start a new run"
        )
    if found is None or meta.get("fingerprint") is None:  # a stream, or a checkpoint of an old version
        return
    stored = Fingerprint.from_json(meta["fingerprint"], source=f"{checkpoint.path / 'meta.json'}: fingerprint")
    if changes := stored.changes(found):
        raise UserError(
            f"{source} has other images than those on which {checkpoint.path} was trained: {'; '.join(changes)}; "
            "restore the images, give --data if they have moved, or start a new run"
        )


def _check_no_checkpoint_lost(path: Path, num_images: int) -> None:
    stored = read_recipe(path / "recipe.json")
    first = max(round(num_images // stored.batch_size * stored.epochs / stored.checkpoints), 1)
    reached = max((row.step for row in Metrics.read(path / "metrics.jsonl")), default=0)
    if reached > first:
        raise UserError(
            f"{path} has no checkpoint, but its log reaches step {reached} and its first checkpoint was due at step {first}; "
            f"restore {path / 'checkpoints'}, or start a new run"
        )


def describe_changes(path: Path, checkpoint: Checkpoint | None, recipe: Recipe, steps_per_epoch: int) -> list[str]:
    """Return one line for each difference that may change the result of a resumed run.

    Raises:
        UserError: the run has more epochs already.
    """
    if checkpoint is None:
        lines = [f"{path} has no checkpoint yet; the run starts again from step 0"]
        if is_run(path / ASIDE):
            lines.append(
                f"its first checkpoint removes the run that it replaces, which is in {path / ASIDE}; to keep that run, move it away"
            )
        return lines
    lines, meta, step = [], checkpoint.meta(), checkpoint.step
    before = meta.get("epochs", read_recipe(path / "recipe.json").epochs)
    if recipe.epochs != before:
        total = recipe.epochs * steps_per_epoch
        if total < step:
            raise UserError(
                f"--epochs is {recipe.epochs}, but the run already has {step} steps, more than {total}; give more epochs"
            )
        old, new = (
            recipe.optimizer.lr
            * lr_factor(recipe.schedule, at, steps_per_epoch=steps_per_epoch, total=epochs * steps_per_epoch)
            for at, epochs in ((max(step - 1, 0), before), (min(step, total - 1), recipe.epochs))
        )
        lines.append(
            f"the run now has {recipe.epochs} epochs instead of {before}: after step {step}, its schedules are those of {recipe.epochs} "
            f"epochs (the learning rate goes from {old:.3g} to {new:.3g}), so the result equals neither a run of {before} nor one of "
            f"{recipe.epochs} epochs"
        )
    now = rounding(recipe)
    changed = [
        f"{name} {value} → {now[name]}"
        for name, value in meta.get("rounding", {}).items()
        if name in now and now[name] != value
    ]
    if changed:
        lines.append(
            f"the weights equal those of an uninterrupted run up to rounding, not bit for bit: {', '.join(changed)}"
        )
    return lines


def repair_files(path: Path, checkpoint: Checkpoint | None, recipe: Recipe) -> list[str]:
    """Write the files of a resumed run that are missing or out of date, and return one line for each loss.

    A damaged file is renamed to `NAME.damaged`, but for metrics.jsonl, which the user can repair.

    Raises:
        UserError: metrics.jsonl is damaged.
    """
    recipe = with_absolute_source(recipe)
    if to_file(recipe) != to_file(read_recipe(path / "recipe.json")):
        write_json(path / "recipe.json", to_file(recipe))
    step = checkpoint.step if checkpoint else 0
    lines = [*_repair_environment(path, recipe)]
    metrics = Metrics.read(path / "metrics.jsonl")
    if checkpoint:
        every = checkpoint.meta().get("log_every", 0)
        logged = max((row.step for row in metrics.train if row.step <= step), default=0)
        if not metrics or (every and logged < step // every * every):
            state = (
                "is missing"
                if not (path / "metrics.jsonl").exists()
                else f"ends at step {logged}"
                if metrics
                else "is empty"
            )
            lines.append(f"metrics.jsonl {state}: the log of the steps {logged + 1} to {step} is lost")
        lines += _repair_spectra(path, step, [row.step for row in metrics.spectrum if row.step <= step])
    try:
        for error in read_jsonl(path / "decode_errors.jsonl")[0]:
            structure(error, dict[str, str], "decode_errors.jsonl")
            _ = error["name"], error["reason"]
    except (UserError, KeyError):
        lines.append(
            _rename_damaged(path / "decode_errors.jsonl", "images that could not be read before are no longer listed")
        )
    return lines


def _repair_environment(path: Path, recipe: Recipe) -> Iterable[str]:
    file, consequence = path / "environment.json", "it now describes this machine, and the durations count from here"
    try:
        if Run(path).environment:
            return
        yield f"environment.json is {'empty' if file.exists() else 'missing'}: {consequence}"
    except UserError:
        yield _rename_damaged(file, consequence)
    write_json(file, describe_environment(recipe))


def _repair_spectra(path: Path, step: int, expected: list[int]) -> Iterable[str]:
    file = path / "spectrum.npz"
    try:
        history = Run(path).spectra
    except UserError:
        yield _rename_damaged(file, f"the spectra up to step {step} are lost")
        return
    found = [] if history is None else [at for at in history.steps.tolist() if at <= step]
    lost = len(set(expected) - set(found))
    if not found:
        yield f"spectrum.npz is {'empty' if file.exists() else 'missing'}: the spectra up to step {step} are lost"
    elif lost:
        yield f"spectrum.npz lacks {lost} of the {len(expected)} spectra up to step {step}"


def _rename_damaged(file: Path, consequence: str) -> str:
    damaged = file.with_name(f"{file.name}.damaged")
    try:
        os.replace(file, damaged)
    except OSError as error:
        raise UserError(
            f"{file} is damaged and cannot be renamed ({error.strerror}); remove it, or fix its permissions"
        ) from error
    return f"{file.name} is damaged and was renamed to {damaged.name}: {consequence}"
