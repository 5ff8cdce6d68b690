"""`load`: the MODEL that a user names (a run, a model of timm or the hub, a file of weights) as a frozen backbone."""

import contextlib
import difflib
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import timm
import timm.data
import torch
from huggingface_hub import model_info, snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors import safe_open
from torch import Tensor, nn

from fullrank.config import from_json
from fullrank.errors import UserError, suggest
from fullrank.files import parse_json, read_text
from fullrank.images import Preprocess
from fullrank.methods import BackboneConfig, at_size
from fullrank.methods.backbones import check_name
from fullrank.models.model import (
    HasPath,
    Model,
    ModelLike,
    build_untrained,
    checked,
    first_convolutions,
    summarize,
    timm_preprocess,
)
from fullrank.models.weights import check_finite, find_naming, load_outside_weights, read_weights
from fullrank.recipes import Recipe, build_encoder, build_preprocess, read_recipe
from fullrank.training import Checkpoint, list_checkpoints

MODELS = "RUN, RUN@STEP, timm:NAME, timm-untrained:NAME, hf-hub:OWNER/NAME or file:PATH"
"""The forms of a MODEL."""
HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*(@[\w][\w./-]*)?", re.ASCII)
"""OWNER/NAME, or OWNER/NAME@REVISION."""
HUB_CONFIG, HUB_WEIGHTS = "config.json", ("model.safetensors", "pytorch_model.bin")
"""The files of a model of the hub; the preferred weights first."""
DESCRIPTION = {"name", "arguments", "stem", "preprocess"}
"""The metadata by which a file of `fullrank export` names its network."""
INITIAL = "initial.safetensors"
"""The weights that a run with `init` began with, in its directory."""
MAX_CHANNELS = 1024


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
    given = {"backbone": backbone, "channels": channels, "size": size, "mean": mean, "std": std}
    given = {name: value for name, value in given.items() if value is not None}
    if isinstance(model, Model):
        return model
    text = str(model.path if isinstance(model, HasPath) else model)
    kind, name, step = parse_model(text)
    if kind == "file":
        return _load_file(Path(name), **given)
    if given:
        names = ", ".join(given)
        raise UserError(f"{names} describe the network of a file:PATH, but the model is '{text}'; leave them out")
    if kind == "run":
        return load_run(Path(name), step, name=text)
    return {"timm": _load_timm, "timm-untrained": _load_untrained, "hf-hub": _load_hub}[kind](name)


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
    if scheme in ("file", "timm", "timm-untrained", "hf-hub") and rest:
        return ModelName(scheme, rest)
    if text and os.path.isdir(text):
        return ModelName("run", text)
    path, at, step = text.rpartition("@")
    if at and os.path.isdir(path):
        if not (step.isascii() and step.isdecimal()):
            raise UserError(f"model '{text}': the step is '{step}', expected a number, e.g. {path}@1000")
        return ModelName("run", path, int(step))
    what = f"a file; write file:{text}, or give" if os.path.isfile(text) else "no run directory; expected"
    kinds = ("timm", "timm-untrained", "hf-hub", "file")
    hint = suggest(scheme, kinds) if rest and "/" not in scheme else suggest_run(path if step.isdecimal() else text)
    raise UserError(f"model '{text}' is {what} {MODELS}{hint}")


def check_run(path: Path) -> None:
    """Check that a path is a run directory.

    Raises:
        UserError: it has no recipe.json.

    >>> check_run(Path("no-such-run"))
    Traceback (most recent call last):
    fullrank.errors.UserError: 'no-such-run' is not a run directory, it has no recipe.json; give the folder of a run
    """
    if not os.path.isfile(path / "recipe.json"):  # Path.is_file raises an error if the folder cannot be read
        raise UserError(
            f"'{path}' is not a run directory, it has no recipe.json; give the folder of a run{suggest_run(str(path))}"
        )


def suggest_run(text: str) -> str:
    """Return `; did you mean 'runs/photos'?` for the existing run whose path is nearest to a mistyped one, or an empty
    string.

    Each folder of the path that does not exist is replaced by the nearest existing name in its place.

    >>> suggest_run("no-such-run")
    ''
    """
    path = Path(text)
    found = Path(path.anchor)
    for part in path.relative_to(path.anchor).parts:
        if not os.path.isdir(found / part):
            try:
                names = difflib.get_close_matches(part, [each.name for each in os.scandir(found) if each.is_dir()], n=1)
            except OSError:
                return ""
            if not names:
                return ""
            part = names[0]
        found /= part
    return f"; did you mean '{found}'?" if found != path and os.path.isfile(found / "recipe.json") else ""


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
        classes=_class_names(checkpoint.meta().get("classes")),
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


def _fill(network: nn.Module, weights: Mapping[str, Tensor], what: str) -> None:
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        raise UserError(f"{what} ({summarize(error)}); restore these files, or make them again") from error


def _load_timm(name: str) -> Model:
    """Load a timm model with its pretrained weights and its own preprocessing."""
    _check_known(name)
    if not timm.is_model_pretrained(name):
        remedy = f"{suggest(name, timm.list_pretrained())}; timm-untrained:{name} has random weights"
        raise UserError(f"timm:{name} has no pretrained weights, expected one of timm.list_pretrained(){remedy}")
    cfg = timm.get_pretrained_cfg(name)
    try:
        if cfg is not None and cfg.hf_hub_id is not None:
            _reach(cfg.hf_hub_id)
        network = timm.create_model(name, pretrained=True, num_classes=0)
    except Exception as error:  # the hub raises exceptions of many types
        raise UserError(
            f"the weights of timm:{name} are not available ({summarize(error)}); "
            "connect to the internet once so that they are cached, or give a RUN or file:PATH"
        ) from error
    return _model(f"timm:{name}", network, BackboneConfig(name=name), _own_preprocess(network))


def _load_untrained(name: str) -> Model:
    """Load a timm model with random weights, equal at each call; the hub is not needed."""
    _check_known(name)
    spec = BackboneConfig(name=name)
    network = build_untrained(spec, 3)
    return _model(f"timm-untrained:{name}", network, spec, _own_preprocess(network))


def _check_known(name: str) -> None:
    if not timm.is_model(name):
        models = timm.list_models()
        raise UserError(f"unknown timm model '{name}', expected one of timm.list_models(){suggest(name, models)}")


def _reach(repository: str, **wanted: Any) -> Path | None:
    """Return the folder of a model of the hub that is cached; else ask the hub once whether it has the model.

    Without internet, a download would be tried again and again.
    """
    try:
        return Path(snapshot_download(repository, local_files_only=True, **wanted))
    except LocalEntryNotFoundError:
        model_info(repository, revision=wanted.get("revision"), timeout=10)
        return None


def _load_hub(name: str) -> Model:
    """Load a model of the hub whose config.json names a network of timm, as `timm.models.push_to_hf_hub` writes it.

    A model.safetensors of `fullrank export` describes its own network, so that another stem is built too. No code of
    the model is executed.
    """
    model, what = f"hf-hub:{name}", f"config.json of hf-hub:{name}"
    folder = _hub_folder(name)
    file = next(folder / file for file in HUB_WEIGHTS if (folder / file).exists())
    if describes_network(file):
        return replace(_load_file(file), name=model)
    try:
        config = parse_json(read_text(folder / HUB_CONFIG))
        name, arguments = str(config["architecture"]), dict(config.get("model_args") or {})
    except (OSError, ValueError, TypeError, KeyError) as error:
        remedy = "give a model of timm, or file:PATH with the weights of another"
        raise UserError(f"{what} names no network of timm ({summarize(error)}); {remedy}") from error
    arguments = {key: value for key, value in arguments.items() if key not in ("num_classes", "in_chans")}
    spec = from_json(BackboneConfig, {"name": name, "arguments": arguments}, what)
    check_name(spec.name)
    try:
        usual = timm.get_pretrained_cfg(spec.name)
        cfg = (usual.to_dict() if usual else {}) | (config.get("pretrained_cfg") or {})
        preprocess = timm_preprocess(timm.data.resolve_data_config(pretrained_cfg=cfg))
    except Exception as error:  # a stranger's file
        raise UserError(f"{what} has no valid pretrained_cfg ({summarize(error)}); give another model") from error
    network = build_untrained(spec, preprocess.channels)
    weights, metadata = read_weights(file)
    note = load_outside_weights(network, weights, model, spec, metadata.get("entry", ""))
    return _model(model, network, spec, preprocess, note=note)


def _hub_folder(name: str) -> Path:
    """Return the folder with the config.json and the weights of a model of the hub: from the cache, or downloaded.

    Raises:
        UserError: the model does not exist, lacks one of these files, or cannot be downloaded.
    """
    repository, _, revision = name.partition("@")
    wanted: dict[str, Any] = {"revision": revision or None, "allow_patterns": [HUB_CONFIG, *HUB_WEIGHTS]}

    def complete(folder: Path | None) -> bool:
        files = [] if folder is None else os.listdir(folder)
        return HUB_CONFIG in files and any(file in files for file in HUB_WEIGHTS)

    try:
        folder = _reach(repository, **wanted)
        folder = folder if complete(folder) else Path(snapshot_download(repository, **wanted))
    except Exception as error:  # the hub raises exceptions of many types
        raise UserError(
            f"hf-hub:{name} is not available ({summarize(error)}); check the name, connect to the internet once "
            "so that it is cached, or give file:PATH"
        ) from error
    if folder is None or not complete(folder):
        files = f"{HUB_CONFIG} with {' or '.join(HUB_WEIGHTS)}"
        raise UserError(f"hf-hub:{name} has no {files}, as timm's models have; give a model of timm")
    return folder


def _load_file(path: Path, **given: Any) -> Model:
    """Load a file of `fullrank export`, whose metadata describes backbone and preprocessing, or weights of another
    library, for which `given` has the arguments of `load`.
    """
    weights, metadata = read_weights(path)
    if not metadata.keys() >= DESCRIPTION:
        if "backbone" not in given:
            raise UserError(
                f"{path} does not name its network; expected a file of `fullrank export`, or the name of a timm model: "
                "--backbone.name resnet50 (backbone='resnet50' in Python)"
            )
        return _load_outside(path, weights, metadata.get("entry", ""), **given)
    if given:
        raise UserError(f"{path} describes its own network, so {', '.join(given)} must be left out")
    what = f"metadata of {path}"
    try:
        values = {name: parse_json(metadata[name]) for name in ("arguments", "last_residual") if name in metadata}
        preprocess = checked(from_json(Preprocess, metadata["preprocess"], f"{what}, preprocess"), what)
        classes = _class_names(parse_json(metadata.get("classes", "[]")))
    except ValueError as error:  # also a UserError
        raise UserError(f"{what} cannot be read ({summarize(error)}); export the model again") from error
    spec = from_json(BackboneConfig, {"name": metadata["name"], "stem": metadata["stem"], **values}, what)
    backbone = build_untrained(spec, preprocess.channels)
    _fill(backbone, weights, f"the weights in {path} do not match its metadata")
    return _model(f"file:{path}", backbone, spec, preprocess, classes=classes)


def describes_network(path: Path) -> bool:
    """Return whether a file names its network, as the files of `fullrank export` do."""
    with contextlib.suppress(Exception), safe_open(path, "pt") as file:  # else a damaged file, or one of torch.save
        return (file.metadata() or {}).keys() >= DESCRIPTION
    return False


def _load_outside(
    path: Path,
    weights: dict[str, Tensor],
    entry: str,
    *,
    backbone: BackboneConfig | str,
    channels: int | None = None,
    size: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> Model:
    """Build a network and load the weights of another library into it."""
    spec = BackboneConfig(name=backbone) if isinstance(backbone, str) else backbone
    spec, channels = _as_in_file(build_untrained(spec, channels or 3), spec, weights, channels=channels, size=size)
    network = build_untrained(spec, channels)
    note = load_outside_weights(network, weights, path, spec, entry)
    usual = timm.data.resolve_model_data_config(network)
    means = {name: sum(usual[name]) / len(usual[name]) for name in ("mean", "std")}  # timm's are for three channels
    own = {name: usual[name] if len(usual[name]) == channels else [means[name]] * channels for name in means}
    own |= {name: values for name, values in (("mean", mean), ("std", std)) if values is not None}
    shown: Any = spec.arguments.get("img_size", usual["input_size"][-1])
    S = shown if size is None else size
    preprocess = Preprocess(channels, S, tuple(map(float, own["mean"])), tuple(map(float, own["std"])))
    checked(preprocess, f"network of {path}")
    try:
        with torch.inference_mode():
            network.eval()(torch.zeros(1, channels, S, S))
    except Exception as error:  # each network of timm raises its own type
        remedy = "give another --size, or the size of the network in --backbone.arguments"
        raise UserError(f"{spec.name} does not take images of {S} px ({summarize(error)}); {remedy}") from error
    note += f"; images of {S} px, mean {preprocess.mean}, std {preprocess.std} (--size, --mean, --std)"
    return _model(f"file:{path}", network, spec, preprocess, note=note)


def _as_in_file(
    network: nn.Module, spec: BackboneConfig, weights: Mapping[str, Tensor], *, channels: int | None, size: int | None
) -> tuple[BackboneConfig, int]:
    """Return the network and its channels with what a file of weights shows, where the user gave nothing.

    The first convolution shows the channels, and position embeddings show the size of the images: n patches are √n ×
    √n.
    """
    wanted: Mapping[str, Tensor] = network.state_dict()
    names = find_naming(wanted, weights)[1]
    for name in first_convolutions(network):
        found = weights.get(names.get(name, ""))
        if channels is None and found is not None and found.ndim == 4 and found.shape[1] <= MAX_CHANNELS:
            channels = found.shape[1] if wanted[name].shape[1] == 3 else None
    found, patches = weights.get(names.get("pos_embed", "")), getattr(network, "patch_embed", None)
    if found is not None and patches is not None and found.ndim == 3 and found.shape != wanted["pos_embed"].shape:
        n = found.shape[1] - (wanted["pos_embed"].shape[1] - patches.num_patches)
        if n > 0 and math.isqrt(n) ** 2 == n and "img_size" not in spec.arguments and size is None:
            size = math.isqrt(n) * patches.patch_size[0]
            spec = replace(spec, arguments={**spec.arguments, "img_size": size})
    return spec, channels or 3


def _own_preprocess(network: nn.Module) -> Preprocess:
    return timm_preprocess(timm.data.resolve_model_data_config(network))


def _model(name: str, network: nn.Module, spec: BackboneConfig, preprocess: Preprocess, **more: Any) -> Model:
    untrained: Callable[[], nn.Module] = partial(build_untrained, spec, preprocess.channels)
    return Model(name, network.eval(), preprocess, spec, untrained=untrained, **more)


def _class_names(names: Any) -> tuple[str, ...]:
    return tuple(names) if isinstance(names, list) and all(isinstance(name, str) for name in names) else ()
