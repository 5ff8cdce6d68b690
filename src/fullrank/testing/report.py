"""The results of the checks of an objective: passed, failed with a remedy, or a measured property."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from rich.text import Text


@dataclass(frozen=True)
class CheckResult:
    """One line of a report.

    Attributes:
        passed: None: the property is measured but not required.
        remedy: What is expected and what to change if the check failed.

    >>> CheckResult("pure", True, "the same value twice", "take state as an argument").status
    'passed'
    """

    name: str
    passed: bool | None
    measured: str
    remedy: str = ""

    @property
    def status(self) -> str:
        """passed, failed or info."""
        return "info" if self.passed is None else "passed" if self.passed else "failed"


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
        return tuple(result for result in self.results if result.passed is False)

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return not self.failed

    def __str__(self) -> str:
        """Return the report in a sentence."""
        passed = sum(result.passed is True for result in self.results)
        failed = f"fails {len(self.failed)} and " if self.failed else ""
        return f"{self.name} {failed}passes {passed} checks, in {self.seconds:.0f} s; tested with {self.tensors}"

    def __rich_console__(self, *_: Any) -> Iterator[Any]:
        table = Table("", "", "", box=None, show_header=False, padding=(0, 1, 0, 0))
        signs = {"passed": ("✓", "green"), "failed": ("✗", "bold red"), "info": ("·", "dim")}
        for result in self.results:
            sign, style = signs[result.status]
            text = f"{result.measured}\nremedy: {result.remedy}" if result.passed is False else result.measured
            table.add_row(Text(f"{sign} {result.status}", style=style, no_wrap=True), Text(result.name), Text(text))
        yield table
        yield Text(str(self))
