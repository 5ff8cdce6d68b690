"""A reproduced figure: a module that computes its numbers, draws them, and judges the paper's claims.

The module has `TITLE` (number and paper), `CLAIM` (the paper's main claim, in one sentence), `SIZES` (name → settings:
smoke takes seconds and needs no data, small are the stored results, paper the paper's values), `plot(rows)`, and
`evaluate_claims(rows)`, which returns the verdict on each claim that the paper's `claims.toml` lists. Rows are values
as in JSON: numbers, strings, lists and dicts; None stands for "never happens". They come from one of

- `compute(settings, data=…, seed=…)`, which returns the rows;
- `plan(settings, data=…, seeds=…, only=…)`, a campaign: the plan of `fullrank.sweep.run_sweep`, a function of the rows
  so far that returns all cells known so far. `plot` and `evaluate_claims` then take {"rows": the rows of the runs as
  JSON, "cells": the number of cells}, also when only some of the cells are done. `METHODS` are the names that `only`
  may contain, and `markdown(rows)`, if there is one, returns the table as Markdown.

`IMAGES` names the data set to give as `data`; without it, the figure uses no images.
"""

import functools
import importlib
import re
import textwrap
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from fullrank.errors import pick
from fullrank.report.plot_style import MATPLOTLIB_STYLE
from fullrank_papers.plot_style import THEORY_LINE

if TYPE_CHECKING:
    import matplotlib.figure

MplFigure: TypeAlias = "matplotlib.figure.Figure"
Rows = dict[str, Any]
Kind = Literal["claim", "claim from memory", "correction", "comparison"]
LABELS: dict[Kind, tuple[str, str]] = {
    "claim": ("claim", "claims"),
    "claim from memory": ("recalled claim", "recalled claims"),
    "correction": ("check of a correction", "checks of the corrections"),
    "comparison": ("our comparison", "our comparisons"),
}
MARKS = {True: "✓", False: "✗", None: "?"}


@dataclass(frozen=True)
class Claim:
    """A statement of a paper or of ours, with what was expected and what was measured.

    Attributes:
        expected: The number or relation that the paper or the theory gives, with the tolerance.
        holds: None: undecidable, because the runs are too few, too short or too noisy, or not of the statement's size.
        kind: claim: a statement of the paper's text. claim from memory: a statement that we recall, of a paper whose
            text we did not have at hand. correction: a check of our own statement, from a derivation or a control, on a
            point on which the paper is silent or misprinted. comparison: a statement about our own runs, whatever the
            paper's runs were.

    >>> Claim("FroSSL is faster than Barlow Twins at equal learning rate", "> 1", "1.8", True).line()
    '✓ Claim, borne out: FroSSL is faster than Barlow Twins at equal learning rate (expected: > 1; measured: 1.8)'
    """

    statement: str
    expected: str
    measured: str
    holds: bool | None
    kind: Kind = "claim"

    @property
    def verdict(self) -> str:
        """One of borne out, not borne out, undecidable at this size."""
        return {True: "borne out", False: "not borne out", None: "undecidable at this size"}[self.holds]

    def line(self) -> str:
        """Return the claim and its verdict in one line, for the caption of the figure."""
        label, numbers = LABELS[self.kind][0], f"(expected: {self.expected}; measured: {self.measured})"
        return f"{MARKS[self.holds]} {label.capitalize()}, {self.verdict}: {self.statement} {numbers}"


class Verdict(NamedTuple):
    """What was measured of a claim, whether it holds, and the values that its texts name in braces."""

    measured: str
    holds: bool | None
    values: Mapping[str, Any]


Verdicts = Mapping[str, Verdict]
"""Name of a claim in `claims.toml` → verdict; "name: …" repeats a claim with other values."""


def verdict(measured: str, holds: bool | None, **values: Any) -> Verdict:
    """Return the verdict on a claim."""
    return Verdict(measured, holds, values)


@functools.cache
def claim_texts(paper: str) -> dict[str, dict[str, dict[str, Any]]]:
    """Return figure → name of a claim → kind, statement and expectation, from the paper's `claims.toml`."""
    return tomllib.loads((Path(__file__).parent / paper / "claims.toml").read_text("utf-8"))


def evaluate(name: str, rows: Rows) -> list[Claim]:
    """Return the claims of a figure, with their verdicts on `rows`."""
    paper, _, figure = name.partition("/")
    claims = []
    for key, (measured, holds, values) in load_figure(name).evaluate_claims(rows).items():
        text = claim_texts(paper)[figure][key.partition(":")[0]]
        statement, expected = (text[part].format(**values) for part in ("statement", "expected"))
        claims.append(Claim(statement, expected, measured, holds, text["kind"]))
    return claims


def summarize_claims(claims: Sequence[Claim]) -> str:
    """Return how many claims are borne out: those of the paper's text, those that we recall, the checks of our
    corrections, and our comparisons, apart.

    >>> one = Claim("Training follows (18)", "0", "0.9", False)
    >>> two = Claim("Training follows the corrected form", "0", "1e-9", True, "correction")
    >>> summarize_claims([one]), summarize_claims([one, two])
    ('claims: 0 of 1 borne out', 'claims: 0 of 1 borne out; checks of the corrections: 1 of 1 borne out')
    """
    parts = []
    for kind, (_, plural) in LABELS.items():
        if holds := [claim.holds for claim in claims if claim.kind == kind]:
            undecidable = f", {n} undecidable at this size" if (n := holds.count(None)) else ""
            parts.append(f"{plural}: {holds.count(True)} of {len(holds)} borne out{undecidable}")
    return "; ".join(parts)


PAPERS: Mapping[str, tuple[str, ...]] = {
    "frossl": ("fig2", "fig3", "table2", "table3", "fig4", "ablations", "cost"),
    "stepwise": ("steps",),
    "dynamics": ("fig1", "fig2", "fig3", "fig4", "theorem3", "remark1", "remark3"),
    "directclr": ("fig3", "fig5", "fig6", "fig11", "fig2", "table1", "table2", "fig10", "fig12"),
}
"""The papers: Skean et al. 2024, Simon et al. 2023, Esser et al. 2023, Jing et al. 2022; each figure is a module."""
FIGURES = tuple(f"{paper}/{figure}" for paper, figures in PAPERS.items() for figure in figures)
"""Names PAPER/FIGURE."""


def load_figure(name: str) -> Any:
    """Return the module of the figure PAPER/FIGURE.

    Raises:
        UserError: unknown name.

    >>> load_figure("frossl/fig2").TITLE
    'Fig. 2 of Skean et al. 2024, FroSSL'
    """
    pick(name, dict.fromkeys(FIGURES), "figure")
    return importlib.import_module(f"fullrank_papers.figures.{name.replace('/', '.')}")


def is_campaign(name: str) -> bool:
    """Return whether a figure is drawn from a list of runs, each of which is a run directory."""
    return hasattr(load_figure(name), "plan")


def draw_with_caption(name: str, rows: Rows, lines: Sequence[str]) -> MplFigure:
    """Return the plot of a figure's rows with its title above and the lines of a caption below."""
    from matplotlib import rc_context

    module = load_figure(name)
    with rc_context(MATPLOTLIB_STYLE):
        figure = module.plot(rows)
        width = int(figure.get_figwidth() * 16.5)  # in characters of the caption's font
        figure.suptitle(module.TITLE, x=0.01, ha="left", fontsize=10, fontweight="bold")
        space = "\N{NO-BREAK SPACE}"  # "n = 3" stays on one line
        unbroken = (re.sub(" ([=±]) ", f"{space}\\1{space}", line) for line in lines)
        caption = "\n".join(textwrap.fill(line, width, subsequent_indent="    ") for line in unbroken)
        figure.text(0.01, -0.02, caption, ha="left", va="top", fontsize=8, linespacing=1.4)
    return figure


def plot_runs(axis: Any, x: Sequence, runs: Iterable[Sequence], *, label: str | None = None, **style: Any) -> None:
    """Draw one line, or several lines (points, lines), per run in the same style, with one label for all."""
    for values in runs:
        first, *_ = axis.plot(x, values, **style)
        first.set_label(label)
        label = None


def add_theory_legend(axis: Any, label: str, **position: Any) -> None:
    """Draw the legend of an axis, with an entry for the theoretical curves."""
    axis.plot([], [], **THEORY_LINE, label=label)
    axis.legend(**position)


def plot_dots(axis: Any, rows: Sequence[tuple[str, Sequence[float]]], *, notes: Sequence[str] = ()) -> None:
    """Draw one line for each (label, numbers): a dot per seed and a bar for the mean; `notes` stand on the right."""
    for place, (_, numbers) in enumerate(rows):
        if numbers:
            axis.plot([sum(numbers) / len(numbers)] * 2, [place - 0.35, place + 0.35], color="C0", linewidth=1.5)
        axis.plot(numbers, [place] * len(numbers), "o", color="C0", markersize=3, alpha=0.6)
    axis.set_yticks(range(len(rows)), [label for label, _ in rows])
    axis.set_ylim(max(len(rows), 1) - 0.5, -0.5)
    axis.grid(axis="x", alpha=0.3)
    if notes:
        right = axis.secondary_yaxis("right")
        right.set_yticks(range(len(rows)), notes)
        right.tick_params(length=0, labelsize=7, labelcolor="dimgray")
        right.spines["right"].set_visible(False)
