"""From a MODEL to a frozen backbone and its preprocessing: a run, one of its checkpoints, a timm model, or an exported file."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import timm
import timm.data
import torch
from PIL import Image
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from fullrank.errors import UserError, perhaps
from fullrank.images import Preprocess
from fullrank.methods import Backbone, build_backbone
from fullrank.recipes import Recipe, build_method, preprocess_of
from fullrank.run import Run


@dataclass(frozen=True)
class Model:
    """A backbone in eval mode, and what it takes to use it."""

    name: str
    """As the user wrote it."""
    backbone: nn.Module
    """float32 images (n, C, S, S), normalised, to features (n, D)."""
    preprocess: Preprocess
    spec: Backbone
    """How timm builds it."""
    untrained: Callable[[], nn.Module]
    """The same network with the weights it began with."""
    projector: nn.Module | None = None
    """A run's projector."""
    recipe: Recipe | None = None
    """A run's recipe."""

    @torch.inference_mode()
    def features(self, images: Sequence[Image.Image]) -> Tensor:
        """Return the features (n, D) of Pillow images."""
        pixels = torch.stack([self.preprocess.pixels(image) for image in images])
        return self.backbone(self.preprocess.normalize(pixels))


def load(model: str | Path) -> Model:
    """Load a MODEL: `RUN`, `RUN@STEP`, `timm:NAME` (with timm's weights) or `file:PATH` (what `fullrank export` wrote).

    Raises:
        UserError: no such model, or a damaged file.
    """
    text = str(model)
    scheme, _, rest = text.partition(":")
    if scheme == "timm" and rest:
        return load_timm(rest)
    if scheme == "file" and rest:
        return load_file(Path(rest))
    path, _, step = text.partition("@") if not Path(text).exists() else (text, "", "")
    if not Path(path).is_dir():
        what = "a file; write file:" + path if Path(path).is_file() else "no run directory"
        raise UserError(f"model '{text}' is {what}; expected RUN, RUN@STEP, timm:NAME or file:PATH")
    if step and not step.isdigit():
        raise UserError(f"model '{text}': the step is '{step}', expected a number, such as {path}@1000")
    return load_run(Path(path), int(step) if step else None, name=text)


def load_run(path: Path, step: int | None = None, *, name: str | None = None) -> Model:
    """Load the backbone and projector of a run's newest checkpoint, or of that of `step`."""
    run = Run(path)
    recipe, checkpoint = run.recipe, run.checkpoint(step)
    method = build_method(recipe)
    try:
        method.load_state_dict(checkpoint.weights())
    except RuntimeError as error:
        raise UserError(f"checkpoint {checkpoint.path} does not fit {path / 'recipe.json'} ({str(error).splitlines()[0]})") from error
    return Model(
        name=name or str(path),
        backbone=method.backbone.eval(),
        preprocess=preprocess_of(recipe),
        spec=recipe.backbone,
        untrained=lambda: build_method(recipe).backbone,
        projector=method.projector.eval(),
        recipe=recipe,
    )


def load_timm(name: str) -> Model:
    """Load a timm model with its pretrained weights, and the preprocessing that belongs to them."""
    if not timm.is_model(name):
        raise UserError(f"unknown timm model '{name}'{perhaps(name, timm.list_models())}")
    try:
        network = timm.create_model(name, pretrained=True, num_classes=0)
    except Exception as error:  # the hub answers with a dozen types
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"the weights of timm:{name} cannot be had ({reason}); connect once, so that they are cached, or choose a pretrained name"
        ) from error
    data = timm.data.resolve_model_data_config(network)
    channels, size, _ = data["input_size"]
    spec = Backbone(name=name)
    return Model(
        name=f"timm:{name}",
        backbone=network.eval(),
        preprocess=Preprocess(channels=channels, size=size, mean=tuple(data["mean"]), std=tuple(data["std"])),
        spec=spec,
        untrained=lambda: build_backbone(spec, channels=channels),
    )


def load_file(path: Path) -> Model:
    """Load what `fullrank export` wrote: weights, with name, arguments, stem and preprocessing in the metadata."""
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            weights = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  a method of the file, not a dict
    except FileNotFoundError:
        raise UserError(f"no file {path}; expected what `fullrank export RUN --out FILE` wrote") from None
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is no safetensors file ({error}); expected what `fullrank export RUN --out FILE` wrote") from error
    try:
        spec = Backbone(name=metadata["name"], arguments=json.loads(metadata["arguments"]), stem=metadata["stem"])  # pyright: ignore[reportArgumentType]
        values = json.loads(metadata["preprocess"])
    except (KeyError, ValueError):
        raise UserError(f"{path} does not say which backbone it holds; expected the metadata that `fullrank export` writes") from None
    preprocess = Preprocess(values["channels"], values["size"], tuple(values["mean"]), tuple(values["std"]))
    network = build_backbone(spec, channels=preprocess.channels)
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        raise UserError(f"the weights in {path} do not fit its own metadata ({str(error).splitlines()[0]}); export it again") from error
    return Model(f"file:{path}", network.eval(), preprocess, spec, lambda: build_backbone(spec, channels=preprocess.channels))


def metadata_of(model: Model) -> dict[str, str]:
    """Return what an exported file says of itself, as `load_file` reads it."""
    return {
        "name": model.spec.name,
        "arguments": json.dumps(model.spec.arguments),
        "stem": model.spec.stem,
        "preprocess": json.dumps(vars(model.preprocess)),
    }
