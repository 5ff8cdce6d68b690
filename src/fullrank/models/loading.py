"""`load`: the MODEL that a user names (a run, a model of timm or the hub, a file of weights) as a frozen backbone.

Here are runs and the files of `fullrank export`; `outside` has models of timm, of the hub and of other libraries.
"""

import os
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from torch import nn

from fullrank.errors import UserError, suggest
from fullrank.methods import BackboneConfig, at_size
from fullrank.models.model import HasPath, Model, ModelLike
from fullrank.models.outside import class_names, load_file, load_hub, load_timm
from fullrank.models.weights import Weights, check_finite, read_weights, summarize
from fullrank.recipes import Recipe, build_encoder, build_preprocess, read_recipe
from fullrank.recipes.resolve import paths_beside
from fullrank.training import Checkpoint, list_checkpoints

# The forms of a MODEL.
MODELS = "RUN, RUN@STEP, timm:NAME, timm-untrained:NAME, hf-hub:OWNER/NAME or file:PATH"
SCHEMES = ("timm", "timm-untrained", "hf-hub", "file")
# OWNER/NAME, or OWNER/NAME@REVISION.
HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*(@[\w][\w./-]*)?", re.ASCII)
# The weights that a run with `init` began with, in its directory.
INITIAL = "initial.safetensors"


def load(
    model: ModelLike,
    *,
    backbone: BackboneConfig | str | None = None,
    channels: int | None = None,
    size: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> Model:
    """Load a MODEL.

    | MODEL | meaning |
    |---|---|
    | `RUN` | the newest checkpoint of a run directory |
    | `RUN@STEP` | the checkpoint of step STEP |
    | `timm:NAME` | a timm model with its pretrained weights |
    | `timm-untrained:NAME` | a timm model with random weights |
    | `hf-hub:OWNER/NAME` | a timm model of the Hugging Face hub; `@REVISION` chooses a commit |
    | `file:PATH` | a file of `fullrank export`, or the weights of another library, with `backbone` |

    Args:
        model: a MODEL, a `Run`, or a loaded model, which is returned unchanged.
        backbone: the network of a file of another library (torchvision, solo-learn, lightly, a plain state dict): a
            timm name, or a `BackboneConfig` for another stem or arguments.
        channels: channels of the images of such a network; by default those of its first convolution.
        size: side of its images in pixels; by default that of its position embeddings, or else the size that timm gives
            for the network.
        mean: mean of each channel, for pixels in [0, 1]; by default timm's, or their average for other than three
            channels.
        std: standard deviation of each channel; by default timm's.

    Raises:
        UserError: the model does not exist, a file is damaged or does not match the network, or weights are not finite.

    >>> load("no/such/run")
    Traceback (most recent call last):
    fullrank.errors.UserError: model 'no/such/run' is no run directory; expected RUN, RUN@STEP, timm:NAME, \
timm-untrained:NAME, hf-hub:OWNER/NAME or file:PATH
    """
    given: Any = {"backbone": backbone, "channels": channels, "size": size, "mean": mean, "std": std}
    given = {name: value for name, value in given.items() if value is not None}
    if isinstance(model, Model):
        return model
    text = str(model.path if isinstance(model, HasPath) else model)
    kind, name, step = parse_model(text)
    if kind == "file":
        return load_file(Path(name), **given)
    if given:
        names = ", ".join(given)
        raise UserError(f"{names} describe the network of a file:PATH, but the model is '{text}'; leave them out")
    if kind == "run":
        return load_run(Path(name), step, name=text)
    return load_hub(name) if kind == "hf-hub" else load_timm(name, pretrained=kind == "timm")


class ModelName(NamedTuple):
    """The parts of a MODEL.

    Attributes:
        name: The path of the run or the file, the name of timm's model, or OWNER/NAME on the Hugging Face hub.
        step: The step in RUN@STEP.
    """

    kind: Literal["run", "timm", "timm-untrained", "hf-hub", "file"]
    name: str
    step: int | None = None


def parse_model(text: str) -> ModelName:
    """Return the parts of a MODEL; the directory of a run exists.

    Raises:
        UserError: the text is no MODEL, or there is no such directory.

    >>> parse_model("timm:resnet18")
    ModelName(kind='timm', name='resnet18', step=None)
    """
    scheme, _, rest = text.partition(":")
    if scheme == "hf-hub" and not HUB_NAME.fullmatch(rest):
        raise UserError(f"model '{text}' names no model of the hub; expected hf-hub:OWNER/NAME, or with @REVISION")
    if scheme in SCHEMES and rest:
        return ModelName(scheme, rest)
    if text and os.path.isdir(text):
        return ModelName("run", text)
    path, at, step = text.rpartition("@")
    if at and os.path.isdir(path):
        if not (step.isascii() and step.isdecimal()):
            raise UserError(f"model '{text}': the step is '{step}', expected a number, e.g. {path}@1000")
        return ModelName("run", path, int(step))
    what = f"a file; write file:{text}, or give" if os.path.isfile(text) else "no run directory; expected"
    hint = suggest(scheme, SCHEMES) if rest else suggest(path or text, paths_beside(path or text))
    raise UserError(f"model '{text}' is {what} {MODELS}{hint}")


def check_run(path: Path) -> None:
    """Check that a path is a run directory.

    Raises:
        UserError: it has no recipe.json.
    """
    if not os.path.isfile(path / "recipe.json"):  # Path.is_file raises an error if the folder cannot be read
        hint = suggest(str(path), paths_beside(str(path)))
        raise UserError(f"'{path}' is not a run directory, it has no recipe.json; give the folder of a run{hint}")


def load_run(path: Path, step: int | None = None, *, name: str | None = None) -> Model:
    """Load the backbone and the projector from the newest checkpoint of a run, or from the checkpoint of `step`."""
    recipe, checkpoint = read_recipe(path / "recipe.json"), find_checkpoint(path, step)
    encoder, weights = build_encoder(recipe), checkpoint.weights()
    check_finite(weights, checkpoint.path, f"use an earlier checkpoint, {path}@STEP, or train again with a lower rate")
    for part in ("backbone", "projector"):
        own = {name.removeprefix(f"{part}."): each for name, each in weights.items() if name.startswith(f"{part}.")}
        _fill(getattr(encoder, part), own, f"checkpoint {checkpoint.path} does not match {path / 'recipe.json'}")
    with_init = recipe.init and (path / INITIAL).exists()
    return Model(
        name=name or str(path),
        backbone=encoder.backbone.eval(),
        preprocess=build_preprocess(recipe),
        spec=at_size(recipe.backbone, [view.size for view in recipe.views]),
        untrained=partial(_build_backbone, recipe),
        projector=encoder.projector.eval(),
        recipe=recipe,
        step=checkpoint.step,
        path=path if step is None else None,
        classes=class_names(checkpoint.meta().get("classes")),
        initial=partial(_build_backbone, recipe, path / INITIAL) if with_init else None,
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


def _build_backbone(recipe: Recipe, file: Path | None = None) -> nn.Module:
    """Build the backbone of a run with its random weights, or with those of a file."""
    backbone = build_encoder(recipe).backbone
    if file is not None:
        _fill(backbone, read_weights(file)[0], f"{file} does not match the recipe of its run")
    return backbone


def _fill(network: nn.Module, weights: Weights, what: str) -> None:
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        raise UserError(f"{what} ({summarize(error)}); restore these files, or make them again") from error
