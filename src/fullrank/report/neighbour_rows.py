"""The section of a report with a few test images and their nearest neighbours."""

from collections.abc import Sequence
from html import escape
from itertools import accumulate

from fullrank.report.document import label_html, picture_strip, picture_tile
from fullrank.report.number_format import format_count
from fullrank.report.run_summary import RunSummary
from fullrank.run.neighbour_rows import Tile

MOST_BYTES = 1_000_000
"""Size of the rows of all runs together."""
PICTURE_STARTS = ("data:image/png;base64,", "data:image/jpeg;base64,")


def neighbour_section(runs: Sequence[RunSummary]) -> str:
    """Return the rows of each run; empty without rows. Many runs show fewer rows each, so that the page stays small."""
    stored = {i: run.neighbours for i, run in enumerate(runs) if run.neighbours is not None and run.neighbours.rows}
    blocks = []
    for i, found in stored.items():
        strips = [picture_strip([_html(tile) for tile in row]) for row in found.rows]
        sizes = list(accumulate(map(len, strips)))
        strips = [strip for strip, size in zip(strips, sizes, strict=True) if size <= MOST_BYTES // len(stored)]
        if not strips:
            continue
        head = f"<h3>{label_html(i, runs[i].label)}</h3>" if len(runs) > 1 else ""
        step = "" if found.step is None else f", checkpoint of step {format_count(found.step)}"
        among = f"nearest neighbours among {format_count(found.searched)} test images"
        note = f"{len(strips)} test images of {found.source} and their {among}, "
        note += f"with the cosine similarity of the features of the backbone{step}."
        blocks.append(f'{head}<p class="notes">{escape(note)}</p>{"".join(strips)}')
    return "".join(blocks)


def _html(tile: Tile) -> str:
    source = tile.picture if tile.picture.startswith(PICTURE_STARTS) else ""
    value = "" if tile.similarity is None else f"{tile.similarity:.3f}"
    return picture_tile(tile.name, " · ".join(filter(None, (value, tile.label))), source, asked=tile.similarity is None)
