"""Load a MODEL (a run or its checkpoint, a model of timm or of the hub, a file of weights) as a frozen backbone with its preprocessing."""

import contextlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import Any

import timm
import timm.data
import torch
from huggingface_hub import model_info, snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError
from jaxtyping import Float
from safetensors import safe_open
from torch import Tensor, nn

from fullrank.arguments import MODELS, check_weights_file, parse_model
from fullrank.errors import UserError, suggest
from fullrank.images import Preprocess
from fullrank.images.pixel_values import same_form
from fullrank.images.user_images import read_pixels, split_images
from fullrank.methods import BackboneConfig, at_size, build_backbone
from fullrank.methods.backbones import check_name
from fullrank.outside_weights import find_naming, load_outside_weights, read_weights
from fullrank.reading import parse_json, read_text
from fullrank.recipes import Recipe, build_encoder, build_preprocess
from fullrank.run import INITIAL, Run
from fullrank.structure import structure

DESCRIPTION = {"name", "arguments", "stem", "preprocess"}
"""The metadata by which a file of `fullrank export` names its network."""
HUB_CONFIG = "config.json"
HUB_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
"""The files of weights of a model of the hub, the preferred one first."""
MAX_CHANNELS = 1024


@dataclass(frozen=True)
class Model:
    """A backbone in eval mode with its preprocessing: `model.features(["a.jpg", "b.jpg"])`."""

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
    step: int | None = None
    """The step of the checkpoint of a run."""
    run: Run | None = None
    """The run, if the model is its newest checkpoint."""
    classes: tuple[str, ...] = ()
    """The names of the classes of the images that a run was trained on, () if they are unknown."""
    note: str = ""
    """What is known about the weights of another library: their names in the file, and the tensors that were not used."""
    initial: Callable[[], nn.Module] | None = None
    """Builds the same network with the weights that a run began with; None if these were random, or if the model is no run."""

    @torch.inference_mode()
    def features(self, images: Any, *, batch_size: int = 256) -> Float[Tensor, "n D"]:
        """Return the features (n, D) of n ≥ 1 images, in order, on the device of the backbone.

        Args:
            images: one image or several: paths of image files, Pillow images, arrays (H, W) or (H, W, C), tensors (C, H, W), a batch (n, H,
                W, C) or (n, C, H, W), or opened images such as `open_images("photos")["all"]`. Arrays and tensors have uint8 values, or
                floats in [0, 1]; the model normalises them.
            batch_size: images per forward pass.

        Raises:
            UserError: there is no image, or an image cannot be read.
        """
        if not isinstance(batch_size, int) or batch_size < 1:
            raise UserError(f"batch_size is {batch_size!r:.60}, expected a positive integer")
        device = next((tensor.device for tensor in self.backbone.parameters()), torch.device("cpu"))
        parts, pixels, images = [], [], split_images(images)
        for number, image in enumerate(images, start=1):
            pixels.append(read_pixels(image, self.preprocess, number=number - 1))
            if len(pixels) == batch_size or number == len(images):
                parts.append(self.backbone(self.preprocess.normalize(torch.stack(same_form(pixels)).to(device))))
                pixels = []
        return torch.cat(parts)


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
        step=checkpoint.step,
        run=run if step is None else None,
        classes=_class_names(checkpoint.meta().get("classes")),
        initial=partial(_initial_backbone, recipe, path / INITIAL) if recipe.init and (path / INITIAL).exists() else None,
    )


def _initial_backbone(recipe: Recipe, file: Path) -> nn.Module:
    """Build the backbone of a run that started with given weights, with these weights.

    Raises:
        UserError: the file is damaged, or belongs to another network.
    """
    backbone, weights = build_encoder(recipe).backbone, read_weights(file)[0]
    try:
        backbone.load_state_dict(weights)
    except RuntimeError as error:
        raise UserError(f"{file} does not match the recipe of its run ({_summary(error)}); restore the file, or remove it") from error
    return backbone


def first_not_finite(weights: Mapping[str, Tensor]) -> str:
    """Return the name and the number of values of the first tensor with NaN or infinity, empty if all weights are finite.

    >>> first_not_finite({"a": torch.zeros(2), "b": torch.tensor([1.0, torch.nan])})
    "'b': 1 of 2 values"
    """
    for name, tensor in weights.items():
        if tensor.is_floating_point() and (count := int((~tensor.isfinite()).sum())):
            return f"'{name}': {count} of {tensor.numel()} values"
    return ""


def _finite_checkpoint(run: Run, step: int) -> str:
    """Return the remedy for weights that are not finite: the newest earlier checkpoint whose weights are."""
    for checkpoint in reversed([checkpoint for checkpoint in run.checkpoints if checkpoint.step < step]):
        with contextlib.suppress(UserError):
            if not first_not_finite(checkpoint.weights()):
                return f"use the earlier checkpoint {run.path}@{checkpoint.step}"
    return "no earlier checkpoint has finite weights; train again, with a lower --optimizer.lr or in 32-true precision"


def _class_names(names: Any) -> tuple[str, ...]:
    return tuple(names) if isinstance(names, list) and all(isinstance(name, str) for name in names) else ()


def load_timm(name: str) -> Model:
    """Load a timm model with its pretrained weights.

    Size, mean and std are timm's, and so is the side to which images are resized before the crop (256 for many models of 224 px). The
    filter is bilinear; timm's evaluation may use another one.
    """
    if not timm.is_model(name):
        raise UserError(f"unknown timm model '{name}', expected one of timm.list_models(){suggest(name, timm.list_models())}")
    if not timm.is_model_pretrained(name):
        hint = suggest(name, timm.list_pretrained())
        raise UserError(
            f"timm:{name} has no pretrained weights, expected one of timm.list_pretrained(){hint}; timm-untrained:{name} has random weights"
        )
    try:
        _check_hub(name)
        network = timm.create_model(name, pretrained=True, num_classes=0)
    except Exception as error:  # the hub raises exceptions of many types
        raise UserError(
            f"the weights of timm:{name} are not available ({_summary(error)}); "
            "connect to the internet once so that they are cached, or give a RUN or file:PATH"
        ) from error
    spec, preprocess = BackboneConfig(name=name), _timm_preprocess(network)
    return Model(f"timm:{name}", network.eval(), preprocess, spec, untrained=partial(_build_untrained, spec, preprocess.channels))


def load_timm_untrained(name: str) -> Model:
    """Load a timm model with random weights, equal at each call; the hub is not needed."""
    if not timm.is_model(name):
        raise UserError(f"unknown timm model '{name}', expected one of timm.list_models(){suggest(name, timm.list_models())}")
    spec = BackboneConfig(name=name)
    network = _build_untrained(spec, 3)
    untrained = partial(_build_untrained, spec, 3)
    return Model(f"timm-untrained:{name}", network.eval(), _timm_preprocess(network), spec, untrained=untrained)


def load_hub(name: str) -> Model:
    """Load a model of the Hugging Face hub whose config.json names a network of timm, as `timm.models.push_to_hf_hub` writes it.

    A model.safetensors of `fullrank export` describes its own network, so that another stem is built too. No code of the model is executed.

    Args:
        name: OWNER/NAME, or OWNER/NAME@REVISION.

    Raises:
        UserError: the model is not available, or is no model of timm.
    """
    model, what = f"hf-hub:{name}", f"config.json of hf-hub:{name}"
    folder = _hub_folder(name)
    file = next(folder / file for file in HUB_WEIGHTS if (folder / file).exists())
    if file.suffix == ".safetensors" and describes_network(file):
        return replace(load_file(file), name=model)
    try:
        config = parse_json(read_text(folder / HUB_CONFIG))
    except (OSError, ValueError) as error:
        raise UserError(f"{what} cannot be read ({_summary(error)}); give another model") from error
    if not isinstance(config, dict) or not isinstance(config.get("architecture"), str):
        raise UserError(f"{what} names no network of timm ('architecture'); give a model of timm, or file:PATH with the weights of another")
    arguments = config.get("model_args") or {}
    if isinstance(arguments, dict):
        arguments = {key: value for key, value in arguments.items() if key not in ("num_classes", "in_chans")}
    spec = structure({"name": config["architecture"], "arguments": arguments}, BackboneConfig, what)
    check_name(spec.name)
    try:
        usual = timm.get_pretrained_cfg(spec.name)
        cfg = (usual.to_dict() if usual else {}) | (config.get("pretrained_cfg") or {})
        preprocess = _data_preprocess(timm.data.resolve_data_config(pretrained_cfg=cfg))
    except Exception as error:  # a stranger's file
        raise UserError(f"{what} has no valid pretrained_cfg ({_summary(error)}); give another model") from error
    _check_preprocess(preprocess, what)
    network = _build_untrained(spec, preprocess.channels)
    weights, metadata = read_weights(file)
    if broken := first_not_finite(weights):
        raise UserError(f"the weights of {model} are not finite ({broken}); give another model")
    note = load_outside_weights(network, weights, model, spec, metadata.get("entry", ""))
    return Model(model, network.eval(), preprocess, spec, untrained=partial(_build_untrained, spec, preprocess.channels), note=note)


def _hub_folder(name: str) -> Path:
    """Return the folder with the config.json and the weights of a model of the hub: from the cache, or downloaded.

    Raises:
        UserError: the model does not exist, lacks one of these files, or cannot be downloaded.
    """
    repository, _, revision = name.partition("@")
    wanted: dict[str, Any] = {"revision": revision or None, "allow_patterns": [HUB_CONFIG, *HUB_WEIGHTS]}

    def complete(folder: Path) -> bool:
        return (folder / HUB_CONFIG).exists() and any((folder / file).exists() for file in HUB_WEIGHTS)

    with contextlib.suppress(LocalEntryNotFoundError):
        if complete(folder := Path(snapshot_download(repository, local_files_only=True, **wanted))):
            return folder
    try:
        model_info(repository, revision=revision or None, timeout=10)  # without internet, a download would be tried again and again
        folder = Path(snapshot_download(repository, **wanted))
    except Exception as error:  # the hub raises exceptions of many types
        raise UserError(
            f"hf-hub:{name} is not available ({_summary(error)}); check the name, connect to the internet once so that it is cached, "
            "or give file:PATH"
        ) from error
    if not complete(folder):
        raise UserError(f"hf-hub:{name} has no {HUB_CONFIG} with {' or '.join(HUB_WEIGHTS)}, as timm's models have; give a model of timm")
    return folder


def _timm_preprocess(network: nn.Module) -> Preprocess:
    """Return the preprocessing with timm's size, resize, mean and standard deviation."""
    return _data_preprocess(timm.data.resolve_model_data_config(network))


def _data_preprocess(data: dict[str, Any]) -> Preprocess:
    channels, size, _ = data["input_size"]
    resize = math.floor(size / data["crop_pct"]) if data["crop_mode"] == "center" else size
    mean, std = (tuple(map(float, data[name])) for name in ("mean", "std"))
    return Preprocess(int(channels), int(size), mean, std, resize=resize if resize > size else 0)


def _check_hub(name: str) -> None:
    """Request the model once from the hub if its weights are not cached; without internet, timm would retry for a minute."""
    cfg = timm.get_pretrained_cfg(name)
    if cfg is None or cfg.hf_hub_id is None:  # the weights are not on the hub
        return
    try:
        snapshot_download(cfg.hf_hub_id, local_files_only=True)
    except LocalEntryNotFoundError:
        model_info(cfg.hf_hub_id, timeout=10)


def load_file(path: Path, **network: Any) -> Model:
    """Load a file of `fullrank export`, whose metadata describes backbone and preprocessing, or weights of another library.

    Args:
        path: a safetensors file, or a file of `torch.save`, which is read without executing code.
        **network: for weights of another library, `backbone` and the other arguments of `load`.
    """
    weights, metadata = read_weights(path)
    if broken := first_not_finite(weights):
        raise UserError(f"the weights of {path} are not finite ({broken}); give another file, such as one of an earlier checkpoint")
    if not metadata.keys() >= DESCRIPTION:
        if "backbone" not in network:
            raise UserError(
                f"{path} does not name its network; expected a file of `fullrank export`, or the name of a timm model: "
                "--backbone.name resnet50 (backbone='resnet50' in Python)"
            )
        return _load_outside(path, weights, entry=metadata.get("entry", ""), **network)
    if network:
        raise UserError(f"{path} describes its own network, so {', '.join(network)} must be left out")
    what = f"metadata of {path}"
    try:
        values = {name: json.loads(metadata[name]) for name in ("arguments", "last_residual", "preprocess", "classes") if name in metadata}
    except (ValueError, RecursionError) as error:
        raise UserError(f"{what} cannot be read ({_summary(error)}); export the model again") from error
    classes, preprocess = _class_names(values.pop("classes", [])), structure(values.pop("preprocess"), Preprocess, f"{what}, preprocess")
    _check_preprocess(preprocess, what)
    spec = structure({"name": metadata["name"], "stem": metadata["stem"], **values}, BackboneConfig, what)
    backbone = _build_untrained(spec, preprocess.channels)
    try:
        backbone.load_state_dict(weights)
    except RuntimeError as error:
        raise UserError(f"the weights in {path} do not match its metadata ({_summary(error)}); export the model again") from error
    untrained = partial(_build_untrained, spec, preprocess.channels)
    return Model(f"file:{path}", backbone.eval(), preprocess, spec, untrained=untrained, classes=classes)


def describes_network(path: Path) -> bool:
    """Return whether a file names its network, as the files of `fullrank export` do."""
    try:
        check_weights_file(path)
        with safe_open(path, "pt") as file:
            return (file.metadata() or {}).keys() >= DESCRIPTION
    except UserError:
        raise
    except Exception:  # a file of torch.save, or a damaged one, which `read_weights` reports
        return False


def _load_outside(
    path: Path,
    weights: dict[str, Tensor],
    *,
    backbone: BackboneConfig | str,
    entry: str = "",
    channels: int | None = None,
    size: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> Model:
    """Build a network and load the weights of another library into it."""
    if not isinstance(backbone, BackboneConfig | str):
        raise UserError(f"backbone is {backbone!r:.60}, expected the name of a timm model or a BackboneConfig")
    if channels is not None and (not isinstance(channels, int) or channels < 1):
        raise UserError(f"channels is {channels!r:.60}, expected a positive integer")
    spec = BackboneConfig(name=backbone) if isinstance(backbone, str) else backbone
    network = _build_untrained(spec, channels or 3)
    spec, channels = _as_in_file(network, spec, weights, channels=channels, size=size)
    network = _build_untrained(spec, channels)
    note = load_outside_weights(network, weights, path, spec, entry)
    usual = _timm_preprocess(network)
    given = {"channels": channels, "size": size, "mean": list(mean) if isinstance(mean, tuple) else mean}
    given["std"] = list(std) if isinstance(std, tuple) else std
    usual_values: dict[str, Any] = {"size": spec.arguments.get("img_size", usual.size)}
    for name in ("mean", "std"):  # timm's are for three channels; other networks get the average
        values = getattr(usual, name)
        usual_values[name] = list(values) if len(values) == channels else [sum(values) / len(values)] * channels
    preprocess = structure(usual_values | {name: value for name, value in given.items() if value is not None}, Preprocess, "network")
    _check_preprocess(preprocess, f"network of {path}")
    try:
        with torch.inference_mode():
            network.eval()(torch.zeros(1, channels, preprocess.size, preprocess.size))
    except Exception as error:  # each network of timm raises its own type
        remedy = "give another --size, or the size of the network in --backbone.arguments"
        raise UserError(f"{spec.name} does not take images of {preprocess.size} px ({_summary(error)}); {remedy}") from error
    untrained = partial(_build_untrained, spec, channels)
    note = f"{note}; images of {preprocess.size} px, mean {preprocess.mean}, std {preprocess.std} (--size, --mean, --std)"
    return Model(f"file:{path}", network.eval(), preprocess, spec, untrained=untrained, note=note)


def _as_in_file(
    network: nn.Module, spec: BackboneConfig, weights: Mapping[str, Tensor], *, channels: int | None, size: int | None
) -> tuple[BackboneConfig, int]:
    """Return the network and its channels with what a file of weights shows, where the user gave nothing.

    The first convolution shows the channels, and position embeddings show the size of the images: n patches are √n × √n.
    """
    wanted: Mapping[str, Tensor] = network.state_dict()
    names = find_naming(wanted, weights)[1]
    for name in first_convolutions(network):
        found = weights.get(names.get(name, ""))
        if channels is None and found is not None and found.ndim == 4 and found.shape[1] <= MAX_CHANNELS:
            channels = found.shape[1] if wanted[name].shape[1] == 3 else None
    found, patches = weights.get(names.get("pos_embed", "")), getattr(network, "patch_embed", None)
    if found is not None and patches is not None and found.ndim == 3 and found.shape != wanted["pos_embed"].shape:
        others = wanted["pos_embed"].shape[1] - patches.num_patches
        side = math.isqrt(max(found.shape[1] - others, 0))
        if side**2 == found.shape[1] - others and "img_size" not in spec.arguments and size is None:
            spec = replace(spec, arguments={**spec.arguments, "img_size": side * patches.patch_size[0]})
    return spec, channels or 3


def first_convolutions(network: nn.Module) -> list[str]:
    """Return the names of the weights that take the channels of the image, as timm describes the network.

    >>> first_convolutions(timm.create_model("test_resnet"))
    ['conv1.0.weight']
    """
    names = (getattr(network, "pretrained_cfg", None) or {}).get("first_conv") or ()
    return [f"{name}.weight" for name in ([names] if isinstance(names, str) else names)]


def _check_preprocess(preprocess: Preprocess, what: str) -> None:
    """Check size and statistics.

    Raises:
        UserError: a value does not fit.
    """
    if not (1 <= preprocess.channels <= 2**12 and 1 <= preprocess.size <= 2**14):
        raise UserError(
            f"{what}: channels is {preprocess.channels} and size is {preprocess.size}, expected at least 1 and at most 16384 px"
        )
    if preprocess.resize and not preprocess.size <= preprocess.resize <= 2**15:
        raise UserError(
            f"{what}: resize is {preprocess.resize}, expected 0, or at least the size of {preprocess.size} px and at most 32768"
        )
    for name, values in (("mean", preprocess.mean), ("std", preprocess.std)):
        if len(values) != preprocess.channels or not all(math.isfinite(value) and (name == "mean" or value > 0) for value in values):
            kind = "positive values" if name == "std" else "values"
            raise UserError(f"{what}: {name} is {values}, expected {preprocess.channels} {kind}, one per channel (--{name})")


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
        "classes": json.dumps(model.classes),
    }


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
