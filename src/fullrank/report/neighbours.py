"""The page of `fullrank neighbours`: rows of neighbours, near-duplicates, outliers, doubtful labels and the map."""

import base64
import io
import os
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fullrank.evaluation.neighbourhood import Neighbours
from fullrank.files import atomic_write
from fullrank.models.model_card import public_name
from fullrank.report.document import figure_block, html_document, picture_strip, picture_tile
from fullrank.report.figures import Figure, escape_label, figure_layout, round_significant, spread_indices
from fullrank.report.plot_style import BOTTOM_MARGIN, COLORS

SIDE = 96
"""Longest side of a picture on the page, in pixels."""
ROWS, SHOWN, PAIRS, ALONE = 8, 8, 24, 27
"""Rows of neighbours, neighbours in a row, pairs of duplicates, and outliers on the page."""

MAP_CAPTION = (
    "t-SNE of the features (van der Maaten and Hinton 2008). Near points have near features; the distance between groups, their size and "
    "their density mean little."
)

Tile = Callable[..., str]
"""(row, text below, asked=False) -> the HTML of a picture."""


def write_neighbours_page(found: Neighbours, out: Path, *, images: bool = True, overwrite: bool = False) -> Path:
    """Write one HTML page that needs no network and no other file.

    Args:
        found: the result of `fullrank.neighbours`.
        out: the file.
        images: whether the page shows pictures; without them it contains names, and no pixel of the data.
        overwrite: replace an existing file.

    Raises:
        UserError: the file exists or cannot be written.
    """
    with atomic_write(out, overwrite=overwrite) as draft:
        draft.write_text(render(found, images=images), "utf-8", errors="backslashreplace")
    return out


def render(found: Neighbours, *, images: bool = True) -> str:
    """Return the page as text; with `images`, the pictures on the page are opened again."""
    pictures: dict[int, str] = {}

    def tile(row: int, text: str, *, asked: bool = False) -> str:
        if images and row not in pictures:
            pictures[row] = picture_uri(found.picture(row))
        return picture_tile(found.names[row], text, pictures.get(row, ""), asked=asked)

    figure = map_figure(found)
    several = len(found.parts) > 1
    sections = {
        "Queries": _queries(found, tile, images=images),
        "Near-duplicates": _duplicates(found, tile, several=several),
        "Outliers": _outliers(found, tile),
        "Doubtful labels": _doubtful(found, tile),
        "Nearest neighbours": _rows(found, tile, spread_indices(len(found), ROWS), several=several),
        "Map": figure_block("map", figure, MAP_CAPTION) if figure else "",
    }
    level = "warning" if _leaks(found) else "unknown"
    verdict = f'<p class="verdict {level}">{escape(" ".join(summary(found)))}</p>'
    if found.skipped:
        verdict += f'<p class="verdict warning">{escape(_skipped(found))}</p>'
    title = f"Neighbours in {public_name(found.source)}"
    return html_document(title=title, verdicts=verdict, sections=sections, figures={"map": figure} if figure else {})


def summary(found: Neighbours) -> list[str]:
    """Return what was found, one sentence an item."""
    counts = {part: found.splits.count(part) for part in found.parts}
    parts = f" ({', '.join(f'{part} {count:,}' for part, count in counts.items())})" if len(counts) > 1 else ""
    lines = [f"{len(found):,} images of {found.source}{parts}, embedded by {found.model}."]
    equal = sum(pair.equal for pair in found.duplicates)
    lines.append(
        f"{_count(len(found.duplicates), 'pair')} of near-duplicates (correlation ≥ {found.threshold:g}), {equal:,} of them equal."
    )
    lines += [
        f"{_count(count, 'pair')} {'lies' if count == 1 else 'lie'} across {a} and {b}."
        for (a, b), count in _leaks(found).items()
    ]
    doubtful = len(found.doubtful_labels(len(found)))
    if doubtful:
        lines.append(f"The neighbours of {_count(doubtful, 'image')} agree on another label.")
    return lines


def _leaks(found: Neighbours) -> dict[tuple[str, str], int]:
    return {pair: count for pair, count in found.across_splits().items() if pair[0] != pair[1]}


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"


def _skipped(found: Neighbours) -> str:
    more = f" and {len(found.skipped) - 5:,} more" if len(found.skipped) > 5 else ""
    return f"{_count(len(found.skipped), 'image')} cannot be read: {', '.join(found.skipped[:5])}{more}."


def picture_uri(pixels: np.ndarray) -> str:
    """Return pixels (C, S, S) as the address of a picture of at most `SIDE` pixels; of other channels than 1 or 3, the
    first is shown.
    """
    if pixels.dtype != np.uint8:  # floats in [0, 1]
        pixels = np.round(pixels * 255).clip(0, 255).astype(np.uint8)
    image = Image.fromarray(pixels.transpose(1, 2, 0) if len(pixels) == 3 else pixels[0])
    image.thumbnail((SIDE, SIDE))
    stream, kind = io.BytesIO(), "png" if image.width <= 32 else "jpeg"
    image.save(stream, kind, quality=85)
    return f"data:image/{kind};base64,{base64.b64encode(stream.getvalue()).decode()}"


def _note(text: str) -> str:
    return f'<p class="notes">{escape(text)}</p>'


def _label(found: Neighbours, row: int, *, several: bool = False) -> str:
    return ", ".join(filter(None, (found.splits[row] if several else "", found.labels[row])))


def _about(found: Neighbours, row: int, value: str, *, several: bool) -> str:
    return " · ".join(filter(None, (value, _label(found, row, several=several))))


def _rows(found: Neighbours, tile: Tile, rows: Sequence[int], *, several: bool) -> str:
    strips = [
        picture_strip(
            [tile(row, _label(found, row, several=several), asked=True)]
            + [
                tile(int(j), _about(found, int(j), f"{similarity:.3f}", several=several))
                for j, similarity in zip(found.indices[row][:SHOWN], found.similarities[row], strict=False)
            ]
        )
        for row in rows
    ]
    return _note(
        f"{len(rows)} images, evenly spread over the set, and their nearest neighbours with the cosine similarity."
    ) + "".join(strips)


def _queries(found: Neighbours, tile: Tile, *, images: bool) -> str:
    if found.queries is None:
        return ""
    asked = found.queries
    strips = []
    for name, indices, similarities, pixels in zip(
        asked.names, asked.indices, asked.similarities, asked.pictures, strict=True
    ):
        tiles = [picture_tile(name, "query", picture_uri(pixels) if images else "", asked=True)]
        shown = zip(indices[:SHOWN], similarities, strict=False)
        tiles += [
            tile(int(j), _about(found, int(j), f"{value:.3f}", several=len(found.parts) > 1)) for j, value in shown
        ]
        strips.append(picture_strip(tiles))
    return _note("The nearest images of each query, with the cosine similarity.") + "".join(strips)


def _duplicates(found: Neighbours, tile: Tile, *, several: bool) -> str:
    if not found.duplicates:
        return _note("There are none.")
    across = [pair for pair in found.duplicates if found.splits[pair.first] != found.splits[pair.second]]
    within = [pair for pair in found.duplicates if found.splits[pair.first] == found.splits[pair.second]]
    shown = [*across, *within][:PAIRS]
    strips = []
    for pair in shown:
        text = "equal" if pair.equal else f"{pair.correlation:.3f}"
        tiles = [tile(row, _about(found, row, text, several=several)) for row in (pair.first, pair.second)]
        strips.append(picture_strip(tiles))
    order = ", those across two splits first" if across and within else ""
    note = f"{len(shown):,} of {_count(len(found.duplicates), 'pair')}{order}. The number is the correlation of the pixels of thumbnails."
    note += f" Pairs are sought among the {found.k} nearest neighbours of each image; equal images are all found."
    return _note(note) + f'<div class="pairs">{"".join(strips)}</div>'


def _outliers(found: Neighbours, tile: Tile) -> str:
    score = found.outlier_score
    rows = found.outliers(ALONE)
    note = f"The images with the largest mean cosine distance to their {found.k} nearest neighbours (number). Of all images, half are below "
    note += f"{np.median(score):.3f}."
    return _note(note) + picture_strip(
        [tile(row, _about(found, row, f"{score[row]:.3f}", several=False)) for row in rows]
    )


def _doubtful(found: Neighbours, tile: Tile) -> str:
    rows = found.doubtful_labels(ALONE)
    if not rows:
        return ""
    total = len(found.doubtful_labels(len(found)))
    note = f"{len(rows):,} of {_count(total, 'image')}: no neighbour has the label of the image, and most neighbours have one other label. "
    note += "First the label of the image, then that of its neighbours. This is a reason to look, and not an error."
    return _note(note) + picture_strip(
        [tile(row, f"{found.labels[row]} → {found.usual_label(row)[0]}") for row in rows]
    )


def map_figure(found: Neighbours) -> Figure | None:
    """Return the map with a colour for each of the most frequent labels, or for each split without labels; None without
    a map.
    """
    placed = np.flatnonzero(np.isfinite(found.positions[:, 0])).tolist()
    if not placed:
        return None
    groups = [found.labels[i] or "no label" for i in placed] if any(found.labels) else [found.splits[i] for i in placed]
    frequent = sorted(dict.fromkeys(groups), key=lambda name: -groups.count(name))
    named = sorted(frequent if len(frequent) <= len(COLORS) else frequent[: len(COLORS) - 1])
    keys = [group if group in named else "others" for group in groups]
    names = named + ["others"] * ("others" in keys and "others" not in named)
    traces = [
        _points(found, i, name, [row for row, key in zip(placed, keys, strict=True) if key == name])
        for i, name in enumerate(names)
    ]
    axis: dict[str, Any] = {"showticklabels": False, "showgrid": False, "zeroline": False, "showline": False}
    meta = {"description": f"Map of {len(placed):,} images; groups: {', '.join(names)}."}
    layout = figure_layout(520, runs=len(traces)) | {
        "xaxis": axis | {"title": {"text": "x"}},
        "yaxis": axis | {"scaleanchor": "x"},
        "hovermode": "closest",
        "meta": meta,
    }
    layout["margin"] = layout["margin"] | {"l": 10}
    layout["height"] += BOTTOM_MARGIN * (len(names) > 6)  # a second line of the legend
    return {"data": traces, "layout": layout}


def _points(found: Neighbours, i: int, group: str, rows: Sequence[int]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": escape_label(group),
        "legendgroup": str(i),
        "opacity": 1.0,
        "x": [round_significant(float(found.positions[row, 0])) for row in rows],
        "y": [round_significant(float(found.positions[row, 1])) for row in rows],
        "text": [escape_label(os.path.basename(found.names[row]) or found.names[row]) for row in rows],
        "hovertemplate": "%{text}<extra>%{fullData.name}</extra>",
        "marker": {"color": COLORS[i % len(COLORS)], "size": 5, "opacity": 0.75},
        "line": {"color": COLORS[i % len(COLORS)]},
        "meta": {"run": group, "quantity": "y"},
    }
