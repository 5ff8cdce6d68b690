"""The results of the checks of an objective: passed, failed with a remedy, or a measured property."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from rich.table import Table
from rich.text import Text

from fullrank.errors import exception_line
from fullrank.objectives.terms import RETURN_FORM, TAKE_A_GENERATOR

ON_DEVICE = "use torch.where instead of if, and no .item(), float(), bool() or print of a tensor"
# The requirement → what is expected, and the remedy; a name begins or ends with its requirement.
REQUIREMENTS = {
    "terms": ("no exception", "find what the function assumes about its tensors, and remove the assumption"),
    "returns terms": ("scalars by name", RETURN_FORM),
    "finite": ("a finite loss on normal embeddings", "look for a division by zero, or a log or root of a negative"),
    "keeps the precision": ("float64 for float64", "create new tensors like the embeddings: Z.new_zeros(…)"),
    "differentiable": ("a gradient", "remove detach, no_grad, item, and numpy between the embeddings and the loss"),
    "pure": (
        "a function only of its tensors",
        f"take state as an argument, {TAKE_A_GENERATOR}, and change no argument in place",
    ),
    "weight": ("doubles the term of its name, no other", "multiply the term by the hyperparameter, or rename one"),
    "reaches every view": (
        "a finite gradient for each embedding",
        "use every view in the loss; name a tensor that is only a target T or K",
    ),
    "no gradient for targets and state": (
        "no gradient",
        "detach targets and state in the function; they come from a teacher or from earlier batches",
    ),
    "equals finite differences": (
        "gradcheck in float64",
        "look for an in-place change, .data, or a custom backward",
    ),
    "collapse:": (
        "a finite loss, and a gradient below the limit",
        "guard the norm, logarithm or root at zero, in the backward pass too (clamp before, not after)",
    ),
    "float32": (
        "float32 for float32; value to 1e-5, gradient to 1e-4",
        "subtract the mean before square, exp or log; use logsumexp, log1p",
    ),
    "bfloat16 network": (
        "finite, within 1 % of float32",
        "look for divisions by small numbers, which amplify small differences of the embeddings",
    ),
    "compiles into one graph": ("fullgraph=True, the same terms", ON_DEVICE),
    "no host synchronisation": ("no value read on the host", ON_DEVICE),
    "free embeddings": ("finite embeddings", "give the loss a lower bound: normalise the embeddings"),
    "processes": (
        "value to 1e-12, gradient to 1e-10",
        "call no torch.distributed in the objective, and draw random numbers from a keyword argument `generator` only; "
        "gather the embeddings before, with `fullrank.distributed.gather`",
    ),
}


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """One line of a report.

    Attributes:
        status: 'info': the property is measured but not required.
        remedy: What is expected and what to change; empty unless the check failed.

    >>> required("pure", True, "the same value twice").status, required("finite", False, "loss nan").expected
    ('passed', 'a finite loss on normal embeddings')
    """

    name: str
    status: Literal["passed", "failed", "info"]
    measured: str
    expected: str = ""
    remedy: str = ""


def required(name: str, passed: bool, measured: str) -> CheckResult:
    """Return the result for a requirement of every objective."""
    if passed:
        return CheckResult(name=name, status="passed", measured=measured)
    words = (each for key, each in REQUIREMENTS.items() if name.startswith(key) or name.endswith(key))
    expected, remedy = next(words, REQUIREMENTS["terms"])
    return CheckResult(name=name, status="failed", measured=measured, expected=expected, remedy=remedy)


def info(name: str, measured: str) -> CheckResult:
    """Return the result for a property that is not required."""
    return CheckResult(name=name, status="info", measured=measured)


def exception_result(name: str, error: BaseException) -> CheckResult:
    """Return the result of a check in which the function raised an exception."""
    expected, remedy = REQUIREMENTS["terms"]
    return CheckResult(name=name, status="failed", measured=exception_line(error), expected=expected, remedy=remedy)


@dataclass(frozen=True, kw_only=True)
class Report:
    """The results of all checks of one objective; rich prints it as a table.

    Attributes:
        tensors: The tensors of the checks, with their shapes.
    """

    name: str
    tensors: str
    results: tuple[CheckResult, ...]
    seconds: float

    @property
    def failed(self) -> tuple[CheckResult, ...]:
        """The failed checks."""
        return tuple(result for result in self.results if result.status == "failed")

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return not self.failed

    def __str__(self) -> str:
        """Return the report in a sentence."""
        passed = sum(result.status == "passed" for result in self.results)
        failed = f"fails {len(self.failed)} and " if self.failed else ""
        return f"{self.name} {failed}passes {passed} checks, in {self.seconds:.0f} s; tested with {self.tensors}"

    def __rich_console__(self, *_: Any) -> Iterator[Any]:
        table = Table(box=None, show_header=False, padding=(0, 1, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column(max_width=30)
        table.add_column()
        signs = {"passed": ("✓", "green"), "failed": ("✗", "bold red"), "info": ("·", "dim")}
        for result in self.results:
            sign, style = signs[result.status]
            more = f"\nexpected: {result.expected}\nremedy: {result.remedy}" if result.status == "failed" else ""
            status = Text(f"{sign} {result.status}", style=style)
            table.add_row(status, Text(result.name), Text(result.measured + more))
        yield table
        yield Text(str(self))
