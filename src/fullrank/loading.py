"""Load a MODEL (a run, a checkpoint of a run, a timm model, or an exported file) as a frozen backbone with its preprocessing."""

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
from fullrank.methods import BackboneConfig, at_size, build_backbone
from fullrank.recipes import Recipe, build_encoder, build_preprocess
from fullrank.run import Run


@dataclass(frozen=True)
class Model:
    """A backbone in eval mode with its preprocessing: `model.features([Image.open("a.jpg")])`."""

    name: str
    """The MODEL, as the user wrote it."""
    backbone: nn.Module
    """Maps normalised float32 images (n, C, S, S) to features (n, D)."""
    preprocess: Preprocess
    spec: BackboneConfig
    """The arguments with which timm builds the backbone."""
    untrained: Callable[[], nn.Module]
    """Builds the same network with random weights; for a run, with the initial weights of the run."""
    projector: nn.Module | None = None
    """The projector of a run."""
    recipe: Recipe | None = None
    """The recipe of a run."""

    @torch.inference_mode()
    def features(self, images: Sequence[RawImage]) -> Float[Tensor, "n D"]:
        """Return the features (n, D) of n ≥ 1 Pillow images or uint8 arrays (H, W, C), on the device of the backbone."""
        pixels = torch.stack([self.preprocess.pixels(image) for image in images])
        return self.backbone(self.preprocess.normalize(pixels.to(next(self.backbone.parameters()).device)))


def load(model: str | Path) -> Model:
    """Load a MODEL.

    | MODEL | meaning |
    |---|---|
    | `RUN` | the newest checkpoint of a run directory |
    | `RUN@STEP` | the checkpoint of step STEP |
    | `timm:NAME` | a timm model with its pretrained weights |
    | `file:PATH` | a safetensors file of `fullrank export` |

    Raises:
        UserError: the model does not exist, or a file is damaged.

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
            raise UserError(f"model '{text}': the step is '{step}', expected a number, e.g. {path}@1000")
        return load_run(Path(path), int(step), name=text)
    what = f"a file; write file:{text}, or give" if Path(text).is_file() else "no run directory; expected"
    raise UserError(f"model '{text}' is {what} RUN, RUN@STEP, timm:NAME or file:PATH")


def load_run(path: Path, step: int | None = None, *, name: str | None = None) -> Model:
    """Load the backbone and the projector from the newest checkpoint of a run, or from the checkpoint of `step`."""
    run = Run(path)
    recipe, checkpoint = run.recipe, run.checkpoint(step)
    encoder, weights = build_encoder(recipe), checkpoint.weights()
    try:
        for prefix, network in (("backbone.", encoder.backbone), ("projector.", encoder.projector)):
            network.load_state_dict({name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)})
    except RuntimeError as error:
        raise UserError(
            f"checkpoint {checkpoint.path} does not match {path / 'recipe.json'} ({_summary(error)}); restore both files"
        ) from error
    return Model(
        name=name or str(path),
        backbone=encoder.backbone.eval(),
        preprocess=build_preprocess(recipe),
        spec=at_size(recipe.backbone, [view.size for view in recipe.views]),
        untrained=lambda: build_encoder(recipe).backbone,
        projector=encoder.projector.eval(),
        recipe=recipe,
    )


def load_timm(name: str) -> Model:
    """Load a timm model with its pretrained weights.

    Size, mean and std are timm's. Images are resized to this size with a bilinear filter; timm's evaluation may resize to a larger size
    first, or use another filter.
    """
    if not timm.is_model(name):
        raise UserError(f"unknown timm model '{name}', expected one of timm.list_models(){suggest(name, timm.list_models())}")
    if not timm.is_model_pretrained(name):
        hint = suggest(name, timm.list_pretrained())
        raise UserError(f"timm:{name} has no pretrained weights, expected one of timm.list_pretrained(){hint}")
    try:
        _check_hub(name)
        network = timm.create_model(name, pretrained=True, num_classes=0)
    except Exception as error:  # the hub raises exceptions of many types
        raise UserError(
            f"the weights of timm:{name} are not available ({_summary(error)}); "
            "connect to the internet once so that they are cached, or give a RUN or file:PATH"
        ) from error
    data = timm.data.resolve_model_data_config(network)
    channels, size, _ = data["input_size"]
    preprocess = Preprocess(channels=channels, size=size, mean=tuple(data["mean"]), std=tuple(data["std"]))
    spec = BackboneConfig(name=name)
    return Model(f"timm:{name}", network.eval(), preprocess, spec, untrained=partial(_build_untrained, spec, channels))


def _check_hub(name: str) -> None:
    """Request the model once from the hub if its weights are not cached; without internet, timm would retry for a minute."""
    cfg = timm.get_pretrained_cfg(name)
    if cfg is None or cfg.hf_hub_id is None:  # the weights are not on the hub
        return
    try:
        snapshot_download(cfg.hf_hub_id, local_files_only=True)
    except LocalEntryNotFoundError:
        model_info(cfg.hf_hub_id, timeout=10)


def load_file(path: Path) -> Model:
    """Load a file of `fullrank export`; its metadata contains the name, arguments and stem of the backbone, and the preprocessing."""
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            weights = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  not a dict
    except FileNotFoundError:
        raise UserError(f"no file {path}; expected a file of `fullrank export RUN --out FILE.safetensors`") from None
    except (SafetensorError, OSError) as error:
        raise UserError(
            f"{path} is no safetensors file ({_summary(error)}); expected a file of `fullrank export RUN --out FILE.safetensors`"
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
        raise UserError(f"{path} has no metadata of a backbone; expected the metadata that `fullrank export` writes") from None
    network = _build_untrained(spec, preprocess.channels)
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        raise UserError(f"the weights in {path} do not match its metadata ({_summary(error)}); export the model again") from error
    return Model(f"file:{path}", network.eval(), preprocess, spec, untrained=partial(_build_untrained, spec, preprocess.channels))


def _build_untrained(spec: BackboneConfig, channels: int) -> nn.Module:
    """Build the network with random weights, equal at each call; torch's global generator is unchanged."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return build_backbone(spec, channels=channels)


def _summary(error: Exception) -> str:
    """Return the shortened message of an error, or the name of its type if the message is empty."""
    return shorten(str(error), 160, placeholder=" …") or type(error).__name__


def export_metadata(model: Model) -> dict[str, str]:
    """Return the metadata that `fullrank export` writes and `load_file` reads."""
    return {
        "name": model.spec.name,
        "arguments": json.dumps(model.spec.arguments),
        "stem": model.spec.stem,
        "last_residual": json.dumps(model.spec.last_residual),
        "preprocess": json.dumps(vars(model.preprocess)),
    }
