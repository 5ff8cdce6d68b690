"""Write the tables and figures of the pages into the pages, so that a plain checkout shows them.

    python docs/extensions/render.py            # all pages, and their figures

A page has the code in a comment, and below it what the code prints:

    <!-- code
    print("| a | b |")
    -->
    (the output)
    <!-- end -->

The blocks of a page share their names. `draw(path, figure)` writes a figure of matplotlib and prints its picture.
"""

import contextlib
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1]
BLOCK = re.compile(r"<!-- code\n(.*?)\n-->\n.*?<!-- end -->", re.DOTALL)


def pages() -> list[Path]:
    """Return the pages that have such code."""
    return [page for page in sorted(DOCS.rglob("*.md")) if BLOCK.search(page.read_text("utf-8"))]


def render(page: Path, *, figures: bool = False) -> str:
    """Return the text of a page with the output of its code, and write its figures if asked for."""

    def draw(path: str, title: str, make: Callable[[], Any]) -> None:
        if figures:
            from fullrank_papers.plot_style import to_svg

            file = page.parent / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(to_svg(make()) + "\n", "utf-8")
        print(f"![{title}]({path})\n")

    names: dict[str, Any] = {"draw": draw}

    def run(block: re.Match) -> str:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block[1], str(page), "exec"), names)
        lines = (line.rstrip() for line in printed.getvalue().strip().splitlines())
        return "\n".join(["<!-- code", block[1], "-->", "", *lines, "", "<!-- end -->"])

    return BLOCK.sub(run, page.read_text("utf-8"))


if __name__ == "__main__":
    for each in pages():
        each.write_text(render(each, figures=True), "utf-8")
