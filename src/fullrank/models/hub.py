"""Models of the Hugging Face hub whose networks are timm's."""

import contextlib
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import timm
import timm.data
from huggingface_hub import model_info, snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError

from fullrank.errors import UserError
from fullrank.files import parse_json, read_text
from fullrank.methods import BackboneConfig
from fullrank.methods.backbones import check_name
from fullrank.models.model import Model
from fullrank.models.network import (
    build_untrained,
    check_preprocess,
    first_not_finite,
    preprocess_from_config,
    summarize,
)
from fullrank.models.outside_weights import load_outside_weights, read_weights
from fullrank.models.weight_files import describes_network, load_file
from fullrank.structure import structure

HUB_CONFIG = "config.json"
HUB_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
"""The files of weights of a model of the hub, the preferred one first."""


def load_hub(name: str) -> Model:
    """Load a model of the Hugging Face hub whose config.json names a network of timm, as `timm.models.push_to_hf_hub`
    writes it.

    A model.safetensors of `fullrank export` describes its own network, so that another stem is built too. No code of
    the model is executed.

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
        raise UserError(f"{what} cannot be read ({summarize(error)}); give another model") from error
    if not isinstance(config, dict) or not isinstance(config.get("architecture"), str):
        raise UserError(
            f"{what} names no network of timm ('architecture'); give a model of timm, or file:PATH with the weights of another"
        )
    arguments = config.get("model_args") or {}
    if isinstance(arguments, dict):
        arguments = {key: value for key, value in arguments.items() if key not in ("num_classes", "in_chans")}
    spec = structure({"name": config["architecture"], "arguments": arguments}, BackboneConfig, what)
    check_name(spec.name)
    try:
        usual = timm.get_pretrained_cfg(spec.name)
        cfg = (usual.to_dict() if usual else {}) | (config.get("pretrained_cfg") or {})
        preprocess = preprocess_from_config(timm.data.resolve_data_config(pretrained_cfg=cfg))
    except Exception as error:  # a stranger's file
        raise UserError(f"{what} has no valid pretrained_cfg ({summarize(error)}); give another model") from error
    check_preprocess(preprocess, what)
    network = build_untrained(spec, preprocess.channels)
    weights, metadata = read_weights(file)
    if broken := first_not_finite(weights):
        raise UserError(f"the weights of {model} are not finite ({broken}); give another model")
    note = load_outside_weights(network, weights, model, spec, metadata.get("entry", ""))
    return Model(
        model,
        network.eval(),
        preprocess,
        spec,
        untrained=partial(build_untrained, spec, preprocess.channels),
        note=note,
    )


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
        model_info(
            repository, revision=revision or None, timeout=10
        )  # without internet, a download would be tried again and again
        folder = Path(snapshot_download(repository, **wanted))
    except Exception as error:  # the hub raises exceptions of many types
        raise UserError(
            f"hf-hub:{name} is not available ({summarize(error)}); check the name, connect to the internet once so that it is cached, "
            "or give file:PATH"
        ) from error
    if not complete(folder):
        raise UserError(
            f"hf-hub:{name} has no {HUB_CONFIG} with {' or '.join(HUB_WEIGHTS)}, as timm's models have; give a model of timm"
        )
    return folder
