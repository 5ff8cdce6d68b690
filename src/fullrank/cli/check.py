"""`fullrank check`: test whether an objective meets the requirements."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from fullrank.cli.flags import call, parse
from fullrank.cli.heavy import heavy_imports
from fullrank.errors import UserError
from fullrank.recipes import import_function, keywords, objective_signature, resolve_objective
from fullrank.terminal import stderr

if TYPE_CHECKING:
    from rich.console import Console

    from fullrank.testing import ConformanceReport

STYLES = {"passed": "green", "failed": "bold red", "info": "dim"}


@dataclass(frozen=True)
class Options:
    """Options of the check."""

    processes: int = 4
    """Largest number of processes; the check compares 1, 2, 4, … processes with each other."""


def run(arguments: Sequence[str]) -> None:
    """Parse the arguments, run the checks and print the results; SystemExit(1) if a check failed."""
    if not arguments or arguments[0].startswith("-"):
        call(explain, arguments, command="check")
        return
    name, *rest = arguments
    if ":" in name:
        import_function(name, notify=stderr().print)
    options, hyperparameters = parse_flags(name, rest)
    if options.processes < 1:
        raise UserError(f"--processes is {options.processes}, expected 1 or more")
    with heavy_imports():
        from rich.console import Console

        from fullrank.testing import check

    objective = resolve_objective(name)
    with stderr().status("") as status:
        report = check(
            objective,
            name=name,
            hyper=hyperparameters,
            processes=process_counts(options.processes),
            progress=status.update,
        )
    print_results(report, Console())
    if not report.passed:
        raise SystemExit(1)


def explain(
    objective: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="OBJECTIVE")],
    /,
    *,
    options: Annotated[Options, tyro.conf.arg(name="")] = Options(),
) -> None:
    """Test an objective, yours or one of the library, in less than a minute.

    The checks are: value and gradient on 1, 2 and 4 processes, gradcheck, collapse, precision, torch.compile,
    invariances, cost, and the spectrum of free embeddings compared with FroSSL.

    Exit status 0: all checks passed; 1: a check failed; 2: the objective cannot be tested. The objective's
    hyperparameters are flags: --hyper.NAME.

    Args:
        objective: package.module:function, or the name of an objective of the library.
        options: options of the check.
    """
    raise UserError(f"the first argument must be the objective; for example: fullrank check {objective} …")


def parse_flags(name: str, arguments: Sequence[str]) -> tuple[Options, dict[str, Any]]:
    """Parse the options, and the flags of the objective's hyperparameters."""
    Hyper: Any = keywords(objective_signature(name))

    @dataclass(frozen=True)
    class Flags:
        options: Annotated[Options, tyro.conf.arg(name="")]
        hyper: Hyper  # pyright: ignore[reportInvalidTypeForm]
        """Hyperparameters of the objective; its docstring explains them."""

    flags = parse(
        Flags, arguments, command=f"check {name}", default=Flags(Options(), Hyper()), description=f"Test {name}."
    )
    return flags.options, vars(flags.hyper)


def process_counts(largest: int) -> tuple[int, ...]:
    """Return 1, 2, 4, … up to `largest`, and `largest`.

    >>> process_counts(4), process_counts(6)
    ((1, 2, 4), (1, 2, 4, 6))
    """
    return tuple(sorted({largest, *(2**k for k in range(largest.bit_length()))}))


def print_results(report: "ConformanceReport", console: "Console") -> None:
    """Print one line for each result, and the remedy for a failed check."""
    from rich.table import Table
    from rich.text import Text

    from fullrank.report.conformance import SIGNS, summary

    table = Table(box=None, show_header=False, padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(max_width=30)
    table.add_column()
    for result in report.results:
        text = Text(result.measured)
        if result.status == "failed":
            text.append(f"\nexpected: {result.expected}" + (f"\nremedy: {result.remedy}" if result.remedy else ""))
        table.add_row(
            Text(f"{SIGNS[result.status]} {result.status}", style=STYLES[result.status]), Text(result.name), text
        )
    console.print(table)
    console.print(Text(summary(report)))
