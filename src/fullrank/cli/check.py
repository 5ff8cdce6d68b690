"""`fullrank check`: test whether an objective meets the requirements."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import pydantic
import tyro
from rich.console import Console

from fullrank.cli.flags import call, parse
from fullrank.config import config
from fullrank.errors import UserError
from fullrank.recipes.user_code import find_objective, import_function, keywords
from fullrank.run.terminal import stderr
from fullrank.testing import check


@config
class Options:
    """Options of the check.

    Attributes:
        processes: Largest number of processes; the check compares 1, 2, 4, … processes with each other.
    """

    processes: Annotated[int, pydantic.Field(ge=1, le=64)] = 4


USUAL = Options()


def run(arguments: Sequence[str]) -> None:
    """Parse the arguments, run the checks and print the results; SystemExit(1) if a check failed."""
    if not arguments or arguments[0].startswith("-"):
        call(explain, arguments, command="check")
    name, *rest = arguments
    if ":" in name:
        import_function(name, notify=stderr().print)
    objective = find_objective(name)
    Hyper: Any = keywords(objective)

    @dataclass(frozen=True)
    class Flags:
        """The flags of one test.

        Attributes:
            hyper: Hyperparameters of the objective; its docstring explains them.
        """

        options: Annotated[Options, tyro.conf.arg(name="")]
        hyper: Hyper  # pyright: ignore[reportInvalidTypeForm]

    flags = parse(Flags, rest, command=f"check {name}", default=Flags(USUAL, Hyper()), description=f"Test {name}.")
    largest = flags.options.processes
    processes = sorted({largest, *(2**k for k in range(largest.bit_length()))})
    with stderr().status("") as status:
        report = check(objective, name=name, hyper=vars(flags.hyper), processes=processes, progress=status.update)
    Console().print(report)
    if not report.passed:
        raise SystemExit(1)


def explain(
    objective: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="OBJECTIVE")],
    /,
    *,
    options: Annotated[Options, tyro.conf.arg(name="")] = USUAL,
) -> None:
    """Test an objective, yours or one of the library, in less than a minute.

    The checks are: value and gradient on 1, 2 and 4 processes, gradcheck, collapse, precision, torch.compile,
    invariances, time, and the spectrum of free embeddings compared with FroSSL.

    Exit status 0: all checks passed; 1: a check failed; 2: the objective cannot be tested. The objective's
    hyperparameters are flags: --hyper.NAME.

    Args:
        objective: package.module:function, or the name of an objective of the library.
        options: options of the check.
    """
    raise UserError(f"the first argument must be the objective; for example: fullrank check {objective} …")
