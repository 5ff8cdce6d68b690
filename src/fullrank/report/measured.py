"""The last spectrum of each run by every measure of `fullrank.spectrum`, each with its convention and its warning."""

import re
from collections.abc import Iterable, Sequence
from html import escape
from math import isinf, isnan
from typing import TYPE_CHECKING

import numpy as np

from fullrank.report.read import PARTS, Record
from fullrank.report.summary import count
from fullrank.report.tables import table

if TYPE_CHECKING:
    from fullrank.spectrum import Reading

WARNED = "†"
"""What stands behind a value that has a warning."""


def readings_of(run: Record, part: str) -> "dict[str, Reading]":
    """Return every measure of the last spectrum that its eigenvalues decide; empty without one, or where its number of images is not known.

    >>> from fullrank.run import SpectrumHistory
    >>> spectra = SpectrumHistory(steps=np.array([9]), samples=np.array([50]), eigenvalues={"backbone": np.array([[2.0, 2.0]])})
    >>> nothing = dict(train=(), spectrum_rows=(), warnings=(), evaluation=None, views=None, decode_errors=0, notes=())
    >>> run = Record(label="run", recipe={}, environment={}, spectra=spectra, **nothing)
    >>> round(readings_of(run, "backbone")["effective rank"].value, 6), readings_of(run, "projector")
    (2.0, {})
    """
    spectra = run.spectra
    if spectra is None or part not in spectra.eigenvalues or not spectra.samples[-1]:
        return {}
    eigenvalues = spectra.eigenvalues[part][-1]
    if not np.isfinite(eigenvalues).all():
        return {}
    import torch  # seconds, which only who has spectra to read should wait

    from fullrank.spectrum import Spectrum, readings

    return readings(Spectrum.from_eigenvalues(torch.from_numpy(eigenvalues), n=int(spectra.samples[-1])))


def measures(runs: Sequence[Record]) -> str:
    """Measures down; backbone and projector of one run across, or of each of these all runs; empty where no run has a spectrum."""
    found = {part: {run.label: read for run in runs if (read := readings_of(run, part))} for part in PARTS}
    if len(runs) == 1:
        found = {"run": {part: read for part in PARTS for read in found[part].values()}}
    return "".join(_table(columns, of=of) for of, columns in found.items() if columns)


def _table(columns: "dict[str, dict[str, Reading]]", *, of: str) -> str:
    from fullrank.spectrum import MEASURES
    from fullrank.spectrum.readings import CENTRED

    names = list(next(iter(columns.values())))
    of_others = {name: "" if MEASURES[name].convention == CENTRED else f"; {MEASURES[name].convention}" for name in names}
    rows = [
        [
            f"{escape(name)}<br><small>{_formula(MEASURES[name].formula + of_others[name])}</small>",
            *(cell(read[name]) for read in columns.values()),
            f"<small>{escape(MEASURES[name].few)}</small>",
        ]
        for name in names
    ]
    marked = notes(reading for read in columns.values() for reading in read.values())
    head = [f"measure of the {of}", *columns, f"{WARNED}: of few samples"]
    return table(head, rows, caption=f"The last spectra of the {of}. λ: {CENTRED}.", stacks=True, wide=len(columns) > 2) + marked


def _formula(text: str) -> str:
    """A formula as HTML, with its indices set low.

    >>> _formula("λ_j ≤ 10⁻⁶ λ₁")
    'λ<sub>j</sub> ≤ 10⁻⁶ λ₁'
    """
    return re.sub(r"_(\w)", r"<sub>\1</sub>", escape(text))


def cell(reading: "Reading") -> str:
    r"""A value as HTML, with a mark that tells its warning.

    >>> from fullrank.spectrum import Reading
    >>> cell(Reading(28007.1, "")), cell(Reading(45.25, "", "reads low"))
    ('28\u202f007', '45.2<abbr title="reads low">†</abbr>')
    """
    mark = f'<abbr title="{escape(reading.warning)}">{WARNED}</abbr>' if reading.warning else ""
    return number(reading.value) + mark


def notes(readings: "Iterable[Reading]") -> str:
    """How few samples the marks stand for, each number of them once; empty where there is no mark."""
    said = dict.fromkeys(reading.warning.rpartition(": ")[2] for reading in readings if reading.warning)
    return f'<ul class="limits">{"".join(f"<li>{WARNED} {escape(text)}</li>" for text in said)}</ul>' if said else ""


def number(value: float) -> str:
    """A number with three or four digits.

    >>> number(0.98765), number(45.25), number(3.0), number(float("inf")), number(2.5e9)
    ('0.988', '45.2', '3', '∞', '2.5e+09')
    """
    if isinf(value) or isnan(value):
        return "∞" if isinf(value) else "–"
    if 1000 <= abs(value) < 1e6:
        return count(value)
    return f"{value:.3g}"
