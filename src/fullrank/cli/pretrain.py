"""`fullrank pretrain`: parse first the recipe and the objective, then the flags that they define; train and write the report."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from textwrap import fill
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from fullrank.arguments import check_source
from fullrank.cli.flags import check_arguments, parse
from fullrank.cli.heavy import heavy_imports
from fullrank.errors import UserError, suggest
from fullrank.recipes import (
    RECIPES,
    DataConfig,
    Recipe,
    builder_signature,
    import_code,
    import_function,
    keywords,
    objective_signature,
    read_recipe,
    with_choices,
    with_objective,
)
from fullrank.recipes.choices import OPTIMIZERS, explain_choices, largest_size
from fullrank.signatures import objective_names
from fullrank.terminal import stderr

if TYPE_CHECKING:
    from rich.console import Console

USAGE = """usage: fullrank pretrain RECIPE | SOURCE [flags]
       fullrank pretrain --resume RUN [--epochs N] [--data SOURCE]

Pretrain a backbone on unlabelled images. RECIPE: {recipes}; or a recipe.json.
SOURCE: a folder or Parquet file of images; the command chooses and shows a general recipe.

  fullrank pretrain digits                                      takes a minute on two cores, without a download
  fullrank pretrain digits --objective vicreg                   use another objective (see below)
  fullrank pretrain digits --objective my_module:my_loss        use your own function (see fullrank check)
  fullrank pretrain digits --hyper.invariance 2                 set a hyperparameter of the objective
  fullrank pretrain cifar10-small --data path/to/parquet        use your copy of the data
  fullrank pretrain cifar10-small --devices 2                   use two processes; the result is the same
  fullrank pretrain path/to/photos --preview                    look at the views first
  fullrank pretrain digits --help                               show all flags of a recipe with their defaults

Objectives: {objectives}
"""


HINTS = {
    **dict.fromkeys(("--backbone", "--arch", "--model", "--network", "--encoder"), "did you mean --backbone.name?"),
    **dict.fromkeys(("--batch", "--bs", "--batchsize"), "did you mean --batch_size?"),
    **dict.fromkeys(("--lr", "--learning-rate"), "did you mean --optimizer.lr?"),
    **dict.fromkeys(("--wd", "--weight-decay"), "did you mean --optimizer.weight_decay?"),
    **dict.fromkeys(("--optimizer", "--optim"), "did you mean --optimizer.name?"),
    **dict.fromkeys(("--schedule", "--scheduler"), "did you mean --schedule.name?"),
    **dict.fromkeys(("--warmup", "--warmup-epochs"), "did you mean --schedule.warmup?"),
    **dict.fromkeys(("--size", "--image-size", "--img-size", "--crop-size", "--resolution"), "did you mean --views.0.size?"),
    **dict.fromkeys(("--projector", "--dim", "--proj-dim", "--embedding-dim"), "did you mean --projector.widths?"),
    **dict.fromkeys(("--workers", "--num-workers"), "did you mean --data.workers?"),
    **dict.fromkeys(("--labels",), "did you mean --data.labels?"),
    **dict.fromkeys(("--gpu", "--gpus", "--num-gpus", "--processes", "--nproc"), "did you mean --devices?"),
    **dict.fromkeys(("--device", "--accelerator"), "did you mean --machine.accelerator?"),
    **dict.fromkeys(("--precision", "--amp", "--fp16", "--bf16"), "did you mean --machine.precision?"),
    **dict.fromkeys(("--loss", "--method"), "did you mean --objective?"),
    **dict.fromkeys(("--output", "--output-dir", "--out-dir", "--save-dir", "--logdir"), "did you mean --out?"),
    **dict.fromkeys(
        ("--init", "--pretrained", "--weights", "--checkpoint", "--finetune"),
        "a run starts from random weights, drawn from --seed; --resume RUN continues a run, fullrank evaluate scores pretrained weights",
    ),
}
"""Flags that users of other libraries type → what to say."""


@dataclass(frozen=True)
class RunOptions:
    """The options of a new or a resumed run that are not part of its recipe."""

    devices: int | None = None
    """Short for --machine.devices: the number of processes, one per device. Batch size and steps do not change."""
    trust: bool = False
    """Import the code that a recipe.json or the run of --resume names. Read the code first: it runs with all your rights."""
    wandb: bool = False
    """Log to Weights & Biases too."""
    wandb_project: str | None = None
    """Log to this project of Weights & Biases; the default is fullrank."""
    wandb_name: str | None = None
    """Name of the run at Weights & Biases; the default is the name of the run directory."""

    @property
    def wandb_options(self) -> bool | dict[str, Any]:
        """The value of `wandb` for `fullrank.pretrain`."""
        options = {name: value for name, value in (("project", self.wandb_project), ("name", self.wandb_name)) if value is not None}
        return options or self.wandb


@dataclass(frozen=True)
class Options(RunOptions):
    """The options of a new run."""

    data: str | None = None
    """Short for --data.source: the source of the images."""
    split: str | None = None
    """Short for --data.train: the name of the split to train on."""
    out: Path | None = None
    """Run directory, or with --preview the PNG file. The default is the next free runs/NAME, or views.png."""
    overwrite: bool = False
    """Replace the run or the file in --out."""
    resume_or_start: bool = False
    """Continue the run in --out if there is one, which must have the same recipe; else start. For jobs that are queued again."""
    preview: bool = False
    """Write a picture of images and their views, and do not train."""


@dataclass(frozen=True)
class ResumeOptions(RunOptions):
    """The options of a resumed run, which otherwise uses its stored recipe."""

    data: str | None = None
    """Source of the images, if they have moved."""
    epochs: int | None = None
    """Another number of epochs. The learning rate follows the schedule of that number from there on."""
    log_every: int | None = None
    """Steps between two lines of metrics.jsonl."""
    keep_checkpoints: int | None = None
    """Number of checkpoints that remain, the newest ones. -1: all."""
    workers: Annotated[int | None, tyro.conf.arg(name="data.workers")] = None
    """Number of processes that decode images."""
    micro_batch: Annotated[int | None, tyro.conf.arg(name="machine.micro_batch")] = None
    """Images per forward pass on a device."""


READ_FLAGS = ("test", "channels", "labels", "image_column", "label_column", "follow_links", "max_pixels", "max_expansion")


@dataclass(frozen=True)
class DataFlags:
    """The flags --data.…."""

    data: DataConfig = field(default_factory=DataConfig)


def run(arguments: Sequence[str]) -> None:
    """Parse and pretrain."""
    if not arguments or arguments[0] in ("-h", "--help"):
        objectives = fill(", ".join(objective_names()), width=100, initial_indent=" " * 12, subsequent_indent=" " * 12).strip()
        print(USAGE.format(recipes=", ".join(RECIPES), objectives=objectives), end="")
        return
    console = stderr()
    check_arguments(arguments, command="pretrain")
    resume, arguments = pop_flag(arguments, "--resume")
    if resume is not None:
        resume_run(Path(resume), arguments, console)
        return
    if arguments[0].startswith("-"):
        raise UserError(
            f"the first argument must be a recipe or a path, got {arguments[0]}; for example: fullrank pretrain digits {arguments[0]} …"
        )
    recipe, options = read_arguments(arguments, console)
    start_run(recipe, options, console)


def read_arguments(arguments: Sequence[str], console: "Console") -> tuple[Recipe, Options]:
    """Parse a command line that begins with a recipe or a source.

    First come the choices from which other fields follow, then all flags: a flag always wins over what follows from another flag.
    """
    data, _ = pop_flag(arguments, "--data")
    split, _ = pop_flag(arguments, "--split")
    train, _ = pop_flag(arguments, "--data.train")
    reading = read_data_flags(arguments[1:])
    base = resolve_recipe(arguments[0], data=data, train=split or train, choices=read_choices(arguments[1:]), reading=reading)
    recipe, options = parse_flags(base.recipe, arguments[1:], console)
    if lines := base.explain(recipe):
        console.print("\n  ".join(lines))
    return recipe, options


def read_choices(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the arguments of `with_choices` and `photos_recipe` that the flags choose, and the sizes of views by the name of their flag.

    A value that the parser of the flags will reject is not a choice.

    >>> read_choices(["--epochs", "40", "--backbone.name=resnet50", "--views.0.size", "no"])
    {'epochs': 40, 'backbone': 'resnet50'}
    """
    values = {}
    for i, argument in enumerate(arguments):
        flag, equals, value = argument.partition("=")
        if flag.startswith("--"):
            values[flag.replace("-", "_")] = value if equals else "".join(arguments[i + 1 : i + 2])
    choices = {name: whole_number(values.get(flag, "")) for name, flag in (("epochs", "__epochs"), ("batch_size", "__batch_size"))}
    optimizer = values.get("__optimizer.name")
    choices |= {"backbone": values.get("__backbone.name") or None, "optimizer": optimizer if optimizer in OPTIMIZERS else None}
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
    """Return how the flags say that images are read, which must be known before a general recipe can be chosen for them.

    >>> read_data_flags(["--data.image_column", "photo", "--epochs", "3"]).image_column
    'photo'
    """
    found: list[str] = []
    for i, argument in enumerate(arguments):
        flag, equals, _ = argument.partition("=")
        name = flag.removeprefix("--data.").replace("-", "_")
        if flag.startswith("--data.") and name in READ_FLAGS:
            found += [argument] if equals or name == "follow_links" else arguments[i : i + 2]
    return parse(DataFlags, found, command="pretrain").data


def whole_number(text: str) -> int | None:
    """Return a number from 1 to 999,999,999, or None.

    >>> whole_number("64"), whole_number("0"), whole_number("many")
    (64, None, None)
    """
    return int(text) or None if re.fullmatch(r"[0-9]{1,9}", text) else None


def pop_flag(arguments: Sequence[str], flag: str) -> tuple[str | None, Sequence[str]]:
    """Return the value of a flag, given as `--flag value` or `--flag=value`, and the other arguments. The last value counts.

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
    explain: Callable[[Recipe], list[str]]
    """Returns lines about the final recipe: what was chosen, or what followed from the flags."""


def resolve_recipe(
    name: str,
    *,
    data: str | None = None,
    train: str | None = None,
    choices: Mapping[str, Any] = MappingProxyType({}),
    reading: DataConfig | None = None,
) -> BaseRecipe:
    """Return the named recipe, the recipe of a JSON file, or a general recipe for a source, with what follows from the choices.

    Args:
        name: a recipe, a JSON file or a source; "photos" means the general recipe for `data`.
        data: the value of --data.
        train: name of the split to train on.
        choices: what `read_choices` returns.
        reading: how the images are read.

    Raises:
        UserError: `name` is neither a recipe nor a source.
    """
    if name in RECIPES:
        return adapted(RECIPES[name], choices)
    if name == "photos" and data is not None:
        name = data
    if name.endswith(".json") and os.path.isfile(name):  # unlike `Path.is_file`, it returns False for a folder that may not be read
        return adapted(read_recipe(Path(name)), choices)
    if os.path.isfile(Path(name) / "recipe.json"):
        again = f"give {Path(name) / 'recipe.json'} to train its recipe again"
        raise UserError(f"{name} is a run, expected a recipe or images; continue it with --resume {name}, or {again}")
    if not (":" in name or os.path.exists(name)):
        like_a_path = "/" in name or "\\" in name or "." in name
        a_source = "images in a folder, a Parquet file or hf:OWNER/NAME; for example: fullrank pretrain path/to/photos"
        expected = a_source if like_a_path else f"a recipe ({', '.join(RECIPES)}), or {a_source}"
        raise UserError(f"'{name}' is neither a recipe nor a path that exists; expected {expected}{suggest(name, RECIPES)}")
    check_source(name)
    with heavy_imports():
        import torch

        from fullrank.images import dataset_info, train_and_test
        from fullrank.recipes import explain_photos_recipe, photos_recipe

    reading = reading or DataConfig()
    splits = train_and_test(name, train=train or reading.train, test=reading.test, **reading.open_options)
    info = dataset_info(splits.train)
    if reading.channels != DataConfig.channels:  # the number of channels decides which operations the views have
        info = replace(info, channels=reading.channels)
    title = (
        f"A general recipe for the {len(splits.train):,} training images ({len(splits.test):,} others are held out); "
        "the flags in brackets change the recipe:"
    )
    recipe = photos_recipe(name, info, gpu=torch.cuda.is_available(), **arguments_of_choices(choices, Recipe()))
    return BaseRecipe(recipe, lambda final: [title, *explain_photos_recipe(final, info)])


def adapted(recipe: Recipe, choices: Mapping[str, Any]) -> BaseRecipe:
    """Return a recipe with what follows from the choices."""
    derived = with_choices(recipe, **arguments_of_choices(choices, recipe))
    return BaseRecipe(derived, partial(explain_choices, recipe, derived))


def parse_flags(recipe: Recipe, arguments: Sequence[str], console: "Console") -> tuple[Recipe, Options]:
    """Parse the flags of the recipe, its objective, its method, and the run; import the functions that the flags name."""
    name, arguments = pop_flag(arguments, "--objective")
    builder, arguments = pop_flag(arguments, "--method-builder")
    named = [each for each in (name, builder) if each and ":" in each]
    for function in named:
        import_function(function, notify=console.print)
    if name is not None and name != recipe.objective:
        recipe = with_objective(recipe, name, method_builder=builder or "")
    elif builder is not None:
        recipe = replace(recipe, method_builder=builder, method={})
    import_code(replace(recipe, custom_transforms=()), "--trust" in arguments, console.print)  # the flags may replace the transforms
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
        """Hyperparameters of the method around the objective (--method-builder package.module:builder chooses another method)."""

    default = Flags(Options(), recipe, Hyper(**recipe.hyper), MethodOptions(**recipe.method))
    flags = parse(
        Flags,
        arguments,
        command=f"pretrain {recipe.name}",
        default=default,
        hints=HINTS,
        description=f"Pretrain with {recipe.objective}. --objective NAME chooses another objective, --resume RUN continues a run.",
    )
    recipe = replace(flags.recipe, hyper=vars(flags.hyper), method=vars(flags.method))
    if any(re.match(r"--custom[_-]transforms\b", argument) for argument in arguments):
        for function in recipe.custom_transforms:
            import_function(function, notify=console.print)
    data = replace(recipe.data, source=flags.options.data or recipe.data.source, train=flags.options.split or recipe.data.train)
    return replace(recipe, data=data), flags.options


def start_run(recipe: Recipe, options: Options, console: "Console") -> None:
    """Train and write the report, or write the preview."""
    check_source(recipe.data.source)
    with heavy_imports():
        from fullrank.pretraining import pretrain, preview

    if options.preview:
        console.print(f"views: {preview(recipe, out=options.out, overwrite=options.overwrite, trust=options.trust, console=console)}")
        return
    run = pretrain(
        recipe,
        out=options.out,
        resume_or_start=options.resume_or_start,
        overwrite=options.overwrite,
        devices=options.devices,
        trust=options.trust,
        wandb=options.wandb_options,
        console=console,
    )
    finish_run(run.path, console)


def resume_run(path: Path, arguments: Sequence[str], console: "Console") -> None:
    """Continue a run; a recipe passed with --resume must equal the stored one in what decides the weights."""
    if not os.path.isdir(path):
        read_recipe(path / "recipe.json")  # raises the error of a run that does not exist
    data, epochs = None, None
    if arguments and not arguments[0].startswith("-"):
        recipe, options = read_arguments(arguments, console)
        if options.out or options.overwrite or options.preview or options.resume_or_start:
            raise UserError(f"--resume continues the run in {path}; remove --out, --overwrite, --preview and --resume-or-start")
        if any(argument.partition("=")[0] == "--epochs" for argument in arguments):
            epochs = recipe.epochs
    else:
        recipe, options = read_resume_options(path, arguments)
        data, epochs = options.data, options.epochs
    if data is not None:
        check_source(data)
    with heavy_imports():
        from fullrank.pretraining import pretrain

    run = pretrain(
        recipe,
        data=data,
        epochs=epochs,
        resume=path,
        devices=options.devices,
        trust=options.trust,
        wandb=options.wandb_options,
        console=console,
    )
    finish_run(run.path, console)


def read_resume_options(path: Path, arguments: Sequence[str]) -> tuple[Recipe | None, ResumeOptions]:
    """Parse the flags after --resume RUN, and return the stored recipe with their values, or None if they leave the recipe as it is.

    Raises:
        UserError: a flag cannot be changed when a run is resumed.
    """
    try:
        flags = parse(ResumeOptions, arguments, command="pretrain --resume RUN")
    except UserError as error:
        raise UserError(f"--resume uses the recipe stored in {path}: {error}") from error
    if flags.log_every is flags.keep_checkpoints is flags.workers is flags.micro_batch is None:
        return None, flags
    recipe = read_recipe(path / "recipe.json")
    for section, name in ((None, "log_every"), (None, "keep_checkpoints"), ("data", "workers"), ("machine", "micro_batch")):
        if (value := getattr(flags, name)) is not None:
            change = {name: value} if section is None else {section: replace(getattr(recipe, section), **{name: value})}
            recipe = replace(recipe, **change)
    return recipe, flags


def finish_run(path: Path, console: "Console") -> None:
    """Write the report of a finished run and print the next command, in the first process only."""
    from fullrank.distributed import rank
    from fullrank.report import write_report

    if rank():
        return
    write_report([path], path / "report.html")
    console.print(f"run: {path}\nreport: {path / 'report.html'}\nnext: fullrank evaluate {path}")
