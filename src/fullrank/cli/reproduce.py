"""`fullrank reproduce`: compute and draw figures of the papers, and check the papers' claims."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fullrank.atomic import atomic_write
from fullrank.cli.flags import call
from fullrank.errors import UserError
from fullrank.reproduce import FIGURES, Claim, Result, load_committed, load_figure, summarize_claims
from fullrank.reproduce import reproduce as compute
from fullrank.reproduce.result import result_path, save_drawing
from fullrank.terminal import stderr

COLORS = {"✓": "green", "✗": "red", "?": "yellow"}


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
    """Compute and draw one figure, or all figures of a paper, and check the paper's claims.

    Without a name, the command lists all figures with their claims and with the results that come with the library.
    With the name of a paper, existing figures are only drawn again, so an interrupted command can be repeated.

    Args:
        name: PAPER/FIGURE, or PAPER for all of its figures.
        size: smoke takes seconds, small takes minutes, paper uses the settings of the paper as far as the paper states them.
        data: source URI of the images, for figures that use images; by default the source of the size's recipe, or the embedded digits.
        seed: seed of all random numbers.
        out: folder; a figure is written to OUT/PAPER/FIGURE-SIZE.json, .svg and .png.
        overwrite: replace existing files.
        redraw: draw from the existing .json file, without computing.
    """
    if name is None:
        list_figures(Console())
        return
    names = [figure for figure in FIGURES if figure.startswith(f"{name}/")] or [name]
    images = {figure: load_figure(figure).images for figure in names}
    paths = {figure: (out / result_path(figure, size)).with_suffix(".json") for figure in names}
    if data is not None and not any(images.values()):
        raise UserError(f"{name} uses no images, but --data is {data}; remove --data")
    if name in paths and paths[name].exists() and not (overwrite or redraw):
        raise UserError(f"{paths[name]} exists already; choose another --out, draw the figure again with --redraw, or give --overwrite")
    for figure, path in paths.items():
        if redraw or (path.exists() and not overwrite):
            result = Result.read(path)
            stderr().print(f"{figure}: drawn from {path}, computed with seed {result.seed}")
            files = save_drawing(result, out)
        else:
            if images[figure] and data is None:
                stderr().print(f"{figure}: no --data given, so it uses the default images of this size; --data can be {images[figure]}")
            with (
                atomic_write(path, overwrite=overwrite) as draft,  # raises before the computation if OUT cannot be written
                stderr().status(f"computing {figure}"),
            ):
                result = compute(figure, size=size, data=data if images[figure] else None, seed=seed)
                result.write(draft)
            files = [path, *save_drawing(result, out)]
        print_claims(result.claims, figure, Console())
        stderr().print(f"{result.seconds:g} s; written: {', '.join(map(str, files))}")


def print_claims(claims: Sequence[Claim], name: str, console: Console) -> None:
    """Print the claims of one figure with verdict, expected and measured values."""
    table = Table(title=f"{name}: {summarize_claims(claims)}", title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
    for column in ("", "verdict", "claim", "expected", "measured"):
        table.add_column(column)
    for claim in claims:
        kind = Text(claim.verdict if claim.kind == "claim" else f"{claim.kind} {claim.verdict}", style="dim")
        table.add_row(Text(claim.mark, COLORS[claim.mark]), kind, Text(claim.statement), Text(claim.expected), Text(claim.measured))
    console.print(table)


def list_figures(console: Console) -> None:
    """Print every figure with its claim and the verdicts of the committed result."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("figure", no_wrap=True)
    table.add_column("the paper's main claim")
    table.add_column("reproduced")
    table.add_column("time", justify="right", no_wrap=True)
    for name in FIGURES:
        result = load_committed(name)
        summary, seconds = (summarize_claims(result.claims), f"{result.seconds:.0f} s") if result else ("not computed yet", "")
        table.add_row(Text(name), Text(load_figure(name).claim), Text(summary), seconds)
    console.print(table)
    console.print(
        "claims are statements of the paper (from memory: its text was not at hand); "
        "corrections are our statements, from derivations or control experiments (docs/derivations)"
    )
    console.print("to compute one figure: fullrank reproduce frossl/fig2 --size smoke")


run = partial(call, reproduce, command="reproduce")
