"""From a MODEL to a frozen backbone and its preprocessing: a run, one of its checkpoints, a timm model, or an exported file."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from textwrap import shorten

import timm
import timm.data
import torch
from huggingface_hub import model_info, snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from fullrank.errors import UserError, suggest
from fullrank.images import Preprocess
from fullrank.images.source import RawImage
from fullrank.methods import BackboneConfig, build_backbone
from fullrank.recipes import Recipe, build_encoder, build_preprocess
from fullrank.run import Run


@dataclass(frozen=True)
class Model:
    """A backbone in eval mode, and what it takes to use it: `model.features([Image.open("a.jpg")])`."""

    name: str
    """As the user wrote it."""
    backbone: nn.Module
    """float32 images (n, C, S, S), normalised, to features (n, D)."""
    preprocess: Preprocess
    spec: BackboneConfig
    """How timm builds it."""
    untrained: Callable[[], nn.Module]
    """The same network with fresh weights: those that a run began with."""
    projector: nn.Module | None = None
    """A run's projector."""
    recipe: Recipe | None = None
    """A run's recipe."""

    @torch.inference_mode()
    def features(self, images: Sequence[RawImage]) -> Float[Tensor, "n D"]:
        """Return the features (n, D) of n ≥ 1 Pillow images or uint8 arrays (H, W, C), on the device of the backbone."""
        pixels = torch.stack([self.preprocess.pixels(image) for image in images])
        return self.backbone(self.preprocess.normalize(pixels.to(next(self.backbone.parameters()).device)))


def load(model: str | Path) -> Model:
    """Load a MODEL.

    | MODEL | what |
    |---|---|
    | `RUN` | the newest checkpoint of a run directory |
    | `RUN@STEP` | that of a step |
    | `timm:NAME` | a timm model with its pretrained weights |
    | `file:PATH` | what `fullrank export` wrote as safetensors |

    Raises:
        UserError: no such model, or a damaged file.

    >>> load("no/such/run")
    Traceback (most recent call last):
    fullrank.errors.UserError: model 'no/such/run' is no run directory; expected RUN, RUN@STEP, timm:NAME or file:PATH
    """
    text = str(model)
    scheme, _, rest = text.partition(":")
    if scheme == "timm" and rest:
        return load_timm(rest)
    if scheme == "file" and rest:
        return load_file(Path(rest))
    if Path(text).is_dir():
        return load_run(Path(text))
    path, at, step = text.rpartition("@")
    if at and Path(path).is_dir():
        if not step.isdecimal():
            raise UserError(f"model '{text}': the step is '{step}', expected a number, such as {path}@1000")
        return load_run(Path(path), int(step), name=text)
    what = f"a file; write file:{text}, or expected" if Path(text).is_file() else "no run directory; expected"
    raise UserError(f"model '{text}' is {what} RUN, RUN@STEP, timm:NAME or file:PATH")


def load_run(path: Path, step: int | None = None, *, name: str | None = None) -> Model:
    """Load the backbone and projector of a run's newest checkpoint, or of that of `step`."""
    run = Run(path)
    recipe, checkpoint = run.recipe, run.checkpoint(step)
    branch, weights = build_encoder(recipe), checkpoint.weights()
    try:
        for part, network in (("backbone.", branch.backbone), ("projector.", branch.projector)):
            network.load_state_dict({name.removeprefix(part): tensor for name, tensor in weights.items() if name.startswith(part)})
    except RuntimeError as error:
        raise UserError(f"checkpoint {checkpoint.path} does not fit {path / 'recipe.json'} ({_summary(error)}); restore both") from error
    return Model(
        name=name or str(path),
        backbone=branch.backbone.eval(),
        preprocess=build_preprocess(recipe),
        spec=recipe.backbone,
        untrained=lambda: build_encoder(recipe).backbone,
        projector=branch.projector.eval(),
        recipe=recipe,
    )


def load_timm(name: str) -> Model:
    """Load a timm model with its pretrained weights.

    Size, mean and std are timm's. Images are resized to just that size, bilinearly: timm's own evaluation may resize to a larger one
    first, or by another filter.
    """
    if not timm.is_model(name):
        raise UserError(f"unknown timm model '{name}', expected one of timm.list_models(){suggest(name, timm.list_models())}")
    if not timm.is_model_pretrained(name):
        near = suggest(name, timm.list_pretrained())
        raise UserError(f"timm:{name} has no pretrained weights, expected one of timm.list_pretrained(){near}")
    try:
        _ask_the_hub(name)
        network = timm.create_model(name, pretrained=True, num_classes=0)
    except Exception as error:  # the hub answers with a dozen types
        raise UserError(
            f"the weights of timm:{name} cannot be had ({_summary(error)}); "
            "load it once with a network, so that they are cached, or give a RUN or file:PATH"
        ) from error
    data = timm.data.resolve_model_data_config(network)
    channels, size, _ = data["input_size"]
    preprocess = Preprocess(channels=channels, size=size, mean=tuple(data["mean"]), std=tuple(data["std"]))
    spec = BackboneConfig(name=name)
    return Model(f"timm:{name}", network.eval(), preprocess, spec, untrained=partial(_fresh, spec, channels))


def _ask_the_hub(name: str) -> None:
    """Ask the hub, once, for weights that are not cached; without a network, timm would repeat its own request for a minute."""
    cfg = timm.get_pretrained_cfg(name)
    if cfg is None or cfg.hf_hub_id is None:  # they come from elsewhere
        return
    try:
        snapshot_download(cfg.hf_hub_id, local_files_only=True)
    except LocalEntryNotFoundError:
        model_info(cfg.hf_hub_id, timeout=10)


def load_file(path: Path) -> Model:
    """Load what `fullrank export` wrote: weights, with name, arguments, stem and preprocessing in the metadata."""
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            weights = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  a method of the file, not a dict
    except FileNotFoundError:
        raise UserError(f"no file {path}; expected what `fullrank export RUN --out FILE.safetensors` wrote") from None
    except (SafetensorError, OSError) as error:
        raise UserError(
            f"{path} is no safetensors file ({_summary(error)}); expected what `fullrank export RUN --out FILE.safetensors` wrote"
        ) from error
    try:
        spec = BackboneConfig(
            name=metadata["name"],
            arguments=json.loads(metadata["arguments"]),
            stem=metadata["stem"],  # pyright: ignore[reportArgumentType]
            last_residual=json.loads(metadata.get("last_residual", "true")),
        )
        values = json.loads(metadata["preprocess"])
        preprocess = Preprocess(values["channels"], values["size"], tuple(values["mean"]), tuple(values["std"]))
    except (KeyError, ValueError, TypeError):
        raise UserError(f"{path} does not say which backbone it holds; expected the metadata that `fullrank export` writes") from None
    network = _fresh(spec, preprocess.channels)
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        raise UserError(f"the weights in {path} do not fit its own metadata ({_summary(error)}); export it again") from error
    return Model(f"file:{path}", network.eval(), preprocess, spec, untrained=partial(_fresh, spec, preprocess.channels))


def _fresh(spec: BackboneConfig, channels: int) -> nn.Module:
    """Build the network with fresh weights, always the same, and leave torch's global generator alone."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return build_backbone(spec, channels=channels)


def _summary(error: Exception) -> str:
    """Return what an error says, in part of a line, or its type where it says nothing."""
    return shorten(str(error), 160, placeholder=" …") or type(error).__name__


def metadata_of(model: Model) -> dict[str, str]:
    """Return what an exported file says of itself, as `load` reads it."""
    return {
        "name": model.spec.name,
        "arguments": json.dumps(model.spec.arguments),
        "stem": model.spec.stem,
        "last_residual": json.dumps(model.spec.last_residual),
        "preprocess": json.dumps(vars(model.preprocess)),
    }
