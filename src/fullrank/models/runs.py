"""The MODEL that is a run, or one of its checkpoints."""

import contextlib
from functools import partial
from pathlib import Path

from torch import nn

from fullrank.errors import UserError
from fullrank.methods import at_size
from fullrank.models.model import Model
from fullrank.models.network import class_names, first_not_finite, summarize
from fullrank.models.outside_weights import read_weights
from fullrank.recipes import Recipe, build_encoder, build_preprocess, read_recipe
from fullrank.training import Checkpoint, list_checkpoints

INITIAL = "initial.safetensors"
"""The weights that a run with `init` began with, in its directory."""


def load_run(path: Path, step: int | None = None, *, name: str | None = None) -> Model:
    """Load the backbone and the projector from the newest checkpoint of a run, or from the checkpoint of `step`."""
    recipe, checkpoint = read_recipe(path / "recipe.json"), find_checkpoint(path, step)
    encoder, weights = build_encoder(recipe), checkpoint.weights()
    if broken := first_not_finite(weights):
        raise UserError(
            f"the weights of {checkpoint.path} are not finite ({broken}); {_finite_checkpoint(path, checkpoint.step)}"
        )
    try:
        for prefix, network in (("backbone.", encoder.backbone), ("projector.", encoder.projector)):
            network.load_state_dict(
                {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}
            )
    except RuntimeError as error:
        raise UserError(
            f"checkpoint {checkpoint.path} does not match {path / 'recipe.json'} ({summarize(error)}); restore both files"
        ) from error
    return Model(
        name=name or str(path),
        backbone=encoder.backbone.eval(),
        preprocess=build_preprocess(recipe),
        spec=at_size(recipe.backbone, [view.size for view in recipe.views]),
        untrained=partial(_untrained_backbone, recipe),
        projector=encoder.projector.eval(),
        recipe=recipe,
        step=checkpoint.step,
        path=path if step is None else None,
        classes=class_names(checkpoint.meta().get("classes")),
        initial=partial(_initial_backbone, recipe, path / INITIAL)
        if recipe.init and (path / INITIAL).exists()
        else None,
    )


def find_checkpoint(path: Path, step: int | None = None) -> Checkpoint:
    """Return the checkpoint of `step` in a run directory, by default the newest.

    Raises:
        UserError: it does not exist.
    """
    found = {checkpoint.step: checkpoint for checkpoint in list_checkpoints(path / "checkpoints")}
    if not found:
        raise UserError(f"{path} has no checkpoint yet; wait for the first checkpoint, or train again")
    if step is not None and step not in found:
        raise UserError(
            f"{path} has no checkpoint of step {step}; choose one of the steps {', '.join(map(str, found))} "
            "(--keep_checkpoints decides how many checkpoints a run keeps)"
        )
    return found[max(found) if step is None else step]


def _untrained_backbone(recipe: Recipe) -> nn.Module:
    return build_encoder(recipe).backbone


def _initial_backbone(recipe: Recipe, file: Path) -> nn.Module:
    """Build the backbone of a run that started with given weights, with these weights.

    Raises:
        UserError: the file is damaged, or belongs to another network.
    """
    backbone, weights = build_encoder(recipe).backbone, read_weights(file)[0]
    try:
        backbone.load_state_dict(weights)
    except RuntimeError as error:
        raise UserError(
            f"{file} does not match the recipe of its run ({summarize(error)}); restore the file, or remove it"
        ) from error
    return backbone


def _finite_checkpoint(path: Path, step: int) -> str:
    """Return the remedy for weights that are not finite: the newest earlier checkpoint whose weights are."""
    for checkpoint in reversed(
        [checkpoint for checkpoint in list_checkpoints(path / "checkpoints") if checkpoint.step < step]
    ):
        with contextlib.suppress(UserError):
            if not first_not_finite(checkpoint.weights()):
                return f"use the earlier checkpoint {path}@{checkpoint.step}"
    return "no earlier checkpoint has finite weights; train again, with a lower --optimizer.lr or in 32-true precision"
