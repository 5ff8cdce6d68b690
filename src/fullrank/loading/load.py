"""`load`: a MODEL as a frozen backbone with its preprocessing; and the MODEL that is a run or its checkpoint."""

import contextlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch import nn

from fullrank.arguments import MODELS, parse_model
from fullrank.errors import UserError
from fullrank.loading.model import Model
from fullrank.loading.network import class_names, first_not_finite, summarize
from fullrank.loading.outside_weights import read_weights
from fullrank.loading.timm_models import load_hub, load_timm, load_timm_untrained
from fullrank.loading.weight_files import load_file
from fullrank.methods import BackboneConfig, at_size
from fullrank.recipes import Recipe, build_encoder, build_preprocess
from fullrank.run import INITIAL, Run


def load(
    model: "str | Path | Run | Model",
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
        backbone: the network of a file of another library (torchvision, solo-learn, lightly, a plain state dict): a timm name, or a
            `BackboneConfig` for another stem or arguments.
        channels: channels of the images of such a network; by default those of its first convolution.
        size: side of its images in pixels; by default that of its position embeddings, or else the size that timm gives for the network.
        mean: mean of each channel, for pixels in [0, 1]; by default timm's, or their average for other than three channels.
        std: standard deviation of each channel; by default timm's.

    Raises:
        UserError: the model does not exist, a file is damaged or does not match the network, or weights are not finite.

    >>> load("no/such/run")
    Traceback (most recent call last):
    fullrank.errors.UserError: model 'no/such/run' is no run directory; expected RUN, RUN@STEP, timm:NAME, timm-untrained:NAME, \
hf-hub:OWNER/NAME or file:PATH
    """
    network = {"backbone": backbone, "channels": channels, "size": size, "mean": mean, "std": std}
    network = {name: value for name, value in network.items() if value is not None}
    if isinstance(model, Model):
        return model
    text = str(model.path if isinstance(model, Run) else model)
    if not isinstance(model, str | Path | Run) or not text or "\0" in text:
        raise UserError(f"model is {model!r:.60} ({type(model).__name__}), expected {MODELS}")
    kind, name, step = parse_model(text)
    if kind == "file":
        return load_file(Path(name), **network)
    if network:
        raise UserError(f"{', '.join(network)} describe the network of a file:PATH, but the model is '{text}'; leave them out")
    if kind == "run":
        return load_run(Path(name), step, name=text)
    return {"timm": load_timm, "timm-untrained": load_timm_untrained, "hf-hub": load_hub}[kind](name)


def load_run(path: Path, step: int | None = None, *, name: str | None = None) -> Model:
    """Load the backbone and the projector from the newest checkpoint of a run, or from the checkpoint of `step`."""
    run = Run(path)
    recipe, checkpoint = run.recipe, run.checkpoint(step)
    encoder, weights = build_encoder(recipe), checkpoint.weights()
    if broken := first_not_finite(weights):
        raise UserError(f"the weights of {checkpoint.path} are not finite ({broken}); {_finite_checkpoint(run, checkpoint.step)}")
    try:
        for prefix, network in (("backbone.", encoder.backbone), ("projector.", encoder.projector)):
            network.load_state_dict({name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)})
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
        run=run if step is None else None,
        classes=class_names(checkpoint.meta().get("classes")),
        initial=partial(_initial_backbone, recipe, path / INITIAL) if recipe.init and (path / INITIAL).exists() else None,
    )


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
        raise UserError(f"{file} does not match the recipe of its run ({summarize(error)}); restore the file, or remove it") from error
    return backbone


def _finite_checkpoint(run: Run, step: int) -> str:
    """Return the remedy for weights that are not finite: the newest earlier checkpoint whose weights are."""
    for checkpoint in reversed([checkpoint for checkpoint in run.checkpoints if checkpoint.step < step]):
        with contextlib.suppress(UserError):
            if not first_not_finite(checkpoint.weights()):
                return f"use the earlier checkpoint {run.path}@{checkpoint.step}"
    return "no earlier checkpoint has finite weights; train again, with a lower --optimizer.lr or in 32-true precision"


def resolve_device(accelerator: str | torch.device = "auto") -> torch.device:
    """Return the device with this name; 'auto' is a GPU if there is a GPU.

    Raises:
        UserError: the device is not available.
    """
    if isinstance(accelerator, torch.device):
        return accelerator
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if accelerator == "auto":
        return torch.device(next(name for name in ("cuda", "mps", "cpu") if available[name]))
    if not isinstance(accelerator, str) or not available.get(accelerator.partition(":")[0]):
        names = ", ".join(name for name, is_available in available.items() if is_available)
        raise UserError(f"device '{accelerator}' is not available; choose from auto, {names}")
    return torch.device(accelerator)
