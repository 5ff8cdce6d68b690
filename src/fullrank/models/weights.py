"""Files of weights: read without executing code, and their tensors matched with those of a timm network."""

import pickle
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from fullrank.errors import UserError
from fullrank.methods import BackboneConfig

EXPECTED = "a file of `fullrank export RUN --out FILE.safetensors`, or the weights of another library"
# Entries of a training checkpoint that hold a state dict, the preferred one first.
WRAPPERS = (
    *("state_dict", "model_state_dict", "classy_state_dict", "base_model", "model", "trunk", "teacher", "student"),
    *("backbone", "network", "module"),
)
# Limit for the nesting of `WRAPPERS`.
MAX_DEPTH = 8
# The parts of a ResNet in `nn.Sequential(*list(resnet.children())[:-1])`, the backbone of lightly's examples.
RESNET_CHILDREN = {"conv1": "0", "bn1": "1", "layer1": "4", "layer2": "5", "layer3": "6", "layer4": "7"}
# Part of a prefix → what it says about the network; the first part that is found counts.
ORIGINS = {
    r"encoder_q\.": "the query encoder of MoCo",
    r"encoder_k\.": "the key encoder of MoCo",
    r"base_encoder\.": "the base encoder of MoCo v3",
    r"momentum_encoder\.": "the momentum encoder of MoCo v3",
    r"momentum_backbone\.": "the momentum backbone, as in solo-learn",
    r"teacher_embedding_model\.": "the teacher of LightlyTrain",
    r"student_embedding_model\.": "the student of LightlyTrain",
    r"teacher": "the teacher, as in DINO",
    r"student": "the student, as in DINO",
    r"_feature_blocks\.": "as in VISSL",
    r"backbone\.": "as in solo-learn and lightly",
    r"module\.": "as of DataParallel",
}
# Prefixes of networks that are taken only if no other one is complete: the authors of MoCo and BYOL evaluate the
# network that gradients train, those of DINO the teacher.
SECOND_CHOICE = re.compile(r"encoder_k\.|momentum_|target|student")


def read_weights(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors of a safetensors file or of a file of `torch.save`, and the metadata of a safetensors file.

    For a file of `torch.save`, the metadata has only `entry`, the entries of the file in which the tensors are, such as
    "teacher".

    Raises:
        UserError: the file does not exist, is damaged, holds something else than tensors, or values are not finite.
    """
    if not path.is_file():
        raise UserError(f"{path} is no file; expected {EXPECTED}")
    try:
        with path.open("rb") as file:
            head = file.read(9)
        if head[8:] != b"{" and (head[:2] == b"PK" or head[:1] == b"\x80"):  # a zip archive or a pickle, of torch.save
            weights, entries = _find_state_dict(path, torch.load(path, map_location="cpu", weights_only=True))
            metadata = {"entry": ".".join(entries)}
        else:
            with safe_open(path, "pt") as file:
                weights, metadata = {key: file.get_tensor(key) for key in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except UserError:
        raise
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{path} holds Python objects besides tensors, which could execute code and are not loaded "
            f"({_first_line(error)}); if you trust the file, save its tensors alone: "
            "torch.save(torch.load(PATH, weights_only=False)['state_dict'], 'weights.pt')"
        ) from error
    except Exception as error:  # torch.load raises many types for a damaged file
        raise UserError(f"{path} is no readable file of weights ({_first_line(error)}); expected {EXPECTED}") from error
    check_finite(weights, path, "give another file, such as one of an earlier checkpoint")
    return weights, metadata


def check_finite(weights: Mapping[str, Tensor], source: Any, remedy: str) -> None:
    """Check that no weight is NaN or infinite.

    Raises:
        UserError: one is.
    """
    for name, tensor in weights.items():
        if tensor.is_floating_point() and (count := int((~tensor.isfinite()).sum())):
            raise UserError(
                f"the weights of {source} are not finite ('{name}': {count} of {tensor.numel()} values); {remedy}"
            )


def _find_state_dict(path: Path, content: Any) -> tuple[dict[str, Tensor], list[str]]:
    """Return the mapping of names to tensors in the content of a file, and the names of the entries that lead to it."""
    entries: list[str] = []
    while isinstance(content, Mapping) and len(entries) < MAX_DEPTH:  # an object of a file may contain itself
        entry = next((name for name in WRAPPERS if isinstance(content.get(name), Mapping)), None)
        if entry is None:
            if tensors := {str(name): value for name, value in content.items() if isinstance(value, Tensor)}:
                return tensors, entries
            break
        entries.append(entry)
        content = content[entry]
    raise UserError(
        f"{path} holds no state dict (names and tensors), also not under {', '.join(WRAPPERS)}; save model.state_dict()"
    )


def load_outside_weights(
    network: nn.Module, weights: Mapping[str, Tensor], path: Path | str, spec: BackboneConfig, entry: str = ""
) -> str:
    """Load weights into a network, and return a line that says under which prefix they were found and what was not
    used.

    All tensors of the network must be in the file, except the counters of BatchNorm. The names in the file may have any
    common prefix (`backbone.`, `module.encoder_q.`), and a ResNet may be a `Sequential` of its children. Names that
    timm itself converts when it loads weights, such as those of DINOv2, are converted by timm.

    Args:
        network: a network of timm.
        weights: the tensors of the file.
        path: the file, for messages.
        spec: the configuration of the network, for messages.
        entry: the entries of the file in which the tensors are.

    Raises:
        UserError: tensors are missing, or have another shape.

    >>> layer = nn.Linear(2, 1)
    >>> saved = {f"net.{name}": tensor for name, tensor in layer.state_dict().items()} | {"fc.bias": torch.zeros(3)}
    >>> load_outside_weights(layer, saved, Path("w.pt"), BackboneConfig(name="linear"))
    "w.pt: 2 of 2 tensors of linear, under the prefix 'net.'; not used: 1 tensor (fc.bias)"
    """
    wanted = network.state_dict()
    prefix, names = find_naming(wanted, weights)
    if any(ours not in weights and not is_counter(ours) for ours in names.values()):
        converted = convert_by_timm(network, weights)
        if all(name in converted and converted[name].shape == wanted[name].shape for name in wanted):
            weights, prefix, names = converted, "", {name: name for name in wanted}
    found = {ours: weights[theirs] for ours, theirs in names.items() if theirs in weights}
    fitting = {name: tensor for name, tensor in found.items() if tensor.shape == wanted[name].shape}
    missing = [name for name in wanted if name not in found and not is_counter(name)]
    other = [
        f"{name} {shape_of(found[name])} instead of {shape_of(wanted[name])}" for name in found if name not in fitting
    ]
    if missing or other:
        remedy = f"the file begins with {listing(list(weights))}: name its network with --backbone.name, .arguments"
        if not missing and any(name.startswith("conv1.") for name in other):
            remedy = f"the stem differs: --backbone.stem {'small' if spec.stem == 'standard' else 'standard'}"
        problems = [f"missing: {listing(missing)}"] if missing else []
        problems += [f"of another shape: {listing(other)}"] if other else []
        held = f"{path} holds {len(fitting)} of {len(wanted)} tensors of {spec.name}"
        raise UserError("; ".join([held, *problems, remedy]))
    network.load_state_dict(wanted | fitting)
    used = set(names.values())
    unused = [name for name in weights if name not in used]
    numbered = next(iter(names)) != next(iter(names.values())).removeprefix(prefix)
    lines = [f"{path}: {len(fitting)} of {len(wanted)} tensors of {spec.name}, {_where(prefix, entry, numbered)}"]
    if counters := len(wanted) - len(fitting):
        lines.append(f"{counters} counters of BatchNorm are absent and not needed")
    if unused:
        lines.append(f"not used: {len(unused)} tensor{'s' * (len(unused) > 1)} ({listing(unused)})")
    return "; ".join(lines)


def find_naming(wanted: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> tuple[str, dict[str, str]]:
    """Return the prefix under which a file has the most tensors of a network, and our name → name in the file."""
    numbered = {}
    for name in wanted:
        part, dot, rest = name.partition(".")
        numbered[name] = f"{RESNET_CHILDREN.get(part, part)}{dot}{rest}"
    namings = []
    for scheme in ({name: name for name in wanted}, numbered):
        first = next(iter(scheme.values()))
        ends = (name for name in weights if name == first or name.endswith(f".{first}"))
        prefixes = Counter(name[: len(name) - len(first)] for name in ends)
        namings += [(prefix, {ours: prefix + theirs for ours, theirs in scheme.items()}) for prefix in prefixes]

    def quality(naming: tuple[str, dict[str, str]]) -> tuple[int, bool]:
        prefix, names = naming
        return sum(name in weights for name in names.values()), not SECOND_CHOICE.search(prefix)

    return max(namings, key=quality, default=("", {name: name for name in wanted}))


def convert_by_timm(network: nn.Module, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return weights as timm's loader converts them for this network: other names, position embeddings resampled to its
    size.

    Return the weights unchanged if timm has no conversion for the network, or if it fails.
    """
    convert: Any = getattr(sys.modules[type(network).__module__], "checkpoint_filter_fn", None)
    if convert is None:
        return weights
    try:
        converted = convert(dict(weights), network)
    except Exception:  # written for the weights that timm knows; on others it may raise anything
        return weights
    return {name: tensor for name, tensor in converted.items() if isinstance(tensor, Tensor)}


def _where(prefix: str, entry: str, numbered: bool) -> str:
    """Return the words that say where in a file the tensors are, and which library names them so.

    >>> _where("module.encoder_q.", "state_dict", False)
    "in the entry 'state_dict', under the prefix 'module.encoder_q.' (the query encoder of MoCo)"
    """
    origin = next((words for part, words in ORIGINS.items() if re.search(part, f"{entry}.{prefix}")), "")
    origin = "the children of a ResNet, as in lightly" if numbered else origin
    where = f"in the entry '{entry}', " if entry else ""
    where += f"under the prefix '{prefix}'" if prefix else "without a prefix"
    return where + (f" ({origin})" if origin else "")


def is_counter(name: str) -> bool:
    """Return whether a tensor counts the batches of a BatchNorm."""
    return name.endswith("num_batches_tracked")


def shape_of(tensor: Tensor) -> str:
    """Return the shape of a tensor in a message.

    >>> shape_of(torch.zeros(3, 2)), shape_of(torch.tensor(0))
    ('3×2', 'scalar')
    """
    return "×".join(map(str, tensor.shape)) or "scalar"


def listing(names: Sequence[str], most: int = 3) -> str:
    """Return the first names, and how many more there are.

    >>> listing("abcde")
    'a, b, c and 2 more'
    """
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _first_line(error: Exception) -> str:
    return shorten(str(error).partition("\n")[0], 160, placeholder=" …") or type(error).__name__
