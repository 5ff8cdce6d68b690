"""`fullrank pretrain`: train by the recipe of the command line, or continue a run, and write the report."""

import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from fullrank.arguments import check_source
from fullrank.cli.flags import check_arguments, parse
from fullrank.cli.heavy import heavy_imports
from fullrank.cli.pretrain_options import Options, ResumeOptions
from fullrank.cli.pretrain_recipe import pop_flag, read_arguments
from fullrank.errors import UserError
from fullrank.recipes import RECIPES, Recipe, read_recipe
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
  fullrank pretrain cifar10 --objective byol                    use the published recipe of the objective (see fullrank recipes)
  fullrank pretrain digits --hyper.invariance 2                 set a hyperparameter of the objective
  fullrank pretrain digits --views.1.size 6 --views.1.count 4   add smaller crops to the views
  fullrank pretrain cifar10-small --data path/to/parquet        use your copy of the data
  fullrank pretrain cifar10-small --devices 2                   use two processes; the result is the same
  fullrank pretrain path/to/photos --init timm:resnet18         start with given weights: timm's, a run's, a file's
  fullrank pretrain path/to/photos --labelled path/to/labels    score a linear probe on your labels during training
  fullrank pretrain path/to/photos --preview                    look at the views first
  fullrank pretrain digits --help                               show all flags of a recipe with their defaults

Objectives: {objectives}
"""


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
    if options.hours is not None and any(argument.partition("=")[0] == "--epochs" for argument in arguments):
        raise UserError("--hours chooses the epochs, and cannot be combined with --epochs; leave one of them out")
    start_run(recipe, options, console)


def start_run(recipe: Recipe, options: Options, console: "Console") -> None:
    """Train and write the report, or write the preview."""
    check_source(recipe.data.source)
    if recipe.probe.labelled:
        check_source(recipe.probe.labelled)
    with heavy_imports():
        from fullrank.pretraining import pretrain, preview

    if options.preview:
        console.print(f"views: {preview(recipe, out=options.out, overwrite=options.overwrite, trust=options.trust, console=console)}")
        return
    run = pretrain(
        recipe,
        out=options.out,
        hours=options.hours,
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
    data = labelled = epochs = None
    if arguments and not arguments[0].startswith("-"):
        recipe, options = read_arguments(arguments, console)
        if options.out or options.overwrite or options.preview or options.resume_or_start or options.hours:
            raise UserError(f"--resume continues the run in {path}; remove --out, --overwrite, --preview, --resume-or-start and --hours")
        if any(argument.partition("=")[0] == "--epochs" for argument in arguments):
            epochs = recipe.epochs
    else:
        recipe, options = read_resume_options(path, arguments)
        data, labelled, epochs = options.data, options.labelled, options.epochs
    for source in (data, options.labelled):
        if source is not None:
            check_source(source)
    with heavy_imports():
        from fullrank.pretraining import pretrain

    run = pretrain(
        recipe,
        data=data,
        labelled=labelled,
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
    for section, name in (
        (None, "log_every"),
        (None, "keep_checkpoints"),
        ("data", "workers"),
        ("machine", "micro_batch"),
    ):
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
    labelled = read_recipe(path / "recipe.json").probe.labelled
    command = shlex.join(["fullrank", "evaluate", str(path), *(["--labelled", labelled] if labelled else [])])
    console.print(f"run: {path}\nreport: {path / 'report.html'}\nnext: {command}", soft_wrap=True)
