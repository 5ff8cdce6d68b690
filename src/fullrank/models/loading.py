"""`load`: the MODEL that a user names (a run, a model of timm or of the hub, a file of weights) as a frozen backbone.

Nothing of an untrusted file is executed: a file of weights has tensors and texts, and the network is one of timm's.
"""

import contextlib
import math
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import timm
import timm.data
from huggingface_hub import model_info, snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors import safe_open
from torch import nn

from fullrank.config import from_json
from fullrank.errors import UserError, explain_errors, suggest
from fullrank.files import parse_json, paths_beside, read_text
from fullrank.images import Preprocess
from fullrank.methods import BackboneConfig
from fullrank.methods.backbones import at_size, check_name
from fullrank.models.model import Model, ModelLike, build_untrained, checked, first_convolutions, timm_preprocess
from fullrank.models.weights import Weights, check_finite, find_naming, load_outside_weights, load_weights, read_weights
from fullrank.recipes import build_encoder, build_preprocess, read_recipe
from fullrank.training import Checkpoint, list_checkpoints

# The forms of a MODEL.
MODELS = "RUN, RUN@STEP, timm:NAME, timm-untrained:NAME, hf-hub:OWNER/NAME or file:PATH"
SCHEMES = ("timm", "timm-untrained", "hf-hub", "file")
# OWNER/NAME, or OWNER/NAME@REVISION.
HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*(@[\w][\w./-]*)?", re.ASCII)
# The weights that a run with `init` began with, in its directory.
INITIAL = "initial.safetensors"
# The files of a model of the hub; the preferred weights first.
HUB_CONFIG, HUB_WEIGHTS = "config.json", ("model.safetensors", "pytorch_model.bin")
MAX_CHANNELS = 1024
# The metadata by which a file of `fullrank export` names its network.
DESCRIPTION = {"name", "arguments", "stem", "last_residual", "preprocess", "classes"}


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
    | `RUN` | the newest checkpoint of a run directory, of which `runs/` may be left out |
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
    fullrank.errors.UserError: model 'no/such/run' is not a run directory; expected RUN, RUN@STEP, timm:NAME, \
timm-untrained:NAME, hf-hub:OWNER/NAME or file:PATH
    """
    given: Any = {"backbone": backbone, "channels": channels, "size": size, "mean": mean, "std": std}
    given = {name: value for name, value in given.items() if value is not None}
    text = model.name if isinstance(model, Model) else os.fspath(model)
    kind, name, step = ("", text, None) if isinstance(model, Model) else parse_model(text)
    if kind == "file":
        return load_file(Path(name), **given)
    if given:
        names = ", ".join(given)
        raise UserError(f"{names} describe the network of a file:PATH, but the model is '{text}'; leave them out")
    if isinstance(model, Model):
        return model
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
        UserError: the string is not a MODEL, or there is no such directory.

    >>> parse_model("timm:resnet18")
    ModelName(kind='timm', name='resnet18', step=None)
    """
    scheme, _, rest = text.partition(":")
    if scheme == "hf-hub" and not HUB_NAME.fullmatch(rest):
        raise UserError(f"model '{text}' names no model of the hub; expected hf-hub:OWNER/NAME, or with @REVISION")
    if scheme in SCHEMES and rest:
        return ModelName(scheme, rest)
    path, _, step = text.rpartition("@")

    def is_run(folder: str) -> bool:
        return any(os.path.isfile(f"{folder}{name}/recipe.json") for name in (text, path) if name)

    for folder in sorted(("", "runs/"), key=is_run, reverse=True):  # a folder that is no run does not hide runs/NAME
        if text and os.path.isdir(folder + text):
            return ModelName("run", folder + text)
        if path and os.path.isdir(folder + path):
            if not (step.isascii() and step.isdecimal()):
                raise UserError(f"model '{text}': the step is '{step}', expected a number, e.g. {path}@1000")
            return ModelName("run", folder + path, int(step))
    what = f"a file; write file:{text}, or give" if os.path.isfile(text) else "not a run directory; expected"
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
    parts = nn.ModuleDict({"backbone": encoder.backbone, "projector": encoder.projector}).eval()
    own = {name: tensor for name, tensor in weights.items() if name.partition(".")[0] in parts}
    load_weights(parts, own, f"checkpoint {checkpoint.path} does not match {path / 'recipe.json'}")
    with_init = recipe.init and (path / INITIAL).exists()
    return Model(
        name=name or str(path),
        backbone=encoder.backbone,
        preprocess=build_preprocess(recipe),
        spec=at_size(recipe.backbone, [view.size for view in recipe.views]),
        projector=encoder.projector,
        recipe=recipe,
        step=checkpoint.step,
        path=path if step is None else None,
        classes=from_json(tuple[str, ...], checkpoint.meta().get("classes", []), f"classes in {checkpoint.path}"),
        init=path / INITIAL if with_init else None,
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
        remedy = f"choose one of the steps {', '.join(map(str, found))} (--keep-checkpoints: how many a run keeps)"
        raise UserError(f"{path} has no checkpoint of step {step}; {remedy}")
    return found[max(found) if step is None else step]


def load_timm(name: str, *, pretrained: bool) -> Model:
    """Load a timm model with its own preprocessing, and with its pretrained weights or with random ones, which are
    equal at each call and need no internet.

    Raises:
        UserError: timm has no such model or no weights for it, or they cannot be downloaded.
    """
    check_name(name)
    spec = BackboneConfig(name=name)
    if not pretrained:
        network = build_untrained(spec, 3)
    elif not timm.is_model_pretrained(name):
        remedy = f"{suggest(name, timm.list_pretrained())}; timm-untrained:{name} has random weights"
        raise UserError(f"timm:{name} has no pretrained weights, expected one of timm.list_pretrained(){remedy}")
    else:
        cfg = timm.get_pretrained_cfg(name)
        remedy = "connect to the internet once so that they are cached, or give a RUN or file:PATH"
        with explain_errors(f"the weights of timm:{name} are not available", remedy):
            if cfg is not None and cfg.hf_hub_id is not None:
                _cached(cfg.hf_hub_id)
            network = timm.create_model(name, pretrained=True, num_classes=0)
    preprocess = timm_preprocess(timm.data.resolve_model_data_config(network))
    return Model(f"timm:{name}" if pretrained else f"timm-untrained:{name}", network.eval(), preprocess, spec)


def load_hub(name: str) -> Model:
    """Load a model of the hub whose config.json names a network of timm, as `timm.models.push_to_hf_hub` writes it.

    A model.safetensors of `fullrank export` describes its own network, so that another stem is built too.

    Raises:
        UserError: the model does not exist, cannot be downloaded, or names no network of timm.
    """
    model, what = f"hf-hub:{name}", f"config.json of hf-hub:{name}"
    described, file = _hub_files(name)
    if describes_network(file):
        return replace(load_file(file), name=model)
    remedy = "give a model of timm, or file:PATH with the weights of another"
    with explain_errors(f"{what} describes no network of timm", remedy):
        config = parse_json(read_text(described))
        arguments = {k: v for k, v in config.get("model_args", {}).items() if k not in ("num_classes", "in_chans")}
        spec = from_json(BackboneConfig, {"name": config["architecture"], "arguments": arguments}, what)
        check_name(spec.name)
        usual = timm.get_pretrained_cfg(spec.name)
        cfg = (usual.to_dict() if usual else {}) | config.get("pretrained_cfg", {})
        preprocess = timm_preprocess(timm.data.resolve_data_config(pretrained_cfg=cfg))
    network = build_untrained(spec, preprocess.channels)
    weights, metadata = read_weights(file)
    note = load_outside_weights(network, weights, model, metadata.get("entry", ""))
    return Model(model, network.eval(), preprocess, spec, note=note)


def _hub_files(name: str) -> tuple[Path, Path]:
    """Return the config.json and the weights of a model of the hub: from the cache, or downloaded."""
    repository, _, revision = name.partition("@")
    wanted: Any = {"revision": revision or None, "allow_patterns": [HUB_CONFIG, *HUB_WEIGHTS]}
    remedy = "check the name, connect to the internet once so that it is cached, or give file:PATH"
    with explain_errors(f"hf-hub:{name} is not available", remedy):
        for folder in (_cached(repository, **wanted), None):
            folder = folder or Path(snapshot_download(repository, **wanted))
            weights = next((folder / file for file in HUB_WEIGHTS if (folder / file).exists()), None)
            if weights and (folder / HUB_CONFIG).exists():
                return folder / HUB_CONFIG, weights
        raise FileNotFoundError(f"it has no {HUB_CONFIG} with {' or '.join(HUB_WEIGHTS)}, as timm's models have")


def _cached(repository: str, **wanted: Any) -> Path | None:
    """Return the folder of a model of the hub that is cached; else ask the hub once whether it has the model.

    Without internet, a download would be tried again and again.
    """
    try:
        return Path(snapshot_download(repository, local_files_only=True, **wanted))
    except LocalEntryNotFoundError:
        model_info(repository, revision=wanted.get("revision"), timeout=10)
        return None


def load_file(path: Path, **given: Any) -> Model:
    """Load a file of `fullrank export`, whose metadata describes backbone and preprocessing, or weights of another
    library, for which `given` has the arguments of `load_outside`.

    Raises:
        UserError: the file is damaged, does not match its network, or needs or refuses a description.
    """
    weights, metadata = read_weights(path)
    if not metadata.keys() >= DESCRIPTION:
        if "backbone" in given:
            return load_outside(path, weights, metadata.get("entry", ""), **given)
        expected = "expected a file of `fullrank export`, or the name of a timm model"
        how = "--backbone.name resnet50 (backbone='resnet50' in Python)"
        raise UserError(f"{path} does not name its network; {expected}: {how}")
    if given:
        raise UserError(f"{path} describes its own network, so {', '.join(given)} must be left out")
    what = f"metadata of {path}"
    values = {name: from_json(Any, metadata[name], f"{what}, {name}") for name in ("arguments", "last_residual")}
    spec = from_json(BackboneConfig, {"name": metadata["name"], "stem": metadata["stem"], **values}, what)
    preprocess = checked(from_json(Preprocess, metadata["preprocess"], f"{what}, preprocess"), what)
    classes = from_json(tuple[str, ...], metadata["classes"], f"{what}, classes")
    backbone = build_untrained(spec, preprocess.channels)
    load_weights(backbone, weights, f"the weights in {path} do not match its metadata")
    return Model(f"file:{path}", backbone.eval(), preprocess, spec, classes=classes)


def describes_network(path: Path) -> bool:
    """Return whether a file names its network, as the files of `fullrank export` do."""
    with contextlib.suppress(Exception), safe_open(path, "pt") as file:  # else a damaged file, or one of torch.save
        return (file.metadata() or {}).keys() >= DESCRIPTION
    return False


def load_outside(
    path: Path,
    weights: Weights,
    entry: str,
    *,
    backbone: BackboneConfig | str,
    channels: int | None = None,
    size: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> Model:
    """Build a network and load the weights of another library into it; for the arguments see `fullrank.load`."""
    spec = BackboneConfig(name=backbone) if isinstance(backbone, str) else backbone
    shown = shown_by(weights, build_untrained(spec, channels or 3))
    channels, sizes = channels or shown.get("channels", 3), [each for each in (size, shown.get("size")) if each]
    spec = at_size(spec, sizes[:1]) if sizes else spec
    network = build_untrained(spec, channels)
    usual = timm.data.resolve_model_data_config(network)
    for name, values in (("mean", mean), ("std", std)):
        own = usual[name] if len(usual[name]) == channels else [sum(usual[name]) / len(usual[name])] * channels
        usual[name] = own if values is None else values
    S: Any = size if size is not None else spec.arguments.get("img_size", usual["input_size"][-1])
    preprocess = timm_preprocess(usual | {"input_size": (channels, S, S), "crop_pct": 1.0})
    note = load_outside_weights(network, weights, str(path), entry)
    note += f"; images of {S} px, mean {preprocess.mean}, std {preprocess.std} (--size, --mean, --std)"
    return Model(f"file:{path}", network.eval(), preprocess, spec, note=note)


def shown_by(weights: Weights, network: nn.Module) -> dict[str, int]:
    """Return what a file of weights shows: the first convolution the channels of its images, and position embeddings of
    √n × √n patches their size. (A recipe that starts with the file has no other place for them.)
    """
    wanted, shown = network.state_dict(), {}
    names = find_naming(wanted, weights)[1]
    for name in first_convolutions(network):
        found = weights.get(names.get(name, ""))
        if found is not None and found.ndim == 4 and found.shape[1] <= MAX_CHANNELS:
            shown["channels"] = found.shape[1]
    found, patches = weights.get(names.get("pos_embed", "")), getattr(network, "patch_embed", None)
    if found is not None and patches is not None and found.ndim == 3 and found.shape != wanted["pos_embed"].shape:
        n = found.shape[1] - (wanted["pos_embed"].shape[1] - patches.num_patches)
        shown["size"] = math.isqrt(max(n, 0)) * patches.patch_size[0]
    return shown
