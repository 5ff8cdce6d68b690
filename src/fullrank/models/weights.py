"""Files of weights: read without executing code, and their tensors matched with those of a timm network."""

import hashlib
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

from fullrank.errors import UserError, exception_line, explain_errors

Weights = Mapping[str, Tensor]

EXPECTED = "a file of `fullrank export RUN --out FILE.safetensors`, or the weights of another library"
# Entries of a training checkpoint that hold a state dict, the preferred one first.
WRAPPERS = (
    *("state_dict", "model_state_dict", "classy_state_dict", "base_model", "model", "trunk", "teacher", "student"),
    *("backbone", "network", "module"),
)
# Limit for the nesting of `WRAPPERS`: an object of a file may contain itself.
MAX_DEPTH = 8
# The parts of a ResNet in `nn.Sequential(*list(resnet.children())[:-1])`, the backbone of lightly's examples.
RESNET_CHILDREN = {"conv1": "0", "bn1": "1", "layer1": "4", "layer2": "5", "layer3": "6", "layer4": "7"}
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
        raise UserError(f"{path} is not a file; expected {EXPECTED}")
    with explain_errors(f"{path} is not a file of weights", f"expected {EXPECTED}"):
        with path.open("rb") as file:
            head = file.read(9)
        if head[8:] != b"{" and (head[:2] == b"PK" or head[:1] == b"\x80"):  # a zip archive or a pickle, of torch.save
            try:
                content = torch.load(path, map_location="cpu", weights_only=True)
            except pickle.UnpicklingError as error:
                found = "holds Python objects besides tensors, which could execute code and are not loaded"
                remedy = "torch.save(torch.load(PATH, weights_only=False)['state_dict'], 'weights.pt')"
                remedy = f"if you trust the file, save its tensors alone: {remedy}"
                raise UserError(f"{path} {found} ({exception_line(error)}); {remedy}") from error
            weights, metadata = _find_state_dict(path, content)
        else:
            with safe_open(path, "pt") as file:
                weights, metadata = {key: file.get_tensor(key) for key in file.keys()}, file.metadata() or {}  # noqa: SIM118
    check_finite(weights, path, "give another file, such as one of an earlier checkpoint")
    return weights, metadata


def _find_state_dict(path: Path, content: Any) -> tuple[dict[str, Tensor], dict[str, str]]:
    entries: list[str] = []
    while isinstance(content, Mapping) and len(entries) < MAX_DEPTH:
        entry = next((name for name in WRAPPERS if isinstance(content.get(name), Mapping)), None)
        if entry is None:
            if tensors := {str(name): value for name, value in content.items() if isinstance(value, Tensor)}:
                return tensors, {"entry": ".".join(entries)}
            break
        entries.append(entry)
        content = content[entry]
    raise UserError(f"{path} holds no state dict, also not under {', '.join(WRAPPERS)}; save model.state_dict()")


def check_finite(weights: Weights, source: Any, remedy: str) -> None:
    """Check that no weight is NaN or infinite.

    Raises:
        UserError: one is.
    """
    for name, tensor in weights.items():
        if tensor.is_floating_point() and (count := int((~tensor.isfinite()).sum())):
            raise UserError(f"the weights of {source} are not finite ('{name}': {count} of {tensor.numel()}); {remedy}")


def load_weights(network: nn.Module, weights: Weights, what: str) -> None:
    """Load all tensors of a network by their names.

    Raises:
        UserError: a tensor is absent, or has another shape; `what` says which files do not match.
    """
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        reason = shorten(str(error), 160, placeholder=" …")  # the first line says nothing
        raise UserError(f"{what} ({reason}); restore these files, or make them again") from error


def load_outside_weights(network: nn.Module, weights: Weights, what: str, entry: str = "") -> str:
    """Load weights into a network, and return a line that says under which prefix they were found and what was not
    used.

    All tensors of the network must be in the file, except the counters of BatchNorm. The names in the file may have any
    common prefix (`backbone.`, `module.encoder_q.`), and a ResNet may be a `Sequential` of its children. Names that
    timm itself converts when it loads weights, such as those of DINOv2, are converted by timm.

    Args:
        network: a network of timm.
        weights: the tensors of the file.
        what: the name of the file, for messages.
        entry: the entries of the file in which the tensors are.

    Raises:
        UserError: tensors are missing, or have another shape.

    >>> layer = nn.Linear(2, 1)
    >>> saved = {f"net.{name}": tensor for name, tensor in layer.state_dict().items()} | {"fc.bias": torch.zeros(3)}
    >>> load_outside_weights(layer, saved, "w.pt")
    "w.pt: 2 of 2 tensors of the network, under the prefix 'net.'; not used: 1 (fc.bias)"
    """
    wanted = network.state_dict()
    prefix, names = find_naming(wanted, weights)
    found = {ours: weights[theirs] for ours, theirs in names.items() if theirs in weights}
    if any(ours not in found and not is_counter(ours) for ours in names):
        converted = convert_by_timm(network, weights)
        if not not_fitting(wanted, converted):
            found, weights, prefix, names = converted, converted, "", {name: name for name in wanted}
    if problems := not_fitting(wanted, found):
        remedy = f"the file begins with {listing(list(weights))}: name its network with --backbone.name, .arguments"
        if all("instead of" in problem for problem in problems):
            remedy = "give the --size and --channels of its images, or its --backbone.stem (small, standard)"
        raise UserError(f"{what} has not all tensors of the network: {listing(problems)}; {remedy}")
    network.load_state_dict({name: found.get(name, tensor) for name, tensor in wanted.items()})
    where = (f"in the entry '{entry}', " if entry else "") + (f"under the prefix '{prefix}'" if prefix else "no prefix")
    line = f"{what}: {sum(name in found for name in wanted)} of {len(wanted)} tensors of the network, {where}"
    used = set(names.values())
    unused = [name for name in weights if name not in used]
    return line + (f"; not used: {len(unused)} ({listing(unused)})" if unused else "")


def find_naming(wanted: Weights, weights: Weights) -> tuple[str, dict[str, str]]:
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


def convert_by_timm(network: nn.Module, weights: Weights) -> Weights:
    """Return weights as timm's loader converts them for this network: other names, position embeddings resampled to its
    size.

    Return the weights unchanged if timm has no conversion for the network, or if it fails.
    """
    convert: Any = getattr(sys.modules[type(network).__module__], "checkpoint_filter_fn", None)
    try:
        converted = convert(dict(weights), network)
    except Exception:  # written for the weights that timm knows; on others it may raise anything
        return weights
    return {name: tensor for name, tensor in converted.items() if isinstance(tensor, Tensor)}


def not_fitting(wanted: Weights, found: Weights) -> list[str]:
    """Return the tensors of a network that `found` has not in the same shape, each with the reason; a counter may be
    absent.

    >>> not_fitting({"w": torch.zeros(3, 2), "b": torch.zeros(3)}, {"w": torch.zeros(3, 3)})
    ['w (3×3 instead of 3×2)', 'b (absent)']
    """
    return [
        f"{name} ({f'{shape_of(found[name])} instead of {shape_of(tensor)}' if name in found else 'absent'})"
        for name, tensor in wanted.items()
        if (found[name].shape != tensor.shape if name in found else not is_counter(name))
    ]


def hash_weights(weights: Weights) -> str:
    """Return the SHA-256 of the names, shapes and bytes of tensors, without the counters of BatchNorm.

    >>> hash_weights({"w": torch.zeros(2)})[:8], hash_weights({"w": torch.ones(2)})[:8]
    ('a4571335', 'ee53a03a')
    """
    digest = hashlib.sha256()
    for name in sorted(name for name in weights if not is_counter(name)):
        values = weights[name].detach().cpu().contiguous()
        digest.update(f"{name} {tuple(values.shape)} {values.dtype}\n".encode())
        digest.update(values.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


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
