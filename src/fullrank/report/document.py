"""The HTML of a page: the document with styles, scripts and data in one file, and the elements of its sections."""

import base64
import gzip
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

import numpy as np
from plotly.offline import get_plotlyjs

from fullrank.report.figures import Figure, describe_figure
from fullrank.report.plot_style import COLORS

LONGEST_WORD = 18
"""Number of characters of the longest word that a cell of a table never breaks."""
MAX_COLUMNS = 8
"""Columns of numbers that fit beside the labels of runs."""
BORDERS = ("solid", "double", "dotted", "groove")
"""The border before the label of a run; it changes where the dash of the run's line changes."""


def html_document(
    *,
    title: str,
    verdicts: str,
    sections: Mapping[str, str],
    figures: Mapping[str, Figure],
    positions: Sequence[Mapping[str, Any]] = (),
    legend: str = "",
) -> str:
    """Return a page that needs no network and no other file.

    Args:
        title: the title, as text.
        verdicts: the paragraphs below the title, as HTML.
        sections: title -> HTML; an empty section is omitted.
        figures: name -> the plotly figure in the block of that name.
        positions: positions of the slider, from `spectrum.slider_positions`.
        legend: the buttons that show and hide a run in all figures, as HTML; the figures then have no legend.
    """
    plotly, script = get_plotlyjs(), _read_asset("page.js")
    return Template(_read_asset("page.html")).substitute(
        policy=f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {_hash(script)} {_hash(plotly)}; "
        "base-uri 'none'; form-action 'none'",
        title=escape(title),
        style=_read_asset("page.css"),
        verdicts=verdicts,
        legend=legend,
        contents="".join(f'<li><a href="#{_anchor(name)}">{name}</a></li>' for name, body in sections.items() if body),
        sections="\n".join(
            f'<section id="{_anchor(name)}"><h2>{name}</h2>\n{body}\n</section>'
            for name, body in sections.items()
            if body
        ),
        data=_json({"figures": figures, "positions": positions}),
        plotly=_compress(plotly),
        script=script,
    )


def figure_block(name: str, figure: Figure, caption: str) -> str:
    """Return the element that a figure is drawn in, with its caption and its download buttons."""
    height, text = figure["layout"]["height"], escape(describe_figure(figure))
    return (
        f'<figure id="figure-{name}"><div class="plot" role="group" aria-label="{text}" style="height:{height}px"></div>'
        f'<figcaption>{escape(caption)} <span class="downloads"><button type="button" data-download="svg">SVG</button>'
        '<button type="button" data-download="csv">CSV</button></span></figcaption></figure>'
    )


def html_table(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, caption: str, stacks: bool = False, wide: bool = False
) -> str:
    """Return a table; the first column names the row.

    Args:
        head: names of the columns, as text.
        rows: cells, as HTML.
        caption: as text; may be empty.
        stacks: on a phone, show each row as a card.
        wide: in a wide window, let the table be wider than the text.
    """
    top = "".join(f'<th scope="col"{_long(escape(name))}>{escape(name)}</th>' for name in head)
    body = "".join(
        f'<tr><th scope="row"{_long(row[0])} data-label="{escape(head[0])}">{row[0]}</th>'
        + "".join(
            f'<td{_long(cell)} data-label="{escape(name)}"><div>{cell}</div></td>'
            for name, cell in zip(head[1:], row[1:], strict=True)
        )
        + "</tr>"
        for row in rows
    )
    table_class = ' class="stacks"' if stacks else ""
    scroll_class = "scroll wide" if wide else "scroll"
    content = f"{f'<caption>{escape(caption)}</caption>' if caption else ''}<thead><tr>{top}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="{scroll_class}"><table{table_class}>{content}</table></div>'


def _long(cell: str) -> str:
    """Return the class of a cell with a word, such as a path, that may be broken anywhere so that the table fits on the
    page.
    """
    words = re.sub("<[^>]+>", " ", cell).replace("\N{NO-BREAK SPACE}", " ").split()
    return ' class="long"' if any(len(word) > LONGEST_WORD for word in words) else ""


def split_table(head: Sequence[str], rows: Iterable[Sequence[str]], *, caption: str) -> str:
    """Return one table, or several with at most `MAX_COLUMNS` columns each, so that none is wider than the page.

    Each table repeats the first column, which names the row. The caption stands below the last one.
    """
    rows, columns = list(rows), len(head) - 1
    parts = [
        [int(k) for k in part] for part in np.array_split(np.arange(1, columns + 1), max(1, -(-columns // MAX_COLUMNS)))
    ]
    return "".join(
        html_table(
            [head[0], *(head[k] for k in part)],
            [[row[0], *(row[k] for k in part)] for row in rows],
            caption=caption if part is parts[-1] else "",
            stacks=True,
            wide=len(part) > MAX_COLUMNS // 2,
        )
        for part in parts
    )


def json_details(title: str, tree: Any) -> str:
    """Return an element that shows indented JSON when it is opened."""
    text = json.dumps(tree, indent=2, ensure_ascii=False)
    return f'<details><summary>{escape(title)}</summary><pre tabindex="0">{escape(text)}</pre></details>'


def label_html(i: int, label: str) -> str:
    """Return the label of the i-th run, with a border in the run's colour."""
    style = f"border-color:{COLORS[i % len(COLORS)]};border-left-style:{BORDERS[i // len(COLORS) % len(BORDERS)]}"
    return f'<span class="run" style="{style}">{escape(label)}</span>'


def picture_tile(name: str, text: str, source: str, *, asked: bool = False) -> str:
    """Return the picture of an image with its file name and a text below; `source` is the address of the picture, or
    empty.
    """
    picture = f'<img alt="{escape(name)}" src="{escape(source)}">' if source else ""
    short = escape(os.path.basename(name.rstrip("/")) or name)
    kind = ' class="asked"' if asked else ""
    return f'<li{kind} title="{escape(name)}">{picture}<span>{short}</span><small>{escape(text)}</small></li>'


def picture_strip(tiles: Sequence[str]) -> str:
    """Return tiles as a row."""
    return f'<ul class="pictures">{"".join(tiles)}</ul>'


def _json(tree: Any) -> str:
    """Return JSON without "<", so that no text can close the script element."""
    return json.dumps(tree, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


@cache
def _compress(script: str) -> str:
    return base64.b64encode(gzip.compress(script.encode(), compresslevel=9, mtime=0)).decode()


def _hash(script: str) -> str:
    """Return the hash of a script for the content security policy, which allows no other script to run."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _read_asset(name: str) -> str:
    return files("fullrank.report").joinpath(name).read_text(encoding="utf-8")


def _anchor(name: str) -> str:
    return name.lower().replace(" ", "-")
