"""`fullrank check`: what every objective promises, looked at in an objective of your own."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fullrank.atomic import atomic_write
from fullrank.cli.flags import call, parse
from fullrank.conformance import Report, check
from fullrank.errors import UserError
from fullrank.objectives import Objective
from fullrank.recipes import keywords, resolve_objective
from fullrank.report.conformance import SIGNS, render, summary
from fullrank.terminal import stderr

STYLES = {"passed": "green", "failed": "bold red", "noted": "dim"}


@dataclass(frozen=True)
class Options:
    """How far to look, and where to write."""

    processes: int = 4
    """The most processes to compare with one: 1, 2, 4, … up to it."""
    out: Path | None = None
    """Write one HTML page, with figures."""
    overwrite: bool = False
    """Replace the page."""


def run(arguments: Sequence[str]) -> None:
    """Parse, examine and print; SystemExit(1) where a check failed."""
    if not arguments or arguments[0].startswith("-"):
        call(explain, arguments, verb="check")
        return
    name, *rest = arguments
    objective = resolve_objective(name)
    options, numbers = parse_flags(name, objective, rest)
    if options.processes < 1:
        raise UserError(f"--processes {options.processes} is no number of processes; expected 1 or more")
    with atomic_write(options.out, overwrite=options.overwrite) if options.out else nullcontext() as draft:
        with stderr().status("") as status:
            report = check(objective, name=name, numbers=numbers, processes=sizes(options.processes), progress=status.update)
        if draft:
            draft.write_text(render(report), encoding="utf-8")
    show(report, Console())
    if options.out:
        print(f"page: {options.out}")
    if not report.passed:
        raise SystemExit(1)


def explain(
    objective: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="OBJECTIVE")],
    /,
    *,
    options: Annotated[Options, tyro.conf.arg(name="")] = Options(),
) -> None:
    """Examine an objective, your own or one of the library, in less than a minute.

    Value and gradient on 1, 2 and 4 processes, gradcheck, collapse, precision, one graph, invariances, cost, and the spectrum that it
    reaches on free embeddings beside FroSSL's.

    Exit status 0: the contract is kept; 1: a check failed; 2: there is nothing that could be examined. The objective's own numbers are
    flags: --hyper.NAME.

    Args:
        objective: package.module:function, or the name of one of the library.
        options: how far to look, and where to write.
    """
    raise UserError(f"the objective stands first: fullrank check {objective} …")


def parse_flags(name: str, objective: Objective, arguments: Sequence[str]) -> tuple[Options, dict[str, Any]]:
    """Parse the options, and the flags of the objective's numbers."""
    numbers: Any = keywords(objective)

    @dataclass(frozen=True)
    class Flags:
        options: Annotated[Options, tyro.conf.arg(name="")]
        hyper: numbers  # pyright: ignore[reportInvalidTypeForm]
        """Numbers of the objective: its docstring explains them."""

    flags = parse(Flags, arguments, verb=f"check {name}", default=Flags(Options(), numbers()), description=f"Examine {name}.")
    return flags.options, vars(flags.hyper)


def sizes(most: int) -> tuple[int, ...]:
    """Return 1, 2, 4, … up to `most`, and `most`.

    >>> sizes(4), sizes(6)
    ((1, 2, 4), (1, 2, 4, 6))
    """
    return tuple(sorted({most, *(2**k for k in range(most.bit_length()))}))


def show(report: Report, console: Console) -> None:
    """Print the findings, a line each, and what to do about those that failed."""
    table = Table(box=None, show_header=False, padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(max_width=30)
    table.add_column()
    for finding in report.findings:
        said = Text(finding.measured)
        if finding.verdict == "failed":
            said.append(
                f"\nexpected: {finding.expected}\nremedy: {finding.remedy}" if finding.remedy else f"\nexpected: {finding.expected}"
            )
        style = STYLES[finding.verdict]
        table.add_row(Text(f"{SIGNS[finding.verdict]} {finding.verdict}", style=style), Text(finding.name), said)
    console.print(table)
    console.print(Text(summary(report)))
