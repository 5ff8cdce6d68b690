"""A reproduced figure: how its numbers are computed and drawn, the paper's claims with their verdicts, and the list of
all figures.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from fullrank.errors import pick

if TYPE_CHECKING:
    import matplotlib.figure

    from fullrank.sweep import Plan

MplFigure: TypeAlias = "matplotlib.figure.Figure"
Rows = dict[str, Any]
"""The values that a figure is drawn from: numbers, strings, and lists and dicts of them, as in JSON. None stands for
"never happens"."""
Kind = Literal["claim", "claim from memory", "correction", "comparison"]
LABELS: dict[Kind, str] = {
    "claim": "claim",
    "claim from memory": "recalled claim",
    "correction": "check of a correction",
    "comparison": "our comparison",
}
PLURALS: dict[Kind, str] = {
    "claim": "claims",
    "claim from memory": "recalled claims",
    "correction": "checks of the corrections",
    "comparison": "our comparisons",
}


@dataclass(frozen=True)
class Claim:
    """A statement of a paper or of ours, with what was expected and what was measured.

    >>> Claim("FroSSL is faster than Barlow Twins at equal learning rate", expected="> 1", measured="1.8", holds=True).line()
    '✓ Claim, borne out: FroSSL is faster than Barlow Twins at equal learning rate (expected: > 1; measured: 1.8)'
    """

    statement: str
    _: KW_ONLY
    expected: str
    """The number or relation that the paper or the theory gives, with the tolerance."""
    measured: str
    holds: bool | None
    """None: undecidable, because the runs are too few, too short or too noisy, or not of the statement's size."""
    kind: Kind = "claim"
    """claim: a statement of the paper's text. claim from memory: a statement that we recall, of a paper whose text we
    did not have at hand.
    correction: a check of our own statement, from a derivation or a control, on a point on which the paper is silent or
    misprinted.
    comparison: a statement about our own runs, whatever the paper's runs were."""

    @property
    def verdict(self) -> str:
        """One of borne out, not borne out, undecidable at this size."""
        return "undecidable at this size" if self.holds is None else "borne out" if self.holds else "not borne out"

    @property
    def mark(self) -> str:
        """The verdict as one character."""
        return mark(self.holds)

    def line(self) -> str:
        """Return the claim and its verdict in one line, for the caption of the figure."""
        return (
            f"{self.mark} {LABELS[self.kind].capitalize()}, {self.verdict}: {self.statement} "
            f"(expected: {self.expected}; measured: {self.measured})"
        )


def mark(holds: bool | None) -> str:
    """Return ✓ for borne out, ✗ for not borne out, ? for undecidable."""
    return "?" if holds is None else "✓" if holds else "✗"


class ClaimResult(NamedTuple):
    """The result of one claim, with the fields of `Claim` but the statement. Claims are written as tables {statement:
    result}.
    """

    expected: str
    measured: str
    holds: bool | None
    kind: Kind


def paper_claim(expected: str, measured: str, holds: bool | None) -> ClaimResult:
    """Return the result of a claim of the paper."""
    return ClaimResult(expected, measured, holds, "claim")


def remembered_claim(expected: str, measured: str, holds: bool | None) -> ClaimResult:
    """Return the result of a claim that we attribute to a paper from memory."""
    return ClaimResult(expected, measured, holds, "claim from memory")


def our_correction(expected: str, measured: str, holds: bool | None) -> ClaimResult:
    """Return the result of our correction of the paper."""
    return ClaimResult(expected, measured, holds, "correction")


def our_comparison(expected: str, measured: str, holds: bool | None) -> ClaimResult:
    """Return the result of a statement about our own runs."""
    return ClaimResult(expected, measured, holds, "comparison")


def summarize_claims(claims: Sequence[Claim]) -> str:
    """Return how many claims are borne out: those of the paper's text, those that we recall, the checks of our
    corrections, and our comparisons, apart.

    >>> one = Claim("Training follows (18)", expected="0", measured="0.9", holds=False)
    >>> two = Claim("Training follows the corrected form", expected="0", measured="1e-9", holds=True, kind="correction")
    >>> summarize_claims([one]), summarize_claims([one, two])
    ('claims: 0 of 1 borne out', 'claims: 0 of 1 borne out; checks of the corrections: 1 of 1 borne out')
    """
    parts = []
    for kind, plural in PLURALS.items():
        holds = [claim.holds for claim in claims if claim.kind == kind]
        if holds:
            undecidable = f", {n} undecidable at this size" if (n := holds.count(None)) else ""
            parts.append(f"{plural}: {holds.count(True)} of {len(holds)} borne out{undecidable}")
    return "; ".join(parts)


@dataclass(frozen=True)
class Figure:
    """A figure of a paper: `compute(size, data=…, seed=…)` returns the rows, which `plot` draws and `evaluate_claims`
    checks.
    """

    title: str
    """The figure's number and its paper."""
    claim: str
    """The paper's main claim about the figure, in one sentence."""
    sizes: Mapping[str, Any]
    """smoke (seconds, no data needed), small (the committed results), paper (the paper's values, if it gives them)."""
    compute: Callable[..., Rows]
    plot: Callable[[Rows], MplFigure]
    evaluate_claims: Callable[[Rows], Mapping[str, ClaimResult]]
    images: str = ""
    """The data set to give as `data`; empty if the figure uses no images."""

    def claims(self, rows: Rows) -> list[Claim]:
        """Return the claims with their verdicts on `rows`."""
        return [Claim(statement, **result._asdict()) for statement, result in self.evaluate_claims(rows).items()]


@dataclass(frozen=True)
class Campaign:
    """A table or figure of a paper that is drawn from a list of runs, each of which is a run directory.

    `plan(settings, data=…, seeds=…, only=…)` returns the plan of `fullrank.sweep.run_sweep`: a function of the rows so
    far that returns all cells known so far. `plot` and `evaluate_claims` take {"rows": the rows as JSON, "cells": the
    number of cells}, and may be called when only some of the cells are done.
    """

    title: str
    """The number of the table or figure and its paper."""
    claim: str
    """The paper's main claim about it, in one sentence."""
    sizes: Mapping[str, Any]
    """smoke (seconds, no data needed), small (two CPU cores, hours), gpu (one GPU), paper (the paper's values)."""
    plan: Callable[..., Plan]
    plot: Callable[[Rows], MplFigure]
    evaluate_claims: Callable[[Rows], Mapping[str, ClaimResult]]
    methods: Sequence[str] = ()
    """The names that `only` may contain."""
    images: str = ""
    """The data set to give as `data`; empty if the campaign brings its own."""
    markdown: Callable[[Rows], str] | None = None
    """The table as Markdown: paper | ours ± sd (n) | verdict. None: the campaign has only a figure."""

    def claims(self, rows: Rows) -> list[Claim]:
        """Return the claims with their verdicts on `rows`."""
        return [Claim(statement, **result._asdict()) for statement, result in self.evaluate_claims(rows).items()]


FIGURES = (
    "frossl/fig2",
    "frossl/fig3",
    "frossl/table2",
    "frossl/table3",
    "frossl/fig4",
    "frossl/ablations",
    "frossl/cost",
    "stepwise/steps",
    "dynamics/fig1",
    "dynamics/fig2",
    "dynamics/fig3",
    "dynamics/fig4",
    "dynamics/theorem3",
    "dynamics/remark1",
    "dynamics/remark3",
    "directclr/fig3",
    "directclr/fig5",
    "directclr/fig6",
    "directclr/fig11",
    "directclr/fig2",
    "directclr/table1",
    "directclr/table2",
    "directclr/fig10",
    "directclr/fig12",
)
"""Names PAPER/FIGURE; each is a module of this package. The papers: frossl (Skean et al. 2024), stepwise (Simon et al.
2023), dynamics (Esser et al. 2023), directclr (Jing et al. 2022)."""


def load_figure(name: str) -> Figure | Campaign:
    """Return the figure or the campaign PAPER/FIGURE.

    Raises:
        UserError: unknown name.

    >>> load_figure("frossl/fig2").title
    'Fig. 2 of Skean et al. 2024, FroSSL'
    """
    pick(name, dict.fromkeys(FIGURES), "figure")
    return importlib.import_module(f"fullrank_papers.figures.{name.replace('/', '.')}").FIGURE
