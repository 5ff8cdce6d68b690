"""The results of the checks of an objective: passed, failed with a remedy, or a measured property."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from rich.table import Table
from rich.text import Text

from fullrank.objectives.terms import RETURN_FORM, TAKE_A_GENERATOR

# The requirement → what is expected, and the remedy; the name of a check begins or ends with its requirement.
REQUIREMENTS = {
    "returns terms": f"expected scalars by name; {RETURN_FORM}",
    "terms": "expected no exception; find what the function assumes about its tensors, and remove the assumption",
    "finite": "expected a finite loss; look for a division by zero, or a log or root of a negative",
    "keeps the precision": "expected float64 for float64; create new tensors like the embeddings: Z.new_zeros(…)",
    "differentiable": "remove detach, no_grad, item, and numpy between the embeddings and the loss",
    "pure": "expected a function only of its tensors; take state as an argument, "
    f"{TAKE_A_GENERATOR}, and change no argument in place",
    "weight": "expected twice the term of its name, no other; multiply it by the hyperparameter, or rename one",
    "reaches every view": "use every view in the loss; name a tensor that is only a target T or K",
    "no gradient for targets and state": "detach them in the function; they are of a teacher or of earlier batches",
    "equals finite differences": "look for an in-place change, .data, or a custom backward",
    "collapse:": "guard the norm, logarithm or root at zero, in the backward pass too (clamp before, not after)",
    "float32": "expected float32 for float32, its value to 1e-5 and gradient to 1e-4; subtract the mean before square, "
    "exp or log; use logsumexp, log1p",
    "bfloat16 network": "expected a loss within 1 % of float32; look for divisions by small numbers, which amplify "
    "small differences of the embeddings",
    "compiles into one graph": "expected the same terms with fullgraph=True; use torch.where instead of if",
    "no host synchronisation": "use torch.where instead of if, and no .item(), float(), bool() or print of a tensor",
    "free embeddings": "expected finite embeddings; give the loss a lower bound: normalise the embeddings",
    "processes": "expected the value to 1e-12, the gradient to 1e-10; call no torch.distributed in the objective, and "
    "draw random numbers from a keyword argument `generator` only",
}


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """One line of a report.

    Attributes:
        status: 'info': the property is measured but not required.
        remedy: What is expected and what to change; empty unless the check failed.

    >>> required("pure", True, "the same value twice").status, required("differentiable", False, "is detached").remedy
    ('passed', 'remove detach, no_grad, item, and numpy between the embeddings and the loss')
    """

    name: str
    status: Literal["passed", "failed", "info"]
    measured: str
    remedy: str = ""


def required(name: str, passed: bool, measured: str) -> CheckResult:
    """Return the result for a requirement of every objective."""
    if passed:
        return CheckResult(name=name, status="passed", measured=measured)
    remedies = (text for key, text in REQUIREMENTS.items() if name.startswith(key) or name.endswith(key))
    return CheckResult(name=name, status="failed", measured=measured, remedy=next(remedies, REQUIREMENTS["terms"]))


def info(name: str, measured: str) -> CheckResult:
    """Return the result for a property that is not required."""
    return CheckResult(name=name, status="info", measured=measured)


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
        table = Table("", "", "", box=None, show_header=False, padding=(0, 1, 0, 0))
        signs = {"passed": ("✓", "green"), "failed": ("✗", "bold red"), "info": ("·", "dim")}
        for result in self.results:
            sign, style = signs[result.status]
            text = f"{result.measured}\nremedy: {result.remedy}" if result.remedy else result.measured
            table.add_row(Text(f"{sign} {result.status}", style=style, no_wrap=True), Text(result.name), Text(text))
        yield table
        yield Text(str(self))
