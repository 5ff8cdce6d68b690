"""Models that no run of this machine made: of timm, of the Hugging Face hub, and files of weights.

Nothing of a stranger's file is executed: a file of weights has tensors and texts, and the network is one of timm's.
"""

import contextlib
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import timm
import timm.data
from huggingface_hub import model_info, snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors import safe_open
from torch import nn

from fullrank.config import from_json
from fullrank.errors import UserError, suggest
from fullrank.files import parse_json, read_text
from fullrank.images import Preprocess
from fullrank.methods import BackboneConfig, at_size
from fullrank.methods.backbones import check_name
from fullrank.models.model import Model, build_untrained, checked, first_convolutions, timm_preprocess
from fullrank.models.weights import Weights, find_naming, load_outside_weights, not_fitting, read_weights, summarize

# The files of a model of the hub; the preferred weights first.
HUB_CONFIG, HUB_WEIGHTS = "config.json", ("model.safetensors", "pytorch_model.bin")
MAX_CHANNELS = 1024
# The metadata by which a file of `fullrank export` names its network.
DESCRIPTION = {"name", "arguments", "stem", "preprocess"}


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
        try:
            if cfg is not None and cfg.hf_hub_id is not None:
                _cached(cfg.hf_hub_id)
            network = timm.create_model(name, pretrained=True, num_classes=0)
        except Exception as error:  # the hub raises exceptions of many types
            raise UserError(
                f"the weights of timm:{name} are not available ({summarize(error)}); "
                "connect to the internet once so that they are cached, or give a RUN or file:PATH"
            ) from error
    preprocess = timm_preprocess(timm.data.resolve_model_data_config(network))
    return _model(f"timm:{name}" if pretrained else f"timm-untrained:{name}", network, spec, preprocess)


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
    try:
        config = parse_json(read_text(described))
        arguments = {k: v for k, v in config.get("model_args", {}).items() if k not in ("num_classes", "in_chans")}
        spec = from_json(BackboneConfig, {"name": config["architecture"], "arguments": arguments}, what)
        check_name(spec.name)
        usual = timm.get_pretrained_cfg(spec.name)
        cfg = (usual.to_dict() if usual else {}) | config.get("pretrained_cfg", {})
        preprocess = timm_preprocess(timm.data.resolve_data_config(pretrained_cfg=cfg))
    except Exception as error:  # a stranger's file
        remedy = "give a model of timm, or file:PATH with the weights of another"
        raise UserError(f"{what} describes no network of timm ({summarize(error)}); {remedy}") from error
    network = build_untrained(spec, preprocess.channels)
    weights, metadata = read_weights(file)
    note = load_outside_weights(network, weights, model, metadata.get("entry", ""))
    return _model(model, network, spec, preprocess, note=note)


def _hub_files(name: str) -> tuple[Path, Path]:
    """Return the config.json and the weights of a model of the hub: from the cache, or downloaded."""
    repository, _, revision = name.partition("@")
    wanted: Any = {"revision": revision or None, "allow_patterns": [HUB_CONFIG, *HUB_WEIGHTS]}
    try:
        for folder in (_cached(repository, **wanted), None):
            folder = folder or Path(snapshot_download(repository, **wanted))
            weights = next((folder / file for file in HUB_WEIGHTS if (folder / file).exists()), None)
            if weights and (folder / HUB_CONFIG).exists():
                return folder / HUB_CONFIG, weights
        raise FileNotFoundError(f"it has no {HUB_CONFIG} with {' or '.join(HUB_WEIGHTS)}, as timm's models have")
    except Exception as error:  # the hub raises exceptions of many types
        raise UserError(
            f"hf-hub:{name} is not available ({summarize(error)}); check the name, connect to the internet once "
            "so that it is cached, or give file:PATH"
        ) from error


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
        raise UserError(
            f"{path} does not name its network; expected a file of `fullrank export`, or the name of a timm model: "
            "--backbone.name resnet50 (backbone='resnet50' in Python)"
        )
    if given:
        raise UserError(f"{path} describes its own network, so {', '.join(given)} must be left out")
    what = f"metadata of {path}"
    try:
        values = {name: parse_json(metadata[name]) for name in ("arguments", "last_residual") if name in metadata}
        preprocess = checked(from_json(Preprocess, metadata["preprocess"], f"{what}, preprocess"), what)
        classes = class_names(parse_json(metadata.get("classes", "[]")))
    except ValueError as error:  # also a UserError
        raise UserError(f"{what} cannot be read ({summarize(error)}); export the model again") from error
    spec = from_json(BackboneConfig, {"name": metadata["name"], "stem": metadata["stem"], **values}, what)
    backbone = build_untrained(spec, preprocess.channels)
    if problems := not_fitting(backbone.state_dict(), weights):
        raise UserError(f"the weights in {path} do not match its metadata ({problems[0]}); export the model again")
    backbone.load_state_dict(weights)
    return _model(f"file:{path}", backbone, spec, preprocess, classes=classes)


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
    return _model(f"file:{path}", network, spec, preprocess, note=note)


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


def _model(name: str, network: nn.Module, spec: BackboneConfig, preprocess: Preprocess, **more: Any) -> Model:
    return Model(name, network.eval(), preprocess, spec, partial(build_untrained, spec, preprocess.channels), **more)


def class_names(names: Any) -> tuple[str, ...]:
    """Return the names of classes of a stranger's file, () if they are no texts."""
    return tuple(names) if isinstance(names, list) and all(isinstance(name, str) for name in names) else ()
