"""The recipe of a command line of `fullrank pretrain`: first the choices from which other fields follow, then all
flags.
"""

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from fullrank.arguments import check_source, nearest_name, parse_model
from fullrank.cli.flags import parse
from fullrank.cli.heavy import heavy_imports
from fullrank.cli.pretrain_options import Options
from fullrank.errors import UserError, suggest
from fullrank.methods.config import BackboneConfig
from fullrank.recipes import (
    RECIPES,
    DataConfig,
    Recipe,
    builder_signature,
    import_code,
    import_function,
    keywords,
    method_recipe,
    objective_signature,
    published_name,
    read_recipe,
    with_choices,
)
from fullrank.recipes.catalog import explain_published
from fullrank.recipes.choices import OPTIMIZERS, explain_balance, explain_choices, largest_size
from fullrank.recipes.start import Start, explain_start, start_channels, start_size, with_start
from fullrank.recipes.view_groups import with_view_groups

if TYPE_CHECKING:
    from rich.console import Console

BACKBONE_FLAGS = ("name", "stem", "arguments")
READ_FLAGS = (
    "test",
    "channels",
    "labels",
    "image_column",
    "label_column",
    "label_separator",
    "group_column",
    "split_column",
    "follow_links",
    "max_pixels",
    "max_expansion",
)


@dataclass(frozen=True)
class BackboneFlags:
    """The flags --backbone.…."""

    backbone: BackboneConfig = field(default_factory=BackboneConfig)


@dataclass(frozen=True)
class DataFlags:
    """The flags --data.…."""

    data: DataConfig = field(default_factory=DataConfig)


def read_arguments(arguments: Sequence[str], console: "Console") -> tuple[Recipe, Options]:
    """Parse a command line that begins with a recipe or a source.

    First come the choices from which other fields follow, then all flags: a flag always wins over what follows from
    another flag.
    """
    data, _ = pop_flag(arguments, "--data")
    split, _ = pop_flag(arguments, "--split")
    train, _ = pop_flag(arguments, "--data.train")
    objective, _ = pop_flag(arguments, "--objective")
    reading = read_data_flags(arguments[1:])
    init, _ = pop_flag(arguments, "--init")
    start = None if init is None else read_model(init, arguments[1:])
    name = arguments[0]
    if name in RECIPES and objective and (published := published_name(RECIPES[name], objective)):
        name = published
    groups = [flag[2:].partition("=")[0] for flag in arguments[1:] if flag.startswith("--views.")]
    choices = read_choices(arguments[1:])
    base = resolve_recipe(
        name, data=data, train=split or train, choices=choices, reading=reading, groups=groups, start=start
    )
    recipe, options = parse_flags(base.recipe, arguments[1:], console)
    if name != arguments[0]:
        console.print(explain_published(name))
    if lines := base.explain(recipe, options.hours):
        console.print("\n  ".join(lines))
    for line in explain_start(recipe, start) if start else ():
        console.print(line)
    return recipe, options


def read_model(model: str, arguments: Sequence[str]) -> Start:
    """Load the MODEL of --init; the flags name the network of a file of another library."""
    found = flags_below("backbone", BACKBONE_FLAGS, arguments)
    named = any(flag.partition("=")[0] == "--backbone.name" for flag in found)
    backbone = parse(BackboneFlags, found, command="pretrain").backbone if named else None
    parse_model(model)
    with heavy_imports():
        from fullrank.models.initial_weights import read_start

    return read_start(model, backbone=backbone)


def read_choices(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the arguments of `with_choices` and `photos_recipe` that the flags choose, and the sizes of views by the
    name of their flag.

    A value that the parser of the flags will reject is not a choice.

    >>> read_choices(["--epochs", "40", "--backbone.name=resnet50", "--views.0.size", "no"])
    {'epochs': 40, 'backbone': 'resnet50'}
    """
    values = {}
    for i, argument in enumerate(arguments):
        flag, equals, value = argument.partition("=")
        if flag.startswith("--"):
            values[flag.replace("-", "_")] = value if equals else "".join(arguments[i + 1 : i + 2])
    choices = {
        name: whole_number(values.get(flag, ""))
        for name, flag in (("epochs", "__epochs"), ("batch_size", "__batch_size"))
    }
    optimizer = values.get("__optimizer.name")
    choices |= {
        "backbone": values.get("__backbone.name") or None,
        "optimizer": optimizer if optimizer in OPTIMIZERS else None,
    }
    choices |= {flag[2:]: whole_number(value) for flag, value in values.items() if flag.endswith(".size")}
    return {name: value for name, value in choices.items() if value is not None}


def arguments_of_choices(choices: Mapping[str, Any], recipe: Recipe) -> dict[str, Any]:
    """Return the choices with the size of the largest view in place of the sizes of single views.

    >>> arguments_of_choices({"epochs": 3, "views.0.size": 48}, Recipe())
    {'epochs': 3, 'size': 48}
    """
    sizes = {name: value for name, value in choices.items() if name.endswith(".size")}
    return {name: value for name, value in choices.items() if name not in sizes} | {"size": largest_size(recipe, sizes)}


def read_data_flags(arguments: Sequence[str]) -> DataConfig:
    """Return how the flags say that images are read, which must be known before a general recipe can be chosen for
    them.

    >>> read_data_flags(["--data.image_column", "photo", "--epochs", "3"]).reading.image_column
    'photo'
    """
    return parse(DataFlags, flags_below("data", READ_FLAGS, arguments), command="pretrain").data


def flags_below(part: str, names: Collection[str], arguments: Sequence[str]) -> list[str]:
    """Return the flags of some fields of a part of the recipe, with their values.

    >>> flags_below("backbone", ("name", "stem"), ["--backbone.name=resnet50", "--epochs", "3", "--backbone.stem", "small"])
    ['--backbone.name=resnet50', '--backbone.stem', 'small']
    """
    found: list[str] = []
    for i, argument in enumerate(arguments):
        flag, equals, _ = argument.partition("=")
        name = flag.removeprefix(f"--{part}.").replace("-", "_")
        if flag.startswith(f"--{part}.") and name in names:
            found += [argument] if equals or name == "follow_links" else arguments[i : i + 2]
    return found


def whole_number(text: str) -> int | None:
    """Return a number from 1 to 999,999,999, or None.

    >>> whole_number("64"), whole_number("0"), whole_number("many")
    (64, None, None)
    """
    return int(text) or None if re.fullmatch(r"[0-9]{1,9}", text) else None


def pop_flag(arguments: Sequence[str], flag: str) -> tuple[str | None, Sequence[str]]:
    """Return the value of a flag, given as `--flag value` or `--flag=value`, and the other arguments. The last value
    counts.

    Raises:
        UserError: the flag has no value or is misspelt.

    >>> pop_flag(["digits", "--objective", "vicreg", "--epochs", "3"], "--objective")
    ('vicreg', ['digits', '--epochs', '3'])
    """
    found, others, rest = None, [], iter(arguments)
    for argument in rest:
        name, equals, value = argument.partition("=")
        if name.replace("_", "-") == flag:
            found = value if equals else next(rest, "--")
            if found.startswith("--"):
                raise UserError(f"{flag} has no value; see fullrank pretrain --help")
        elif get_close_matches(name, [flag], cutoff=0.85):
            raise UserError(f"unrecognized options: {argument}; did you mean {flag}?")
        else:
            others.append(argument)
    return found, others


@dataclass(frozen=True)
class BaseRecipe:
    """The recipe to which the flags are applied."""

    recipe: Recipe
    explain: Callable[[Recipe, float | None], list[str]]
    """Returns lines about the final recipe, given the value of --hours: what was chosen, or what followed from the
    flags."""


def resolve_recipe(
    name: str,
    *,
    data: str | None = None,
    train: str | None = None,
    choices: Mapping[str, Any] = MappingProxyType({}),
    reading: DataConfig | None = None,
    groups: Sequence[str] = (),
    start: Start | None = None,
) -> BaseRecipe:
    """Return the named recipe, the recipe of a JSON file, or a general recipe for a source, with what follows from the
    choices.

    Args:
        name: a recipe, a JSON file or a source; "photos" means the general recipe for `data`.
        data: the value of --data.
        train: name of the split to train on.
        choices: what `read_choices` returns.
        reading: how the images are read.
        groups: names of fields of views, which may ask for further groups of views.
        start: the model whose weights the backbone starts with.

    Raises:
        UserError: `name` is neither a recipe nor a source, or a group of views is left out.
    """
    channels = reading.channels if reading and reading.channels != DataConfig.channels else None  # what the user gave
    if name in RECIPES:
        return adapted(with_view_groups(RECIPES[name], groups), choices, start, channels)
    if name == "photos" and data is not None:
        name = data
    if name.endswith(".json") and os.path.isfile(
        name
    ):  # unlike `Path.is_file`, it returns False for a folder that may not be read
        return adapted(with_view_groups(read_recipe(Path(name)), groups), choices, start, channels)
    if os.path.isfile(Path(name) / "recipe.json"):
        again = f"give {Path(name) / 'recipe.json'} to train its recipe again"
        raise UserError(f"{name} is a run, expected a recipe or images; continue it with --resume {name}, or {again}")
    if not (":" in name or os.path.exists(name)):
        like_a_path = "/" in name or "\\" in name or "." in name
        a_source = "images in a folder, a Parquet file or hf:OWNER/NAME; for example: fullrank pretrain path/to/photos"
        some = f"{', '.join([*RECIPES][:4])} …; `fullrank recipes` lists all {len(RECIPES)}"
        expected = a_source if like_a_path else f"a recipe ({some}), or {a_source}"
        hint = suggest(name, RECIPES) or (nearest_name(Path(name)) if like_a_path else "")
        raise UserError(f"'{name}' is neither a recipe nor a path that exists; expected {expected}{hint}")
    check_source(name)
    with heavy_imports():
        import torch

        from fullrank.images import dataset_info, train_and_test
        from fullrank.recipes import explain_photos_recipe, photos_recipe

    reading = reading or DataConfig()
    splits = train_and_test(
        name,
        replace(reading.reading, train=train or reading.reading.train),
        validation=reading.validation,
        subset=reading.subset,
    )
    info = dataset_info(splits.train)
    own: dict[str, Any] = {}  # the number of channels decides which operations the views have
    if start is not None:
        info = replace(info, channels=start_channels(info.channels, start, channels))
        own = {"size": start_size(start), "backbone": start.backbone.name}
    elif channels is not None:
        info = replace(info, channels=channels)
    title = (
        f"A general recipe for the {len(splits.train):,} training images ({len(splits.test):,} others are held out); "
        "the flags in brackets change the recipe:"
    )
    given = {name: value for name, value in arguments_of_choices(choices, Recipe()).items() if value is not None}
    recipe = photos_recipe(name, info, gpu=torch.cuda.is_available(), **(own | given))
    recipe = recipe if start is None else with_start(recipe, start, channels=channels)
    return BaseRecipe(
        with_view_groups(recipe, groups),
        lambda final, hours: [title, *explain_photos_recipe(final, info, hours), *explain_balance(recipe, final)],
    )


def adapted(
    recipe: Recipe, choices: Mapping[str, Any], start: Start | None = None, channels: int | None = None
) -> BaseRecipe:
    """Return a recipe with what follows from the choices, and from the model whose weights it starts with."""
    derived = with_choices(recipe, **arguments_of_choices(choices, recipe))
    if start is not None:
        derived = with_start(derived, start, channels=channels)
    return BaseRecipe(
        derived, lambda final, _: [*explain_choices(recipe, derived, final), *explain_balance(recipe, final)]
    )


def parse_flags(recipe: Recipe, arguments: Sequence[str], console: "Console") -> tuple[Recipe, Options]:
    """Parse the flags of the recipe, its objective, its method, and the run; import the functions that the flags
    name.
    """
    name, arguments = pop_flag(arguments, "--objective")
    builder, arguments = pop_flag(arguments, "--method-builder")
    named, sentence = [each for each in (name, builder) if each and ":" in each], ""
    for function in named:
        import_function(function, notify=console.print)
    if name is not None and name != recipe.objective:
        recipe, sentence = method_recipe(recipe, name, method_builder=builder or "")
    elif builder is not None:
        recipe = replace(recipe, method_builder=builder, method={})
    import_code(
        replace(recipe, custom_transforms=()), "--trust" in arguments, console.print
    )  # the flags may replace the transforms
    recipe = replace(recipe)  # with the hyperparameters of the functions that were imported
    Hyper: Any = keywords(objective_signature(recipe.objective))
    MethodOptions: Any = keywords(builder_signature(recipe.method_builder, recipe.objective))

    @dataclass(frozen=True)
    class Flags:
        options: Annotated[Options, tyro.conf.arg(name="")]
        recipe: Annotated[Recipe, tyro.conf.arg(name="")]
        hyper: Hyper  # pyright: ignore[reportInvalidTypeForm]
        """Hyperparameters of the objective (--objective NAME chooses another objective)."""
        method: MethodOptions  # pyright: ignore[reportInvalidTypeForm]
        """Hyperparameters of the method around the objective (--method-builder package.module:builder chooses another
        method)."""

    default = Flags(Options(), recipe, Hyper(**recipe.hyper), MethodOptions(**recipe.method))
    flags = parse(
        Flags,
        arguments,
        command=f"pretrain {recipe.name}",
        default=default,
        description=f"Pretrain with {recipe.objective}. --objective NAME chooses another objective, --resume RUN continues a run.",
    )
    if sentence:
        console.print(sentence)
    recipe = replace(flags.recipe, hyper=vars(flags.hyper), method=vars(flags.method))
    if any(re.match(r"--custom[_-]transforms\b", argument) for argument in arguments):
        for function in recipe.custom_transforms:
            import_function(function, notify=console.print)
    own = recipe.data.reading
    own = own if flags.options.split is None else replace(own, train=flags.options.split)
    data = replace(recipe.data, source=flags.options.data or recipe.data.source, reading=own)
    probe = replace(recipe.probe, labelled=flags.options.labelled or recipe.probe.labelled)
    return replace(recipe, data=data, probe=probe), flags.options
