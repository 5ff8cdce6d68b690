"""`fullrank reproduce`: the papers' figures, each with what it claims and whether that was borne out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fullrank.atomic import atomic_write
from fullrank.cli.flags import call
from fullrank.errors import UserError
from fullrank.reproduce import FIGURES, Claim, Result, committed, figure_named, verdict
from fullrank.reproduce import reproduce as compute
from fullrank.reproduce.result import draw, stem
from fullrank.terminal import stderr


def run(arguments: Sequence[str]) -> None:
    """Parse and compute, or list."""
    call(reproduce, arguments, verb="reproduce")


def reproduce(
    name: tyro.conf.Positional[str | None] = None,
    /,
    *,
    size: Literal["smoke", "small", "paper"] = "small",
    data: str | None = None,
    seed: int = 0,
    out: Path = Path("reproduced"),
    overwrite: bool = False,
    redraw: bool = False,
) -> None:
    """Compute and draw a figure of the papers, or all of one paper, and hold it against what the paper claims.

    Alone it lists every figure with its claim, and what was found at size small in the time that is given. Of a PAPER, figures that are in
    OUT already are drawn again and not computed, so that the command goes on where it was stopped.

    Args:
        name: PAPER/FIGURE, or PAPER for all of its figures.
        size: smoke takes seconds, small minutes, paper has the paper's own numbers where it gives them.
        data: SOURCE of the images, for figures that use some; by default those of the size's recipe, or else the embedded digits.
        seed: of every draw.
        out: folder; a figure is written to OUT/PAPER/FIGURE-SIZE.json, .svg and .png.
        overwrite: replace them.
        redraw: draw from the .json that is there, without computing.
    """
    if name is None:
        listing(Console())
        return
    figures = [figure for figure in FIGURES if figure.startswith(f"{name}/")] or [name]
    images = {figure: figure_named(figure).images for figure in figures}
    paths = {figure: (out / stem(figure, size)).with_suffix(".json") for figure in figures}
    if data is not None and not any(images.values()):
        raise UserError(f"{name} uses no images, but --data is {data}; leave it out")
    for path in paths.values():
        if path.exists() and name in paths and not (overwrite or redraw):
            raise UserError(f"{path} exists already; choose another --out, draw it again with --redraw, or give --overwrite")
    for figure, path in paths.items():
        if redraw or (path.exists() and not overwrite):
            result = Result.read(path)
            stderr().print(f"{figure}: drawn from {path}, computed with seed {result.seed}")
            files = draw(result, out)
        else:
            if images[figure] and data is None:
                stderr().print(f"{figure}: on the images of the size's recipe, or else the embedded digits; --data takes {images[figure]}")
            with (
                atomic_write(path, overwrite=overwrite) as draft,
                stderr().status(f"computing {figure}"),
            ):  # it can be written, or says so now
                result = compute(figure, size=size, data=data if images[figure] else None, seed=seed)
                result.write(draft)
            files = [path, *draw(result, out)]
        show(result.claims, figure, Console())
        stderr().print(f"{result.seconds:g} s; written: {', '.join(map(str, files))}")


def show(claims: Sequence[Claim], name: str, console: Console) -> None:
    """Print the claims of one figure, each with expected and measured."""
    table = Table(title=f"{name}: {verdict(claims)}", title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
    for column in ("", "", "claim", "expected", "measured"):
        table.add_column(column)
    for claim in claims:
        sign = Text("✓", style="green") if claim.holds else Text("✗", style="red")
        whose = Text("corrected" if claim.corrected else "claimed", style="dim")
        table.add_row(sign, whose, Text(claim.statement), Text(claim.expected), Text(claim.measured))
    console.print(table)


def listing(console: Console) -> None:
    """Print every figure, its claim, and what the library's own result says of it."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("figure", no_wrap=True)
    table.add_column("the paper claims")
    table.add_column("borne out")
    table.add_column("time", justify="right", no_wrap=True)
    for name in FIGURES:
        result = committed(name)
        found, time = (verdict(result.claims), f"{result.seconds:.0f} s") if result else ("not computed yet", "")
        table.add_row(Text(name), Text(figure_named(name).claim), Text(found), time)
    console.print(table)
    console.print("claimed: by the paper; corrected: what derivation or control gives where it is silent or wrong (docs/derivations)")
    console.print("one in full: fullrank reproduce frossl/fig2 --size smoke")
