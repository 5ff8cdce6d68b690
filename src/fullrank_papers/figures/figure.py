"""A reproduced figure: a module that computes its numbers, draws them, and judges the paper's claims.

Its texts are in the paper's `claims.toml`: the title (number and paper), the main claim or a question, the data set to
give as `data` (`images`; without it, the figure uses no images), and each claim with the kind, the statement and what
is expected. These may name in braces the `rows`, constants of the module (`figure.NAME`), and the values of the
verdict. A claim with a `size`, that of the paper's runs, is inconclusive at other sizes, and a comparison says what the
runs show. The `severity` of a claim that does not hold is one of `SEVERITIES`.

The module has `SIZES` (name → settings: smoke takes seconds and needs no data, small are the stored results, paper the
paper's values), `plot(rows)`, and `evaluate_claims(rows)`, which returns the verdict on each claim that they
concern. Rows are values as in JSON: numbers, strings, lists and dicts; None stands for "never happens". They come from
one of

- `compute(settings, data=…, seed=…)`, which returns the rows;
- `plan(settings, data=…, transfer=…)`, a campaign, whose settings have `seeds` and `methods`: the plan of
  `fullrank.sweep.run_sweep`, a function of the rows so far that returns all cells known so far. `plot` and
  `evaluate_claims` then take {"rows": the rows of the runs as JSON, "cells": the number of cells}, also when only some
  of the cells are done. `METHODS` are the names that `methods` may contain, and `markdown(rows)`, if there is one,
  returns the table as Markdown.
"""

import importlib
import re
import textwrap
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from fullrank.errors import pick
from fullrank.plot_style import MATPLOTLIB_STYLE

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
# What is wrong: a printed sign or factor; the scale of a quantity; the claim, on a set of measure zero; the claim.
SEVERITIES = ("misprint", "normalisation", "measure zero", "fails in general")


@dataclass(frozen=True)
class Claim:
    """A statement of a paper or of ours, with what was expected and what was measured.

    Attributes:
        expected: The number or relation that the paper or the theory gives, with the tolerance.
        holds: None: inconclusive, because the runs are too few, too short or too noisy, or not of the statement's size.
        kind: claim: a statement of the paper's text. claim from memory: a statement that we recall, of a paper whose
            text we did not have at hand. correction: a check of our own statement, from a derivation or a control, on a
            point on which the paper is silent or misprinted. comparison: a statement about our own runs, whatever the
            paper's runs were.
        severity: One of `SEVERITIES`, of a claim that does not hold; empty if it was not classified.

    >>> Claim("FroSSL is faster than Barlow Twins at equal learning rate", "> 1", "1.8", True).line()
    '✓ Claim, holds: FroSSL is faster than Barlow Twins at equal learning rate (expected: > 1; measured: 1.8)'
    """

    statement: str
    expected: str
    measured: str
    holds: bool | None
    kind: Kind = "claim"
    severity: str = ""

    @property
    def verdict(self) -> str:
        """One of holds, does not hold (with the severity), inconclusive at this size."""
        wrong = f"does not hold ({self.severity})" if self.severity else "does not hold"
        return {True: "holds", False: wrong, None: "inconclusive at this size"}[self.holds]

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


def evaluate(name: str, rows: Rows, size: str = "small") -> list[Claim]:
    """Return the claims of a figure, with their verdicts on `rows`, which were computed at a size."""
    module, claims = load_figure(name), []
    for key, (measured, holds, values) in module.evaluate_claims(rows).items():
        text = FIGURES[name][key.partition(":")[0]]
        statement, expected = (text[k].format(**values, rows=rows, figure=module) for k in ("statement", "expected"))
        kind, severity = text["kind"], text.get("severity", "") if holds is False else ""
        images = [row["train_images"] for row in rows.get("rows", ())]  # of a campaign
        reached = size.startswith("paper") and min(images, default=0) >= text.get("images", 0)
        if "size" in text and not reached:
            limit = f"{expected}; decidable only at the paper's size, {text['size']}"
            claims.append(Claim(statement, limit, measured, None, kind))
            statement, kind = f"in these runs, {statement}", "comparison"
        claims.append(Claim(statement, expected, measured, holds, kind, severity))
    return claims


def summarize_claims(claims: Sequence[Claim]) -> str:
    """Return how many claims hold: those of the paper's text, those that we recall, the checks of our
    corrections, and our comparisons, apart; and how severe the claims fail that do not.

    >>> one = Claim("Training follows (18)", "0", "0.9", False, severity="misprint")
    >>> two = Claim("Training follows the corrected form", "0", "1e-9", True, "correction")
    >>> summarize_claims([one]), summarize_claims([one, two])
    ('claims: 0 of 1 hold, ✗ misprint: 1', 'claims: 0 of 1 hold, ✗ misprint: 1; checks of the corrections: 1 of 1 hold')
    """
    parts = []
    for kind, (_, plural) in LABELS.items():
        if holds := [claim.holds for claim in claims if claim.kind == kind]:
            inconclusive = f", {n} inconclusive at this size" if (n := holds.count(None)) else ""
            severities = [claim.severity for claim in claims if claim.kind == kind]
            wrong = "".join(f", ✗ {each}: {n}" for each in SEVERITIES if (n := severities.count(each)))
            parts.append(f"{plural}: {holds.count(True)} of {len(holds)} hold{wrong}{inconclusive}")
    return "; ".join(parts)


# Skean et al. 2023, Simon et al. 2023, Esser et al. 2023, Jing et al. 2022.
PAPERS = ("frossl", "stepwise", "dynamics", "directclr")
FIGURES: dict[str, dict[str, Any]] = {
    f"{paper}/{figure}": texts
    for paper in PAPERS
    for figure, texts in tomllib.loads((Path(__file__).parent / paper / "claims.toml").read_text("utf-8")).items()
}
"""PAPER/FIGURE → its texts: title, claim, images if it uses some, and each claim by its name."""


def load_figure(name: str) -> Any:
    """Return the module of the figure PAPER/FIGURE.

    Raises:
        UserError: unknown name.

    >>> list(load_figure("stepwise/steps").SIZES)
    ['smoke', 'small', 'paper']
    """
    pick(name, FIGURES, "figure")
    return importlib.import_module(f"fullrank_papers.figures.{name.replace('/', '.')}")


def is_campaign(name: str) -> bool:
    """Return whether a figure is drawn from a list of runs, each of which is a run directory."""
    return hasattr(load_figure(name), "plan")


def draw_with_caption(name: str, rows: Rows, lines: Sequence[str]) -> MplFigure:
    """Return the plot of a figure's rows with its title above and the lines of a caption below."""
    from matplotlib import rc_context

    with rc_context(MATPLOTLIB_STYLE):
        figure = load_figure(name).plot(rows)
        width = int(figure.get_figwidth() * 16.5)  # in characters of the caption's font
        figure.suptitle(FIGURES[name]["title"], x=0.01, ha="left", fontsize=10, fontweight="bold")
        space = "\N{NO-BREAK SPACE}"  # "n = 3" stays on one line
        unbroken = (re.sub(" ([=±]) ", f"{space}\\1{space}", line) for line in lines)
        caption = "\n".join(textwrap.fill(line, width, subsequent_indent="    ") for line in unbroken)
        figure.text(0.01, -0.02, caption, ha="left", va="top", fontsize=8, linespacing=1.4)
    return figure
