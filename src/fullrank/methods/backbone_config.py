"""The configuration of a backbone: a timm model by its name, and the arguments of its architecture."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from fullrank.errors import UserError
from fullrank.flag_types import parsed_by
from fullrank.structure import Requirement, is_json, validate


def _json_object(words: list[str]) -> dict[str, Any]:
    try:
        value = json.loads(words[0])
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError(f"{words[0]} is not a JSON object")
    return value


Json = Annotated[
    dict[str, Any],
    Requirement("of JSON values with finite numbers", is_json),
    parsed_by(_json_object, json.dumps, dict, "JSON"),
]
"""A JSON object on the command line."""
ModelName = Annotated[
    str,
    Requirement("that is a name in timm.list_models()", lambda name: bool(re.fullmatch(r"[\w.-]+", name, re.ASCII))),
]
"""The name of a network in timm. The names with a colon, such as hf-hub:… and local-dir:…, would load files."""

NOT_ARCHITECTURE = {
    *(
        "model_name",
        "pretrained",
        "pretrained_cfg",
        "pretrained_cfg_overlay",
        "checkpoint_path",
        "cache_dir",
        "scriptable",
        "exportable",
    ),
    *(
        "no_jit",
        "kwargs",
        "model_cls",
        "variant",
        "model_cfg",
        "feature_cfg",
        "pretrained_strict",
        "pretrained_filter_fn",
        "kwargs_filter",
    ),
    *("num_classes", "in_chans", "device", "dtype", "out_indices", "feature_cls"),
}
"""Arguments of `timm.create_model` and `build_model_with_cfg`, which load files, fill the network with weights or
change global settings, and arguments that the recipe itself sets."""
LOADS = re.compile(r"pretrained|checkpoint_|cache|weights|url|file|(^|_)hub(_|$)")
WORD = re.compile(r"[\w-]{0,40}", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class BackboneConfig:
    """The network that maps an image to its representation."""

    name: ModelName = "resnet18"
    """A timm model, without pretrained weights."""
    arguments: Json = field(default_factory=dict)
    """Further arguments of the network's architecture, as JSON, such as {"channels": [32, 64, 96, 128]}."""
    stem: Literal["standard", "small"] = "standard"
    """'small', for images of about 32 px: the ResNet starts with a 3×3 convolution of stride 1, without max-pooling."""
    last_residual: bool = True
    """False: the last block of the ResNet has no shortcut, and the representation comes only from its convolutions."""

    def __post_init__(self) -> None:
        validate(self, "backbone.")
        for name, value in self.arguments.items():
            _check_argument(name, value)


def _check_argument(name: str, value: Any) -> None:
    """Check that an argument describes an architecture: no file, no weights, and numbers of a sensible size.

    Raises:
        UserError: it does not.
    """
    what = f"backbone.arguments: '{name}'"
    if name in NOT_ARCHITECTURE or LOADS.search(name):
        raise UserError(
            f"{what} is not an argument of an architecture, such as channels, layers or img_size; remove it"
        )
    for leaf in _leaves(value):
        if isinstance(leaf, str) and not WORD.fullmatch(leaf):
            raise UserError(
                f"{what} is {leaf!r}, expected a word of letters, digits, '_' and '-', or numbers; change it"
            )
        if isinstance(leaf, int | float) and not isinstance(leaf, bool):
            high = 1 if "drop" in name else 65536
            if not (0 if "drop" in name else -high) <= leaf <= high:
                raise UserError(
                    f"{what} is {leaf}, expected a number from {0 if 'drop' in name else -high} to {high}; change it"
                )


def _leaves(value: Any) -> Iterator[Any]:
    branches = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else None
    if branches is None:
        yield value
    else:
        for branch in branches:
            yield from _leaves(branch)
