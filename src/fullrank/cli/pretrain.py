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

USAGE = """usage: fullrank pretrain SOURCE | RECIPE [flags]
       fullrank pretrain --resume RUN [--epochs N] [--data SOURCE]

Pretrain a backbone on unlabelled images.
SOURCE: a folder of images, a table (Parquet, CSV) or hf:NAME; the command chooses and shows a general recipe.
RECIPE: one of the {count} recipes that `fullrank recipes` lists, such as digits or cifar10; or a recipe.json.

  fullrank pretrain path/to/photos                              a general recipe for your images
  fullrank pretrain digits                                      takes a minute on two cores, without a download

The flags that most runs need:
  --out FOLDER         run directory; by default the next free runs/NAME
  --epochs N           number of epochs, or --hours H: the epochs that fit into a time
  --batch-size N       images per step
  --init MODEL         start with given weights: timm:NAME, hf-hub:OWNER/NAME, RUN or file:PATH
  --labelled SOURCE    score a linear probe on your labels during training; no label reaches the backbone
  --backbone.name NAME a network of timm; --views.0.size PX: size of the views; --optimizer.lr LR: learning rate
  --objective NAME     another objective (below), or my_module:my_loss, your own function (see fullrank check)
  --hyper.NAME VALUE   a hyperparameter of the objective
  --devices N          number of processes, one a device; the result is the same
  --preview            write a picture of the views, and do not train

All flags with their defaults:  fullrank pretrain digits --help   or   fullrank pretrain path/to/photos --help

Objectives: {objectives}
"""


def run(arguments: Sequence[str]) -> None:
    """Parse and pretrain."""
    if not arguments or arguments[0] in ("-h", "--help"):
        objectives = fill(
            ", ".join(objective_names()), width=100, initial_indent=" " * 12, subsequent_indent=" " * 12
        ).strip()
        print(USAGE.format(count=len(RECIPES), objectives=objectives), end="")
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
        from fullrank.run.pretrain import pretrain, preview

    if options.preview:
        console.print(
            f"views: {preview(recipe, out=options.out, overwrite=options.overwrite, trust=options.trust, console=console)}"
        )
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
            raise UserError(
                f"--resume continues the run in {path}; remove --out, --overwrite, --preview, --resume-or-start and --hours"
            )
        if any(argument.partition("=")[0] == "--epochs" for argument in arguments):
            epochs = recipe.epochs
    else:
        recipe, options = read_resume_options(path, arguments)
        data, labelled, epochs = options.data, options.labelled, options.epochs
    for source in (data, options.labelled):
        if source is not None:
            check_source(source)
    with heavy_imports():
        from fullrank.run.pretrain import pretrain

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
    """Parse the flags after --resume RUN, and return the stored recipe with their values, or None if they leave the
    recipe as it is.

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
    from fullrank.run import Run

    if rank():
        return
    write_report([path], path / "report.html")
    labelled = read_recipe(path / "recipe.json").probe.labelled
    rows = Run(path).metrics.spectrum
    if not labelled and rows and rows[-1].probe_accuracy is None:
        labelled = "SOURCE"  # the images of the run have no labels
    command = shlex.join(["fullrank", "evaluate", str(path), *(["--labelled", labelled] if labelled else [])])
    console.print(f"run: {path}\nreport: {path / 'report.html'}\nnext: {command}", soft_wrap=True)
