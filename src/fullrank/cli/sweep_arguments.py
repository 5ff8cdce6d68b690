"""The command line of `fullrank sweep`: its own options, and the flags of a recipe, of which several values span the
grid.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args, get_origin

from fullrank.errors import UserError
from fullrank.recipes import Recipe
from fullrank.structure import field_types
from fullrank.sweep.cell import Setting

REFUSED = {
    "--seed": "give --seeds: their number, or several seeds",
    "--overwrite": "a sweep takes what is done; give another --out, or remove the folder",
    "--resume": "the same command goes on where it was stopped",
    "--resume-or-start": "the same command goes on where it was stopped",
    "--preview": "look at the views with fullrank pretrain … --preview",
    "--wandb": "a sweep writes its own table and report",
    "--wandb-project": "a sweep writes its own table and report",
    "--wandb-name": "a sweep writes its own table and report",
    "--smoke": "give --epochs 1 --data.subset 500",
}
"""Flags of other commands → what to say."""


@dataclass(frozen=True)
class SweepOptions:
    """The options of a sweep that are not part of a recipe."""

    seeds: tuple[int, ...] = (1,)
    """The number of seeds (3: seeds 0, 1, 2), or several seeds (0 5 7)."""
    out: Path | None = None
    """Folder of the sweep, with a run directory for each cell. The default is sweeps/RECIPE."""
    choose: str | None = None
    """A flag with several values, such as optimizer.lr. Its value is chosen for each combination of the others: each
    value is trained with one more seed and without a tenth of the training images, and scored on these."""
    probes: tuple[str, ...] = ("linear", "knn")
    """Probes after training, as in fullrank evaluate; none: no evaluation."""
    transfer: tuple[str, ...] = ()
    """Sources of other labelled images, on which the same probes are scored."""
    parallel: int = 0
    """Number of runs at the same time. 0: one for each GPU, or one on a CPU, where several share the cores."""
    list: bool = False
    """Print the cells, each with the command that runs it, and run nothing."""
    cell: str | None = None
    """Run one cell: its number, counted from 0, or its name. A later command without --cell collects the results."""


OWN = tuple(f"--{name}" for name in SweepOptions.__dataclass_fields__)


@dataclass(frozen=True)
class SweepArguments:
    """A command line of `fullrank sweep` after the recipe."""

    own: tuple[str, ...] = ()
    """The arguments of `SweepOptions`."""
    fixed: tuple[str, ...] = ()
    """The flags with one value or none, as `fullrank pretrain` takes them."""
    axes: Mapping[str, Sequence[Setting]] = field(default_factory=dict)
    """Name of a flag with several values → the values."""
    texts: Mapping[str, Mapping[Setting, str]] = field(default_factory=dict)
    """Name of a flag → value → its text on the command line."""

    def flags(self, values: Mapping[str, Setting]) -> list[str]:
        """Return the arguments of `fullrank pretrain` for one combination."""
        varied = [
            argument for name, value in values.items() for argument in flag_arguments(name, self.texts[name][value])
        ]
        return [*self.fixed, *varied]


def split_arguments(arguments: Sequence[str]) -> SweepArguments:
    """Split the arguments after the recipe.

    Raises:
        UserError: a flag is one of another command, is given twice, or a value follows no flag.

    >>> split = split_arguments(["--objective", "frossl", "vicreg", "--seeds", "3", "--epochs=2"])
    >>> split.own, split.fixed, split.axes
    (('--seeds', '3'), ('--epochs', '2'), {'objective': ['frossl', 'vicreg']})
    """
    found: dict[str, list[str]] = {}
    flag = ""
    for argument in arguments:
        if is_flag(argument):
            flag, equals, value = argument.partition("=")
            name = flag.replace("_", "-")
            if name in REFUSED:
                raise UserError(f"{flag} is no flag of fullrank sweep: {REFUSED[name]}")
            if name in (each.replace("_", "-") for each in found):
                raise UserError(f"{flag} is given twice; give all of its values after one {flag}")
            found[flag] = [value] if equals else []
        elif not flag:
            raise UserError(
                f"'{argument}' follows no flag; for example: fullrank sweep digits --objective frossl vicreg --seeds 3"
            )
        else:
            found[flag].append(argument)
    own, fixed, axes, texts = [], [], {}, {}
    for flag, values in found.items():
        name = flag[2:]
        if flag in OWN:
            own += [flag, *values]
        elif len(values) < 2:
            fixed += flag_arguments(name, *values)
        else:
            axes[name] = [setting(value) for value in values]
            texts[name] = dict(zip(axes[name], values, strict=True))
    return SweepArguments(tuple(own), tuple(fixed), axes, texts)


def is_flag(argument: str) -> bool:
    """Return whether an argument is a flag, not a value such as -1.

    >>> is_flag("--epochs"), is_flag("-1e-3"), is_flag("-v")
    (True, False, True)
    """
    return argument.startswith("-") and not re.fullmatch(r"-[\d.].*", argument)


def setting(text: str) -> Setting:
    """Return a value of the command line as a number or a truth value if it is one, else as text.

    >>> setting("1e-3"), setting("20"), setting("true"), setting("frossl")
    (0.001, 20, True, 'frossl')
    """
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        return value if abs(value) < float("inf") and "_" not in text else text
    return text


def flag_arguments(name: str, text: str | None = None) -> list[str]:
    """Return a flag with one value as `fullrank pretrain` takes it: the numbers of a tuple apart, a truth value in the
    flag's name.

    >>> flag_arguments("projector.widths", "512,64"), flag_arguments("hyper.log", "false"), flag_arguments("data.source", "a,b")
    (['--projector.widths', '512', '64'], ['--hyper.no-log'], ['--data.source', 'a,b'])
    """
    if text is None:
        return [f"--{name}"]
    if text.lower() in ("true", "false"):
        parent, dot, last = name.rpartition(".")
        return [f"--{name}"] if text.lower() == "true" else [f"--{parent}{dot}no-{last}"]
    return [f"--{name}", *(text.split(",") if "," in text and is_tuple(name) else [text])]


def is_tuple(name: str) -> bool:
    """Return whether a flag takes several values in `fullrank pretrain`.

    >>> [is_tuple(name) for name in ("projector.widths", "views.0.crop.scale", "data.source", "epochs", "hyper.unknown")]
    [True, True, False, False, False]
    """
    kind: object = Recipe
    for part in name.replace("-", "_").split("."):
        while hasattr(kind, "__metadata__"):  # Annotated
            kind = get_args(kind)[0]
        if get_origin(kind) is tuple:
            kind = get_args(kind)[0]
        elif isinstance(kind, type) and hasattr(kind, "__dataclass_fields__") and part in field_types(kind):
            kind = field_types(kind)[part]
        else:
            return False
    while hasattr(kind, "__metadata__"):
        kind = get_args(kind)[0]
    return get_origin(kind) is tuple
