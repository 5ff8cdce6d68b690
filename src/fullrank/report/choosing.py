"""What `fullrank choose` shows: tables for the terminal."""

import json
from math import floor, isfinite, log10
from pathlib import Path

import numpy as np
from rich.markup import escape as escape_markup
from rich.table import Column, Table

from fullrank.arguments import CHOICE_SUFFIXES
from fullrank.errors import printable
from fullrank.evaluation.choosing import MEASURES, Choice
from fullrank.files import atomic_write, check_suffix
from fullrank.models.model_card import public_name


def write_choice(choice: Choice, out: Path | str, *, overwrite: bool = False) -> Path:
    """Write all numbers (.json) or a table (.csv), and return the path.

    Raises:
        UserError: the suffix is another one, the file exists, or it cannot be written.
    """
    writers = {
        ".json": lambda: json.dumps(choice.to_dict(), indent=2) + "\n",
        ".csv": choice.to_csv,
    }
    text = writers[check_suffix(out, CHOICE_SUFFIXES)]()
    with atomic_write(Path(out), overwrite=overwrite) as draft:
        draft.write_text(text, "utf-8", errors="backslashreplace")
    return Path(out)


def head(key: str) -> str:
    """Return the name of a measure with the sign of what is better."""
    return f"{MEASURES[key].name} {'↑' if MEASURES[key].sign > 0 else '↓'}"


def rank_text(rank: tuple[int, int]) -> str:
    """Return a rank, or the range of the ranks that a model can have.

    >>> rank_text((1, 1)), rank_text((2, 4))
    ('1', '2–4')
    """
    low, high = rank
    return f"{low}" if low == high else f"{low}–{high}"


def interval_text(value: float, interval: tuple[float, float]) -> str:
    """Return a value with its interval, all with as many decimals as three digits of the value need.

    >>> interval_text(0.1234, (0.1, 0.15)), interval_text(47.38, (44.0, 51.0))
    ('0.123 [0.100, 0.150]', '47.4 [44.0, 51.0]')
    """
    digits = 2 - floor(log10(abs(value))) if value and isfinite(value) else 2
    low, high = (f"{end:.{min(max(digits, 0), 6)}f}" for end in interval)
    return f"{value:.3g} [{low}, {high}]"


def summary_tables(choice: Choice) -> list[Table]:
    """Return the tables of the terminal, a model a row: the decisive measure with its interval, the other measures, and
    accuracies.
    """
    key, names = choice.decisive, [escape_markup(printable(name)) for name in choice.short_names]
    title = f"{choice.images:,} images of {printable(public_name(choice.source))}, without labels"
    table = Table("rank", Column("model", overflow="fold"), title=title, title_justify="left")
    for column in ("dimensions", f"{head(key)}\n[95 % interval]"):
        table.add_column(column, justify="right")
    others = [name for name in MEASURES if name != key]
    further = Table(Column("model", overflow="fold"), title="Other measures, which do not decide", title_justify="left")
    for name in others:
        further.add_column(head(name), justify="right")
    ranks = choice.ranks(key)
    for i in choice.order(key):
        candidate = choice.candidates[i]
        decisive = interval_text(candidate.values[key], candidate.interval(key))
        table.add_row(rank_text(ranks[i]), names[i], str(candidate.dimensions), escape_markup(decisive))
        further.add_row(names[i], *(f"{candidate.values[name]:.3g}" for name in others))
    if choice.labelled is None:
        return [table, further]
    found = choice.labelled
    checked = Table(
        title=f"{found.test_images:,} labelled test images of {printable(public_name(found.data))}",
        title_justify="left",
    )
    checked.add_column("model", overflow="fold")
    for column in found.right:
        checked.add_column(column, justify="right")
    intervals = {probe: found.intervals(probe) for probe in found.right}
    for i in np.argsort(-found.accuracies(next(iter(found.right))), kind="stable"):
        cells = [_percent(float(found.accuracies(probe)[i]), intervals[probe][i]) for probe in found.right]
        checked.add_row(names[i], *cells)
    return [table, further, checked]


def _percent(value: float, interval: tuple[float, float]) -> str:
    return f"{value:.1%} [{interval[0]:.1%}, {interval[1]:.1%}]"
