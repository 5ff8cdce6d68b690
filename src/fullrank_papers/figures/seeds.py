"""Claims about training, judged over a few seeds: the paired 95 % confidence interval decides.

Runs are paired by their seed: in one recipe both have the same initial weights, the same order of images and the same
views. A comparison is borne out if the whole 95 % interval of the mean difference agrees with the claim, not borne out
if none of the interval does, and otherwise undecidable at this size. The interval is that of Student's paired t-test.
"""

from collections.abc import Iterable, Sequence

from fullrank.sweep.paired import paired_difference
from fullrank_papers.figures.figure import ClaimResult, paper_claim


def check_higher(
    a: Sequence[float], b: Sequence[float], *, unit: str = " points", scale: float = 100.0, paper: str = ""
) -> ClaimResult:
    """Return the claim that a is higher than b: the interval of their paired differences is above zero."""
    gap = paired_difference(a, b)
    return paper_claim(f"95 % interval above 0{paper}", gap.format(unit, scale=scale), gap.is_positive())


def holds_for_all(verdicts: Iterable[bool | None]) -> bool | None:
    """Return whether a claim that joins several comparisons holds: all hold (True), one is contradicted (False), or
    else None.

    >>> holds_for_all([True, True]), holds_for_all([True, None]), holds_for_all([None, False])
    (True, None, False)
    """
    verdicts = list(verdicts)
    return False if False in verdicts else None if None in verdicts else True


def holds_in_every_run(runs: Iterable[bool]) -> bool | None:
    """Return whether a property of single runs holds in every run (True), in no run (False), or only in some (None).

    >>> holds_in_every_run([True, True]), holds_in_every_run([True, False]), holds_in_every_run([False])
    (True, None, False)
    """
    runs = list(runs)
    return True if all(runs) else None if any(runs) else False
