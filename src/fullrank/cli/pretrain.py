"""`fullrank pretrain`: train by the recipe of the command line, or continue a run, and write the report.

usage: fullrank pretrain SOURCE | RECIPE [flags]
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
  --devices N          number of GPUs (or CPU processes), one process per device (DDP); equal up to rounding
  --preview            write a picture of the views, and do not train

All flags with their defaults:  fullrank pretrain digits --help   or   fullrank pretrain path/to/photos --help

Objectives: {objectives}
"""

import re
import shlex
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, make_dataclass, replace
from pathlib import Path
from textwrap import fill
from typing import Annotated, Any, Literal

import tyro

from fullrank.cli.flags import flag_words, parse
from fullrank.cli.main import usage
from fullrank.distributed import rank
from fullrank.errors import UserError
from fullrank.images.source_uri import open_once
from fullrank.models.initial_weights import resolve_with_init
from fullrank.objectives import OBJECTIVES
from fullrank.recipes import RECIPES, Recipe, import_code, import_function, read_recipe, resolve, to_dict
from fullrank.recipes.recipe import balanced_weights, flatten
from fullrank.recipes.resolve import PHOTOS, find_recipe
from fullrank.recipes.rules import plain_fields, with_view_groups
from fullrank.recipes.user_code import find_builder, find_objective, keywords
from fullrank.run import Run
from fullrank.run.pretrain import pretrain
from fullrank.run.preview import preview
from fullrank.run.terminal import stderr


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is not a field of the recipe, or a short name of one.

    Attributes:
        objective: Another objective, with its published recipe if there is one; a sum such as "frossl + 0.5 byol";
            package.module:function is your own function.
        method_builder: Your function package.module:builder, which builds the method around the objective.
        data: Short for --data.source: the source of the images; with --resume, if they have moved.
        split: Short for --data.train: the name of the split to train on.
        init: MODEL whose weights the backbone starts with: timm:NAME, hf-hub:OWNER/NAME, RUN, RUN@STEP or file:PATH.
            The network, its channels and its normalisation are those of the model. timm-untrained:NAME gives the
            network only.
        labelled: Short for --probe.labelled: source of labelled images. A linear probe is trained and scored on them
            during training; no label reaches the backbone.
        hours: Time of training in hours, instead of --epochs: a few steps are measured, and the epochs that fit are
            chosen and printed.
        out: Run directory, or with --preview the PNG file. The default is the next free runs/NAME, or views.png.
        overwrite: Replace the run or the file in --out.
        resume: Continue this run, from its newest checkpoint, bit for bit; what decides the weights cannot be changed.
        resume_or_start: Continue the run in --out if there is one, which must have the same recipe; else start. For
            jobs that are queued again.
        preview: Write a picture of images and their views, and do not train.
        devices: Short for --machine.devices: the number of processes, one per device. Batch size and steps do not
            change.
        trust: Import the code that a recipe.json or the run of --resume names. Read the code first: it runs with all
            your rights.
        wandb: Log to Weights & Biases too.
        wandb_project: Log to this project of Weights & Biases; the default is fullrank.
        wandb_name: Name of the run at Weights & Biases; the default is the name of the run directory.
    """

    objective: str | None = None
    method_builder: str | None = None
    data: str | None = None
    split: str | None = None
    init: str | None = None
    labelled: str | None = None
    hours: Annotated[float | None, tyro.conf.arg(metavar="HOURS")] = None
    out: Path | None = None
    overwrite: bool = False
    resume: Path | None = None
    resume_or_start: bool = False
    preview: bool = False
    devices: int | None = None
    trust: bool = False
    wandb: bool = False
    wandb_project: str | None = None
    wandb_name: str | None = None


# The options that are fields of the recipe.
FIELDS = ("data", "split", "init", "labelled", "devices")


@open_once()
def run(arguments: Sequence[str]) -> None:
    """Parse, train or write the preview, and report."""
    if not arguments or arguments[0] in ("-h", "--help"):
        objectives = fill(", ".join(OBJECTIVES), width=100, initial_indent=" " * 12, subsequent_indent=" " * 12)
        print(usage(__doc__).format(count=len(RECIPES), objectives=objectives.strip()))
        return
    console = stderr()
    recipe, options, overrides = read_flags(arguments, console.print)
    if options.preview:
        recipe = resolve_with_init(recipe, overrides, console.print)
        path = preview(recipe, options.out, overwrite=options.overwrite, console=console)
        console.print(f"views: {path}")
        return
    wandb = {name: value for name in ("project", "name") if (value := getattr(options, f"wandb_{name}"))}
    given: dict[str, Any] = {"hours": options.hours, "out": options.out, "overwrite": options.overwrite}
    given |= {"resume": options.resume or options.resume_or_start, "wandb": wandb or options.wandb}
    done = pretrain(recipe, console=console, **given, **overrides)
    if not rank():
        finish(done, console.print)


def read_flags(arguments: Sequence[str], notify: Callable[[str], Any]) -> tuple[str | Recipe, Options, dict[str, Any]]:
    """Parse a command line that begins with a recipe or a source, or has --resume RUN.

    Returns:
        The words for the recipe, or with --resume alone the recipe of the run; the options; and the value of each field
        of the recipe for which there is a flag.

    Raises:
        UserError: a flag or value is wrong, or there is no such recipe.
    """
    source, words = arguments[0], {name: "".join(values[:1]) for name, values in flag_words(arguments)}
    if source.startswith("-") and "resume" not in words:
        expected = f"for example: fullrank pretrain digits {source} …"
        raise UserError(f"the first argument must be a recipe or a path, got {source}; {expected}")
    if source.startswith("-"):
        source = base = read_recipe(Path(words["resume"]) / "recipe.json")
    else:
        arguments = arguments[1:]
        source = words["data"] if source == PHOTOS and "data" in words else source
        base = find_recipe(source)
    chosen = {name: words[name] for name in ("objective", "method_builder") if name in words}
    for name in chosen.values():
        if ":" in name:
            import_function(name, notify=notify)
    if base is None and {"--help", "-h"} & {*arguments}:
        base = resolve(source, chosen, notify=notify)
    # has the flags of this objective, and of each group of views
    shape = with_view_groups(resolve(base or Recipe(), chosen), words)
    trust = words.get("trust", "false").lower() != "false"  # `with_switches` allows `--trust false`
    shape = import_code(shape if trust else replace(shape, custom_transforms=()), trust, notify)
    Hyper: Any = keywords(find_objective(shape.objective))
    weights: Any = [(name, float | Literal["balanced"], shape.hyper[name]) for name in balanced_weights(shape)]
    Hyper = make_dataclass(Hyper.__name__, weights, bases=(Hyper,), frozen=True, kw_only=True)
    MethodOptions: Any = keywords(find_builder(shape.method_builder, shape.objective))

    @dataclass(frozen=True)
    class Flags:
        """The flags of one run.

        Attributes:
            hyper: Hyperparameters of the objective (--objective NAME chooses another objective).
            method: Hyperparameters of the method around the objective (--method-builder package.module:builder chooses
                another method).
        """

        options: Annotated[Options, tyro.conf.arg(name="")]
        recipe: Annotated[Recipe, tyro.conf.arg(name="")]
        hyper: Hyper  # pyright: ignore[reportInvalidTypeForm]
        method: MethodOptions  # pyright: ignore[reportInvalidTypeForm]

    leaves = flatten(to_dict(shape)) | vars(Options())
    switches = {name.rpartition(".")[2] for name, value in leaves.items() if isinstance(value, bool)}
    flags = parse(
        Flags,
        with_switches(arguments, switches),
        command=shlex.join(["pretrain", *([source] if isinstance(source, str) else [])]),
        default=Flags(Options(), shape, Hyper(**shape.hyper), MethodOptions(**shape.method)),
        description=f"Pretrain with {shape.objective}. --objective NAME chooses another one, --resume RUN goes on.",
    )
    given = plain_fields({re.sub(r"(^|\.)no_", r"\1", word): None for word in words})
    overrides = {name: field_at(flags, name) for name in given if not hasattr(Options, name)}
    for name in overrides.get("custom_transforms", ()):
        import_function(name, notify=notify)
    overrides |= {name: getattr(flags.options, name) for name in FIELDS if name in words}
    return source, flags.options, chosen | overrides


def with_switches(arguments: Sequence[str], switches: Collection[str]) -> list[str]:
    """Return the arguments with `--hyper.log false`, as a sweep takes it, written as `--hyper.no-log`; `switches` are
    the last names of the fields that are true or false.

    >>> with_switches(["--hyper.log", "false", "--split=true", "--data.follow-links=true"], {"log", "follow_links"})
    ['--hyper.no-log', '--split', 'true', '--data.follow-links']
    """
    words = [word for each in arguments for word in re.split(r"(?i)(?<=\w)=(?=(?:true|false)$)", each)]
    for k in range(len(words) - 1, 0, -1):
        flag, is_text = words[k - 1], words[k].lower() not in ("true", "false")
        if not is_text and flag.startswith("--") and re.split(r"--|\.", flag)[-1].replace("-", "_") in switches:
            words[k - 1 : k + 1] = [re.sub(r"([^.-][^.]*)$", r"no-\1", flag) if words[k].lower() == "false" else flag]
    return words


def field_at(flags: Any, name: str) -> Any:
    """Return the value of a field of the recipe, by its dotted name."""
    part: Any = flags if name.startswith(("hyper.", "method.")) else flags.recipe
    for key in name.split("."):
        part = part[int(key)] if isinstance(part, tuple) else getattr(part, key)
    return part


def finish(run: Run, notify: Callable[[str], Any]) -> None:
    """Write the report of a finished run, and say what to do next."""
    from fullrank.report import write_report  # here, because it imports scikit-learn and scipy.stats: two seconds

    report = run.path / "report.html"
    write_report([run.path], report)
    labelled, rows = run.recipe.probe.labelled, run.metrics.spectrum
    if not labelled and rows and rows[-1].probe_accuracy is None:
        labelled = "SOURCE"  # the images of the run have no labels
    command = shlex.join(["fullrank", "evaluate", str(run.path), *(["--labelled", labelled] if labelled else [])])
    notify(f"run: {run.path}\nreport: {report}\nnext: {command}")
