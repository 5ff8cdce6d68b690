"""`fullrank pretrain`. The flags are parsed in two passes: first recipe and objective, then the typed flags of both."""

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
from fullrank.methods import method_builder
from fullrank.objectives import OBJECTIVES
from fullrank.recipes import RECIPES, Recipe, keywords, photos_recipe, read_recipe, resolve_objective, with_objective
from fullrank.terminal import stderr

USAGE = """usage: fullrank pretrain RECIPE | SOURCE [flags]
       fullrank pretrain --resume RUN

Learn a backbone from unlabelled images. RECIPE: {recipes}; or a recipe.json.
SOURCE: a folder or Parquet file of your own images, for which a general recipe is chosen and shown.

  fullrank pretrain digits                                      a minute on two cores, without a download
  fullrank pretrain digits --objective vicreg                   another objective (see below)
  fullrank pretrain digits --objective my_module:my_loss        your own function (see fullrank check)
  fullrank pretrain digits --hyper.invariance 2                 a hyperparameter of the objective
  fullrank pretrain cifar10-small --data path/to/parquet        a recipe on your own copy of the data
  fullrank pretrain cifar10-small --devices 2                   the same run on two processes
  fullrank pretrain path/to/photos --preview                    look at the views first
  fullrank pretrain digits --help                               all flags of a recipe, with their defaults

Objectives: {objectives}
"""


@dataclass(frozen=True)
class Options:
    """The options of a run that are not part of its recipe."""

    data: str | None = None
    """Source of the images, in place of the recipe's own."""
    split: str | None = None
    """Name of the split to train on, in place of the recipe's own."""
    out: Path | None = None
    """Run directory; by default the next free runs/NAME."""
    overwrite: bool = False
    """Replace the run in --out."""
    devices: int | None = None
    """Number of processes, each on its own device, in place of the recipe's own. Batch and steps stay the same."""
    preview: bool = False
    """Write views.png, a grid of images and their views, and stop."""
    wandb: bool = False
    """Log to Weights & Biases too."""


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
        raise UserError(f"expected a recipe or a path first, got {arguments[0]}; such as: fullrank pretrain digits {arguments[0]} …")
    recipe, options = read_arguments(arguments, console)
    start_run(recipe, options, console)


def read_arguments(arguments: Sequence[str], console: Console) -> tuple[Recipe, Options]:
    """Return the recipe and the options of a command line that begins with a recipe or a source."""
    data, _ = pop_flag(arguments, "--data")
    split, _ = pop_flag(arguments, "--split")
    train, _ = pop_flag(arguments, "--data.train")
    recipe, choices = resolve_recipe(arguments[0], data=data, train=split or train)
    recipe, options = parse_flags(recipe, arguments[1:])
    if choices:
        console.print("\n  ".join(["A general recipe for these images; change it with the flags in brackets:", *choices]))
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
                raise UserError(f"{flag} has no value; give one, see fullrank pretrain --help")
            return arguments[i + 1], [*arguments[:i], *arguments[i + 2 :]]
        if argument.startswith(flag + "="):
            return argument.removeprefix(flag + "="), [*arguments[:i], *arguments[i + 1 :]]
        if get_close_matches(argument.partition("=")[0], [flag], cutoff=0.85):
            raise UserError(f"unrecognized options: {argument}; did you mean {flag}?")
    return None, arguments


def resolve_recipe(name: str, *, data: str | None = None, train: str | None = None) -> tuple[Recipe, list[str]]:
    """Return the named recipe, the recipe in a JSON file, or the general recipe for a source of images with an explanation of its choices.

    Args:
        name: a recipe, a JSON file or a source; "photos" is the general recipe for `data`.
        data: the source given by --data.
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
        images = "images in a folder, a Parquet file or hf:OWNER/NAME, such as: fullrank pretrain path/to/photos"
        expected = images if like_a_path else f"a recipe ({', '.join(RECIPES)}), or {images}"
        raise UserError(f"'{name}' is neither a recipe nor a path that exists; expected {expected}{suggest(name, RECIPES)}")
    import torch

    from fullrank.images import dataset_info, train_and_test

    return photos_recipe(name, dataset_info(train_and_test(name, train=train).train), gpu=torch.cuda.is_available())


def parse_flags(recipe: Recipe, arguments: Sequence[str]) -> tuple[Recipe, Options]:
    """Parse the flags of the recipe, of its objective and method, and of the run."""
    name, arguments = pop_flag(arguments, "--objective")
    if name is not None and name != recipe.objective:
        recipe = with_objective(recipe, name)
    objective = resolve_objective(recipe.objective)
    Hyper: Any = keywords(objective)
    MethodOptions: Any = keywords(method_builder(recipe.objective, objective))

    @dataclass(frozen=True)
    class Flags:
        options: Annotated[Options, tyro.conf.arg(name="")]
        recipe: Annotated[Recipe, tyro.conf.arg(name="")]
        hyper: Hyper  # pyright: ignore[reportInvalidTypeForm]
        """Hyperparameters of the objective (--objective NAME chooses another)."""
        method: MethodOptions  # pyright: ignore[reportInvalidTypeForm]
        """Hyperparameters of the method around the objective."""

    default = Flags(Options(), recipe, Hyper(**recipe.hyper), MethodOptions(**recipe.method))
    flags = parse(
        Flags,
        arguments,
        verb=f"pretrain {recipe.name}",
        default=default,
        description=f"Pretrain with {recipe.objective}. --objective NAME chooses another objective, --resume RUN continues a run.",
    )
    recipe = replace(flags.recipe, hyper=vars(flags.hyper), method=vars(flags.method))
    data = replace(recipe.data, source=flags.options.data or recipe.data.source, train=flags.options.split or recipe.data.train)
    return replace(recipe, data=data), flags.options


def start_run(recipe: Recipe, options: Options, console: Console) -> None:
    """Train and write the report, or only draw the views."""
    from fullrank.pretraining import pretrain, preview

    if options.preview:
        console.print(f"views: {preview(recipe, out=options.out, overwrite=options.overwrite, console=console)}")
        return
    run = pretrain(recipe, out=options.out, overwrite=options.overwrite, devices=options.devices, wandb=options.wandb, console=console)
    finish_run(run.path, console)


def resume_run(path: Path, arguments: Sequence[str], console: Console) -> None:
    """Continue a run, on any number of devices; a recipe given with it must be the run's own."""
    from fullrank.pretraining import pretrain

    devices, arguments = pop_flag(arguments, "--devices")
    rest = [argument for argument in arguments if argument != "--wandb"]
    if rest and rest[0].startswith("-"):
        raise UserError(f"--resume {path} continues a run with its own recipe, got {' '.join(rest)}; leave it out, or start a new run")
    recipe, options = read_arguments(rest, console) if rest else (None, Options())
    if replace(options, data=None, split=None) != Options():
        raise UserError(f"--resume {path} continues in that folder; leave out --out, --overwrite and --preview")
    run = pretrain(recipe, resume=path, devices=parse_devices(devices), wandb=len(rest) < len(arguments), console=console)
    finish_run(run.path, console)


def parse_devices(devices: str | None) -> int | None:
    """Return the value of --devices as a number. Raises UserError if it is not one."""
    if devices is not None and not devices.isdecimal():
        raise UserError(f"--devices {devices} is not a number of processes; give one, such as --devices 2")
    return None if devices is None else int(devices)


def finish_run(path: Path, console: Console) -> None:
    """Write the report of a finished run and print the next command, in the first process only."""
    from fullrank.distributed import rank
    from fullrank.report import write_report

    if rank():
        return
    write_report([path], path / "report.html")
    console.print(f"run: {path}\nreport: {path / 'report.html'}\nnext: fullrank evaluate {path}")
