"""`fullrank pretrain`: parse first the recipe and the objective, then the flags that they define; train and write the report."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from textwrap import fill
from typing import Annotated, Any

import tyro
from rich.console import Console

from fullrank.cli.flags import parse
from fullrank.errors import UserError, suggest
from fullrank.objectives import OBJECTIVES
from fullrank.recipes import RECIPES, Recipe, keywords, photos_recipe, read_recipe, resolve_builder, resolve_objective, with_objective
from fullrank.terminal import stderr

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


@dataclass(frozen=True)
class Options:
    """The options of a run that are not part of its recipe."""

    data: str | None = None
    """Short for --data.source: the source of the images."""
    split: str | None = None
    """Short for --data.train: the name of the split to train on."""
    out: Path | None = None
    """Run directory, or with --preview the PNG file. The default is the next free runs/NAME, or views.png."""
    overwrite: bool = False
    """Replace the run or the file in --out."""
    devices: int | None = None
    """Short for --machine.devices: the number of processes, one per device. Batch size and steps do not change."""
    preview: bool = False
    """Write a picture of images and their views, and do not train."""
    wandb: bool = False
    """Log to Weights & Biases too."""
    resume_or_start: bool = False
    """Continue the run in --out if there is one, which must have the same recipe; else start. For jobs that are queued again."""


@dataclass(frozen=True)
class ResumeOptions:
    """The options of a resumed run, which otherwise uses its stored recipe."""

    data: str | None = None
    """Source of the images, if they have moved."""
    epochs: int | None = None
    """Another number of epochs. The learning rate follows the schedule of that number from there on."""
    devices: int | None = None
    """The number of processes, one per device."""
    wandb: bool = False
    """Log to Weights & Biases too."""
    log_every: int | None = None
    """Steps between two lines of metrics.jsonl."""
    keep_checkpoints: int | None = None
    """Number of checkpoints that remain, the newest ones. -1: all."""
    workers: Annotated[int | None, tyro.conf.arg(name="data.workers")] = None
    """Number of processes that decode images."""
    micro_batch: Annotated[int | None, tyro.conf.arg(name="machine.micro_batch")] = None
    """Images per forward pass on a device."""


def run(arguments: Sequence[str]) -> None:
    """Parse and pretrain."""
    if not arguments or arguments[0] in ("-h", "--help"):
        objectives = fill(", ".join(OBJECTIVES), width=100, initial_indent=" " * 12, subsequent_indent=" " * 12).strip()
        print(USAGE.format(recipes=", ".join(RECIPES), objectives=objectives), end="")
        return
    console = stderr()
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


def read_arguments(arguments: Sequence[str], console: Console) -> tuple[Recipe, Options]:
    """Parse a command line that begins with a recipe or a source."""
    data, _ = pop_flag(arguments, "--data")
    split, _ = pop_flag(arguments, "--split")
    train, _ = pop_flag(arguments, "--data.train")
    recipe, choices = resolve_recipe(arguments[0], data=data, train=split or train)
    recipe, options = parse_flags(recipe, arguments[1:])
    if choices:
        console.print("\n  ".join(["A general recipe for these images; the flags in brackets change the recipe:", *choices]))
    return recipe, options


def pop_flag(arguments: Sequence[str], flag: str) -> tuple[str | None, Sequence[str]]:
    """Return the value of a flag, given as `--flag value` or `--flag=value`, and the other arguments.

    Raises:
        UserError: the flag has no value or is misspelt.

    >>> pop_flag(["digits", "--objective", "vicreg", "--epochs", "3"], "--objective")
    ('vicreg', ['digits', '--epochs', '3'])
    """
    for i, argument in enumerate(arguments):
        if argument == flag:
            if i + 1 == len(arguments) or arguments[i + 1].startswith("--"):
                raise UserError(f"{flag} has no value; see fullrank pretrain --help")
            return arguments[i + 1], [*arguments[:i], *arguments[i + 2 :]]
        if argument.startswith(flag + "="):
            return argument.removeprefix(flag + "="), [*arguments[:i], *arguments[i + 1 :]]
        if get_close_matches(argument.partition("=")[0], [flag], cutoff=0.85):
            raise UserError(f"unrecognized options: {argument}; did you mean {flag}?")
    return None, arguments


def resolve_recipe(name: str, *, data: str | None = None, train: str | None = None) -> tuple[Recipe, list[str]]:
    """Return the named recipe, the recipe of a JSON file, or a general recipe for a source, with lines that explain its choices.

    Args:
        name: a recipe, a JSON file or a source; "photos" means the general recipe for `data`.
        data: the value of --data.
        train: name of the split to train on.

    Raises:
        UserError: `name` is neither a recipe nor a source.
    """
    if name in RECIPES:
        return RECIPES[name], []
    if name == "photos" and data is not None:
        name = data
    if name.endswith(".json") and Path(name).is_file():
        return read_recipe(Path(name)), []
    if not (Path(name).exists() or ":" in name):
        like_a_path = "/" in name or "\\" in name or "." in name
        images = "images in a folder, a Parquet file or hf:OWNER/NAME; for example: fullrank pretrain path/to/photos"
        expected = images if like_a_path else f"a recipe ({', '.join(RECIPES)}), or {images}"
        raise UserError(f"'{name}' is neither a recipe nor a path that exists; expected {expected}{suggest(name, RECIPES)}")
    import torch

    from fullrank.images import dataset_info, train_and_test

    return photos_recipe(name, dataset_info(train_and_test(name, train=train).train), gpu=torch.cuda.is_available())


def parse_flags(recipe: Recipe, arguments: Sequence[str]) -> tuple[Recipe, Options]:
    """Parse the flags of the recipe, its objective, its method, and the run."""
    name, arguments = pop_flag(arguments, "--objective")
    builder, arguments = pop_flag(arguments, "--method-builder")
    if name is not None and name != recipe.objective:
        recipe = with_objective(recipe, name, method_builder=builder or "")
    elif builder is not None:
        recipe = replace(recipe, method_builder=builder, method={})
    objective = resolve_objective(recipe.objective)
    Hyper: Any = keywords(objective)
    MethodOptions: Any = keywords(resolve_builder(recipe.method_builder, recipe.objective, objective))

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
        description=f"Pretrain with {recipe.objective}. --objective NAME chooses another objective, --resume RUN continues a run.",
    )
    recipe = replace(flags.recipe, hyper=vars(flags.hyper), method=vars(flags.method))
    data = replace(recipe.data, source=flags.options.data or recipe.data.source, train=flags.options.split or recipe.data.train)
    return replace(recipe, data=data), flags.options


def start_run(recipe: Recipe, options: Options, console: Console) -> None:
    """Train and write the report, or write the preview."""
    from fullrank.pretraining import pretrain, preview

    if options.preview:
        console.print(f"views: {preview(recipe, out=options.out, overwrite=options.overwrite, console=console)}")
        return
    run = pretrain(
        recipe,
        out=options.out,
        resume_or_start=options.resume_or_start,
        overwrite=options.overwrite,
        devices=options.devices,
        wandb=options.wandb,
        console=console,
    )
    finish_run(run.path, console)


def resume_run(path: Path, arguments: Sequence[str], console: Console) -> None:
    """Continue a run; a recipe passed with --resume must equal the stored one in what decides the weights."""
    from fullrank.pretraining import pretrain

    if arguments and not arguments[0].startswith("-"):
        recipe, options = read_arguments(arguments, console)
        if options.out or options.overwrite or options.preview or options.resume_or_start:
            raise UserError(f"--resume continues the run in {path}; remove --out, --overwrite, --preview and --resume-or-start")
        explicit = any(argument.partition("=")[0] == "--epochs" for argument in arguments)
        data, epochs, devices, wandb = None, recipe.epochs if explicit else None, options.devices, options.wandb
    else:
        recipe, flags = read_resume_options(path, arguments)
        data, epochs, devices, wandb = flags.data, flags.epochs, flags.devices, flags.wandb
    run = pretrain(recipe, data=data, epochs=epochs, resume=path, devices=devices, wandb=wandb, console=console)
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


def finish_run(path: Path, console: Console) -> None:
    """Write the report of a finished run and print the next command, in the first process only."""
    from fullrank.distributed import rank
    from fullrank.report import write_report

    if rank():
        return
    write_report([path], path / "report.html")
    console.print(f"run: {path}\nreport: {path / 'report.html'}\nnext: fullrank evaluate {path}")
