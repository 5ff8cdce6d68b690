"""The section of a report with a few test images and their nearest neighbours."""

from collections.abc import Sequence
from html import escape

from fullrank.report.document import label_html, picture_strip, picture_tile
from fullrank.report.run_summary import RunSummary
from fullrank.run.neighbour_rows import Tile

PICTURE_STARTS = ("data:image/png;base64,", "data:image/jpeg;base64,")


def neighbour_section(runs: Sequence[RunSummary]) -> str:
    """Return the rows of each run, the same images one below the other if the runs were evaluated on the same ones; empty without rows."""
    blocks = []
    for i, run in enumerate(runs):
        if run.neighbours is None:
            continue
        stored = run.neighbours
        strips = "".join(picture_strip([_html(tile) for tile in row]) for row in stored.rows)
        head = f"<h3>{label_html(i, run.label)}</h3>" if len(runs) > 1 else ""
        step = "" if stored.step is None else f", checkpoint of step {stored.step:,}"
        note = f"{len(stored.rows)} test images of {stored.source} and their nearest neighbours among {stored.searched:,} test images, "
        note += f"with the cosine similarity of the features of the backbone{step}."
        blocks.append(f'{head}<p class="notes">{escape(note)}</p>{strips}')
    return "".join(blocks)


def _html(tile: Tile) -> str:
    source = tile.picture if tile.picture.startswith(PICTURE_STARTS) else ""
    value = "" if tile.similarity is None else f"{tile.similarity:.3f}"
    return picture_tile(tile.name, " · ".join(filter(None, (value, tile.label))), source, asked=tile.similarity is None)
