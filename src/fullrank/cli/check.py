"""`fullrank check`: test whether an objective meets the requirements.

usage: fullrank check OBJECTIVE [--processes N] [--hyper.NAME VALUE ...]

Test an objective, yours or one of the library, in less than a minute.
OBJECTIVE: package.module:function, or the name of an objective of the library

The checks are: value and gradient on 1, 2 and 4 processes, gradcheck, collapse, precision, torch.compile, invariances,
time, and the spectrum of free embeddings compared with FroSSL.

Exit status 0: all checks passed; 1: a check failed; 2: the objective cannot be tested.

All flags, with the hyperparameters of an objective:  fullrank check OBJECTIVE --help
"""

from collections.abc import Sequence
from typing import Annotated, Any

import pydantic
from rich.console import Console

from fullrank.cli.flags import parse
from fullrank.cli.main import usage
from fullrank.config import config
from fullrank.errors import UserError
from fullrank.recipes.user_code import find_objective, import_function, keywords
from fullrank.run.terminal import stderr
from fullrank.testing import check


def run(arguments: Sequence[str]) -> None:
    """Parse the arguments, run the checks and print the results; SystemExit(1) if a check failed."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage(__doc__))
        return
    name, *rest = arguments
    if name.startswith("-"):
        raise UserError(f"the first argument must be the objective, got {name}; for example: fullrank check frossl …")
    if ":" in name:
        import_function(name, notify=stderr().print)
    objective = find_objective(name)
    Hyper: Any = keywords(objective)

    @config
    class Flags:
        """The flags of one test.

        Attributes:
            processes: Largest number of processes; the check compares 1, 2, 4, … processes with each other.
            hyper: Hyperparameters of the objective; its docstring explains them.
        """

        processes: Annotated[int, pydantic.Field(ge=1, le=64)] = 4
        hyper: Hyper = Hyper()  # pyright: ignore[reportInvalidTypeForm]

    flags = parse(Flags, rest, command=f"check {name}", description=f"Test {name}.")
    processes = sorted({flags.processes, *(2**k for k in range(flags.processes.bit_length()))})
    with stderr().status("") as status:
        report = check(objective, name=name, hyper=vars(flags.hyper), processes=processes, progress=status.update)
    Console().print(report)
    if not report.passed:
        raise SystemExit(1)
