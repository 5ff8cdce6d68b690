"""Files of weights: those of `fullrank export`, which describe their network, and those of other libraries."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from fullrank.arguments import check_weights_file
from fullrank.errors import UserError
from fullrank.images import Preprocess
from fullrank.methods import BackboneConfig
from fullrank.models.model import Model
from fullrank.models.network import (
    build_untrained,
    check_preprocess,
    class_names,
    first_convolutions,
    first_not_finite,
    summarize,
    timm_preprocess,
)
from fullrank.models.outside_weights import find_naming, load_outside_weights, read_weights
from fullrank.structure import structure

DESCRIPTION = {"name", "arguments", "stem", "preprocess"}
"""The metadata by which a file of `fullrank export` names its network."""
MAX_CHANNELS = 1024


def load_file(path: Path, **network: Any) -> Model:
    """Load a file of `fullrank export`, whose metadata describes backbone and preprocessing, or weights of another
    library.

    Args:
        path: a safetensors file, or a file of `torch.save`, which is read without executing code.
        **network: for weights of another library, `backbone` and the other arguments of `load`.
    """
    weights, metadata = read_weights(path)
    if broken := first_not_finite(weights):
        raise UserError(
            f"the weights of {path} are not finite ({broken}); give another file, such as one of an earlier checkpoint"
        )
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
        values = {
            name: json.loads(metadata[name])
            for name in ("arguments", "last_residual", "preprocess", "classes")
            if name in metadata
        }
    except (ValueError, RecursionError) as error:
        raise UserError(f"{what} cannot be read ({summarize(error)}); export the model again") from error
    classes, preprocess = (
        class_names(values.pop("classes", [])),
        structure(values.pop("preprocess"), Preprocess, f"{what}, preprocess"),
    )
    check_preprocess(preprocess, what)
    spec = structure({"name": metadata["name"], "stem": metadata["stem"], **values}, BackboneConfig, what)
    backbone = build_untrained(spec, preprocess.channels)
    try:
        backbone.load_state_dict(weights)
    except RuntimeError as error:
        raise UserError(
            f"the weights in {path} do not match its metadata ({summarize(error)}); export the model again"
        ) from error
    untrained = partial(build_untrained, spec, preprocess.channels)
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
    network = build_untrained(spec, channels or 3)
    spec, channels = _as_in_file(network, spec, weights, channels=channels, size=size)
    network = build_untrained(spec, channels)
    note = load_outside_weights(network, weights, path, spec, entry)
    usual = timm_preprocess(network)
    given = {"channels": channels, "size": size, "mean": list(mean) if isinstance(mean, tuple) else mean}
    given["std"] = list(std) if isinstance(std, tuple) else std
    usual_values: dict[str, Any] = {"size": spec.arguments.get("img_size", usual.size)}
    for name in ("mean", "std"):  # timm's are for three channels; other networks get the average
        values = getattr(usual, name)
        usual_values[name] = list(values) if len(values) == channels else [sum(values) / len(values)] * channels
    preprocess = structure(
        usual_values | {name: value for name, value in given.items() if value is not None}, Preprocess, "network"
    )
    check_preprocess(preprocess, f"network of {path}")
    try:
        with torch.inference_mode():
            network.eval()(torch.zeros(1, channels, preprocess.size, preprocess.size))
    except Exception as error:  # each network of timm raises its own type
        remedy = "give another --size, or the size of the network in --backbone.arguments"
        raise UserError(
            f"{spec.name} does not take images of {preprocess.size} px ({summarize(error)}); {remedy}"
        ) from error
    untrained = partial(build_untrained, spec, channels)
    note = (
        f"{note}; images of {preprocess.size} px, mean {preprocess.mean}, std {preprocess.std} (--size, --mean, --std)"
    )
    return Model(f"file:{path}", network.eval(), preprocess, spec, untrained=untrained, note=note)


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
        others = wanted["pos_embed"].shape[1] - patches.num_patches
        side = math.isqrt(max(found.shape[1] - others, 0))
        if side**2 == found.shape[1] - others and "img_size" not in spec.arguments and size is None:
            spec = replace(spec, arguments={**spec.arguments, "img_size": side * patches.patch_size[0]})
    return spec, channels or 3


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
