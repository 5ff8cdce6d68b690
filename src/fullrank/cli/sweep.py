"""`fullrank sweep`: train a grid of settings and seeds; one table, one figure and one report.

usage: fullrank sweep RECIPE | SOURCE [flags of fullrank pretrain, each with one or several values] [options]

Train every combination of the flags' values with every seed, evaluate each network, and write one table, one figure
and one report. The same command goes on where it was stopped. A failed run does not end the others; the next call
tries it again.

  fullrank sweep digits --objective frossl vicreg --seeds 3            six runs, compared over their seeds
  fullrank sweep digits --optimizer.lr 1e-3 3e-3 --projector.widths 512,64 1024,64
                                                                       a value of several numbers is joined by commas
  fullrank sweep digits --objective frossl vicreg --optimizer.lr 1e-3 3e-3 --choose optimizer.lr --seeds 3
                                                                       the rate is chosen on held-out training images
  fullrank sweep digits --objective my_module:my_loss frossl --data photos   your own function, your own images
  fullrank sweep cifar10 --objective frossl vicreg --cluster slurm --partition gpu --hours 8     as jobs of SLURM
"""

import json
import re
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from fullrank.cli.flags import flag_words, parse
from fullrank.cli.main import usage
from fullrank.config import config
from fullrank.errors import UserError
from fullrank.images.reading import USUAL
from fullrank.recipes import Recipe, to_dict
from fullrank.recipes.recipe import flatten
from fullrank.recipes.rules import plain_fields
from fullrank.run.terminal import stderr
from fullrank.sweep import EvaluationPlan, Jobs, list_cells, require_success, sweep
from fullrank.sweep.sweeping import sweep_plan
from fullrank.sweep.table import MAX_WIDTH


@config
class SweepOptions:
    """The options of a sweep that are not part of a recipe.

    Attributes:
        seeds: The number of seeds (3: seeds 0, 1, 2), or several seeds (0 5 7).
        out: Folder of the sweep, with a run directory for each cell. The default is sweeps/RECIPE.
        choose: A flag with several values, such as optimizer.lr. Its value is chosen for each combination of the
            others: each value is trained with one more seed and without a tenth of the training images, and scored on
            these.
        trust: Import the code that a recipe.json names. Read the code first: it runs with all your rights.
        list: Print the cells, each with its state and the command that runs it, and run nothing.
        cell: Run one cell in this process: its number, counted from 0, or its name. A later command without --cell
            collects the results.
    """

    seeds: tuple[int, ...] = (1,)
    out: Path | None = None
    choose: str | None = None
    trust: bool = False
    evaluate: Annotated[EvaluationPlan, tyro.conf.arg(name="")] = EvaluationPlan()
    jobs: Annotated[Jobs, tyro.conf.arg(name="")] = Jobs()
    list: bool = False
    cell: str | None = None


OWN = {*SweepOptions.__dataclass_fields__, *EvaluationPlan.__dataclass_fields__, *Jobs.__dataclass_fields__}
OWN |= {f"no_{name}" for name in OWN}
# Field of a recipe → its default.
DEFAULTS = flatten(to_dict(Recipe()))
# Fields that are None or a text.
TEXTS = {f"data.reading.{name}" for name, value in vars(USUAL).items() if value is None}


def run(arguments: Sequence[str]) -> None:
    """Parse and run, or list the cells, or run one cell."""
    if not arguments or {"-h", "--help"} & set(arguments):
        print(usage(__doc__), end="\n\n")
        parse(SweepOptions, ["--help"], command="sweep RECIPE")
        return
    recipe, flags = arguments[0], read_values(arguments[1:])
    own = [word for name, words in flags.items() if name in OWN for word in (f"--{name}", *words)]
    options = parse(SweepOptions, own, command="sweep")
    plain = {name: [value_of(name, word) for word in words] for name, words in flags.items() if name not in OWN}
    grid = {name: values for name, values in plain.items() if len(values) > 1}
    changes = {name: values[0] for name, values in plain.items() if len(values) == 1}
    probes = () if options.evaluate.probes == ("none",) else options.evaluate.probes
    console = stderr()
    seeds = options.seeds[0] if len(options.seeds) == 1 else options.seeds
    given = {"seeds": seeds, "choose": options.choose, "evaluate": replace(options.evaluate, probes=probes)}
    code = [word for words in flags.values() for word in words if ":" in word]
    given |= {"out": options.out, "trust": options.trust or code, "console": console}
    kept = [word for flag, words in flags.items() if flag not in ("list", "cell") for word in (f"--{flag}", *words)]
    command = shlex.join(["fullrank", "sweep", recipe, *kept])
    if options.list:
        list_cells(*sweep_plan(recipe, grid, changes, **given), command)
        return
    jobs = options.jobs if options.cell is None else replace(options.jobs, cluster="debug")
    result = sweep(recipe, grid, jobs=jobs, only=options.cell, **given, **changes)
    if options.cell is None:
        Console(width=None if sys.stdout.isatty() else MAX_WIDTH).print(result)
    tried = command if options.cell is None else f"{command} --cell {shlex.quote(options.cell)}"
    require_success(result.rows, tried)


def read_values(arguments: Sequence[str]) -> dict[str, list[str]]:
    """Return the names of flags with the words after them.

    Raises:
        UserError: a flag is given twice, or a value follows no flag.

    >>> read_values(["--objective", "frossl", "vicreg", "--optimizer.lr=-1e-3"])
    {'objective': ['frossl', 'vicreg'], 'optimizer.lr': ['-1e-3']}
    """
    if arguments and not arguments[0].startswith("--"):
        raise UserError(f"'{arguments[0]}' follows no flag; for example: fullrank sweep digits --epochs 5 10")
    found: dict[str, list[str]] = {}
    for flag, words in flag_words(arguments):
        if flag == "seed" or flag in found:
            raise UserError(f"--{flag}: give --seeds, and all values of a flag after one --{flag}")
        found[flag] = words
    for name in [name for name, words in found.items() if not words and name not in OWN]:  # --hyper.no-log
        on = re.sub(r"(^|\.)no_", r"\1", name)
        found[on] = [str(on == name)] if on == name else found.pop(name) or ["False"]
    return found


def value_of(name: str, text: str) -> Any:
    """Return a value of a field of the recipe: a number, a truth value, a list of numbers, a JSON object, or text.

    >>> [value_of("x", text) for text in ("1e-3", "True", "512,64", "frossl")], value_of("projector.widths", "64")
    ([0.001, True, [512, 64], 'frossl'], [64])
    >>> value_of("data.train", "0")
    '0'
    """
    field = next(iter(plain_fields({name: text})))
    usual = DEFAULTS.get(field)
    if isinstance(usual, str) or field in TEXTS:
        return text
    value: Any = text
    for form in (f"[{text}]" if "," in text else text, text.lower(), text):  # the last one that is JSON
        with suppress(ValueError):
            value = json.loads(form)
    return [value] if isinstance(usual, list) and not isinstance(value, list) else value
